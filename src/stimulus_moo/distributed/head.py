"""What the processes sum before the rows: flags, counts, losses and the spread of an anchor."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from stimulus_moo._engine.transaction import Account
from stimulus_moo.anchors.variance import GROUPS, Spread
from stimulus_moo.distributed.group import Group


@dataclass
class Head:
    """The part of one process; ``summed`` returns that of all, whose step is the sum of their steps."""

    objectives: int
    step: int
    account: Account = field(default_factory=Account)
    spread: Spread = field(default_factory=Spread)
    failed: bool = False
    grown: bool = False  # has this process reached parameters that there is no room for yet?
    partial: bool = False  # has it reached less than there is room for?

    def summed(self, group: Group) -> Head:
        """Return the sum over all processes."""
        account, spread = self.account, self.spread
        numbers = [self.failed, self.grown, self.partial, self.step, account.seen, spread.pairs, *spread.sums]
        zero = torch.zeros(self.objectives, dtype=torch.float64)
        losses = [
            zero if part is None else part.double().cpu() * account.seen for part in (account.losses, account.before)
        ]
        total = group.sum(torch.cat([torch.tensor(numbers, dtype=torch.float64), *losses]))
        failed, grown, partial, step, seen, pairs, *sums = total[: 6 + GROUPS].tolist()
        means: list[Tensor | None] = [
            part / seen if seen else None for part in total[6 + GROUPS :].split(self.objectives)
        ]
        found = Account(losses=means[0], before=means[1], seen=int(seen))
        everyone = Spread(int(pairs), tuple(sums))
        return Head(self.objectives, int(step), found, everyone, failed > 0, grown > 0, partial > 0)
