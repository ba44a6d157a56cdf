"""What the processes sum before the rows of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stimulus_moo._engine.account import Account
from stimulus_moo.anchors.variance import GROUPS, Spread
from stimulus_moo.distributed.group import Group


@dataclass
class Head:
    """What the processes sum before the rows: flags, counts, losses and the spread of an anchor.

    ``summed`` returns the head of all processes, whose step is the sum of their steps.
    """

    objectives: int
    step: int
    account: Account = field(default_factory=Account)
    spread: Spread = field(default_factory=Spread)
    failed: bool = False
    grown: bool = False  # has this process reached parameters that there is no room for yet?
    partial: bool = False  # has it reached less than there is room for?
    counted: bool = False  # is each loss a mean over a number of samples of its own?

    def summed(self, group: Group) -> Head:
        """Return the sum over all processes."""
        return self.read(group.sum(self._message()))

    def begin(self, group: Group) -> Callable[[], Tensor]:
        """Start to sum; return a function that waits for the sum, which ``read`` understands."""
        return group.begin_sum(self._message())

    def _message(self) -> Tensor:
        account, spread = self.account, self.spread
        numbers = [self.failed, self.grown, self.partial, self.step, account.seen, spread.pairs, *spread.sums]
        zero, means = torch.zeros(self.objectives, dtype=torch.float64), (account.losses, account.before)
        if not self.counted:
            parts = [zero if mean is None else mean.double().cpu() * account.seen for mean in means]
        else:
            counts = zero if account.counts is None else torch.tensor(account.counts, dtype=torch.float64)
            parts = [zero if mean is None else mean.double().cpu().nan_to_num(0.0) * counts for mean in means]
            parts.append(counts)
        return torch.cat([torch.tensor(numbers, dtype=torch.float64), *parts])

    def read(self, total: Tensor) -> Head:
        """Return the head of all processes, from the sum of their messages."""
        failed, grown, partial, step, seen, pairs, *sums = total[: 6 + GROUPS].tolist()
        found = Account(seen=int(seen))
        if seen:
            now, before, *over = total[6 + GROUPS :].split(self.objectives)
            found.losses, found.before = (part / (over[0] if over else seen) for part in (now, before))
            found.counts = over[0].tolist() if over else None
        everyone = Spread(int(pairs), tuple(sums))
        return Head(self.objectives, int(step), found, everyone, failed > 0, grown > 0, partial > 0)
