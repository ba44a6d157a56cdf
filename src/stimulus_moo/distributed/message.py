"""What a message says before the rows: flags, counts, losses; as numbers, so that adding messages up adds them up."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stimulus_moo._engine.store import Store
from stimulus_moo._engine.transaction import Account
from stimulus_moo.anchors.variance import GROUPS, Spread

_DIGIT = 4096  # counts travel as digits that a float32 adds up exactly, for up to as many processes
_DIGITS = 4


class Head:
    """What goes before the rows in a message: flags, counts, losses, and what an anchor's pieces say about sigma^2."""

    def __init__(
        self,
        objectives: int,
        step: int,
        account: Account | None = None,
        spread: Spread | None = None,
        *,
        failed: bool = False,
    ) -> None:
        self.objectives = objectives
        self.step = step % _DIGIT
        self.account = account or Account()
        self.spread = spread or Spread()
        self.failed = failed
        self.grown = False  # has this process reached what there is no room for yet?
        self.partial = False  # has it evaluated, and reached less than there is room for?

    def vector(self, dtype: torch.dtype) -> Tensor:
        """Return it as numbers that can be added up."""
        zero = torch.zeros(self.objectives, dtype=torch.float64)
        seen, spread, pair = self.account.seen, self.spread, (self.account.losses, self.account.before)
        flags = [float(self.failed), float(self.grown), float(self.partial), float(self.step)]
        counts = [digit for count in (seen, spread.pairs) for digit in _digits(count)]
        losses = [zero if losses is None else losses.detach().double().cpu() * seen for losses in pair]
        return torch.cat([torch.tensor([*flags, *counts, *spread.sums], dtype=torch.float64), *losses]).to(dtype)

    def summed(self, vector: Tensor) -> Head:
        """Return the head that a sum of heads stands for; its step is the sum of their steps."""
        values = vector.double().tolist()
        counts = [_number(values[4 + _DIGITS * k : 4 + _DIGITS * (k + 1)]) for k in range(2)]
        start = 4 + 2 * _DIGITS
        sums = torch.tensor(values[start + GROUPS :], dtype=torch.float64).split(self.objectives)
        losses, before = (None if not counts[0] else total / counts[0] for total in sums)
        account = Account(losses=losses, before=before, seen=counts[0])
        total = Head(self.objectives, 0, account, Spread(counts[1], tuple(values[start : start + GROUPS])))
        total.failed, total.grown, total.partial = (value > 0 for value in values[:3])
        total.step = round(values[3])
        return total


def take_over(total: Head, account: Account, store: Store, *, look_back: bool) -> Spread:
    """Make the account that of all processes; return the spread of all processes."""
    parameters = store.objective.parameters
    types = {store.storage.dtype_for(parameter) for parameter in parameters}
    kind = torch.float64 if torch.float64 in types else torch.float32
    found = (total.account.losses, total.account.before if look_back else None)
    account.seen = total.account.seen
    account.losses, account.before = (None if part is None else part.to(parameters[0].device, kind) for part in found)
    return total.spread


def _digits(count: int) -> list[float]:
    return [float(count // _DIGIT**k % _DIGIT) for k in range(_DIGITS)]


def _number(digits: Sequence[float]) -> int:
    return sum(int(digit) * _DIGIT**k for k, digit in enumerate(digits))


def pack(message: Tensor, matrices: Sequence[Tensor]) -> None:
    """Write matrices one after the other into a message; nothing is left as it is, at zero."""
    start = 0
    for matrix in matrices:
        message[start : start + matrix.numel()].copy_(matrix.view(-1))
        start += matrix.numel()


def unpack(message: Tensor, matrices: Sequence[Tensor]) -> None:
    """Read matrices from a message."""
    for matrix, part in zip(matrices, message.split([matrix.numel() for matrix in matrices]), strict=True):
        matrix.view(-1).copy_(part)
