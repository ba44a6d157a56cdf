"""What the processes of a group agree on: that they are alike, S, the layout of the rows, and failures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.store import Store
from stimulus_moo.distributed.fingerprint import Fingerprint, digest, fingerprint_of, mismatch, structure_of
from stimulus_moo.distributed.group import Group, describe, told
from stimulus_moo.errors import DistributedError, InvalidLosses, RankMismatch
from stimulus_moo.estimators import Update

#: S and the layout of the rows of one process
Own = tuple[int, list[int]]


class Agreement:
    """State that is the same in all processes of a group, and the messages that keep it so."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.objectives = 0  # S, once the processes have agreed on it and on ``Store.layout``
        self.checked = False  # have the processes been compared?
        self.open = True  # do the others still wait for our part of the step?
        self.step = 0
        self._before: tuple[int, list[int]] | None = None  # S and the layout before the current step

    def begin(self, store: Store, update: Update, batch: Any, step: int) -> None:
        """Begin a step; before the first, raise RankMismatch on all processes where model, step or batch differ."""
        self.step = self.group.step = step
        self._before = self.objectives, store.layout
        if self.checked:
            return
        model, structure = fingerprint_of(store, update, step), structure_of(batch)
        found = self._exchange_digests(model, structure)
        if found[:, 0].any():
            self.raise_failure(None)
        brought = found[:, 3] != 0
        if (found[:, 1:3] != found[0, 1:3]).any():
            raise mismatch(self.group.gather(model), range(self.group.size), step)
        first = int(brought.nonzero()[0]) if brought.any() else 0
        if (found[brought, 3:5] != found[first, 3:5]).any():
            ranks = [rank for rank in range(self.group.size) if brought[rank]]
            raise mismatch(self.group.gather(structure), ranks, step)
        self.checked = True

    def roll_back(self, store: Store) -> None:
        """Return to S and the layout before the current step."""
        self.open = True
        if self._before is not None:
            self.objectives, store.layout = self._before
            self._before = None

    def commit(self) -> None:
        """Finish a step."""
        self.open, self._before = True, None

    def clear(self) -> None:
        """Forget everything the processes have agreed on."""
        self.objectives, self.checked, self._before = 0, False, None

    def settle_layout(self, store: Store, own: Own | None, *, failed: bool = False) -> None:
        """Agree on S and on the layout of the rows, which decide the shape of every message from here on.

        Raises:
            InvalidLosses: the processes have different numbers of losses.
        """
        found: list[tuple[bool, Own | None]] = self.group.gather((failed, own))
        if any(lost for lost, _ in found):
            if not failed:
                self.raise_failure(None)
            return
        known = {rank: part for rank, (_, part) in enumerate(found) if part is not None}
        counts = {rank: count for rank, (count, _) in known.items()}
        if len({self.objectives or min(counts.values(), default=0), *counts.values()}) > 1:
            self.open = False
            raise InvalidLosses(
                f"losses returned different numbers of losses on the ranks at step {self.step}: "
                f"{', '.join(f'{count} on rank {rank}' for rank, count in counts.items())}"
                f"{f', {self.objectives} before' if self.objectives else ''}; every rank must return the same "
                "objectives"
            )
        for count, layout in known.values():
            self.objectives = count
            store.layout = [old | new for old, new in zip(store.layout, layout, strict=True)]

    def union(self, reach: list[int]) -> list[int]:
        """Return what any process reaches."""
        bits = torch.tensor([[float(mask >> s & 1) for s in range(self.objectives)] for mask in reach])
        counts = self.group.sum(bits).tolist()
        return [sum(1 << s for s, count in enumerate(row) if count) for row in counts]

    def require_same_step(self, total: float, own: float) -> None:
        """Raise RankMismatch where the sum of the processes' steps shows that they differ."""
        if total != self.group.size * own:
            raise RankMismatch(
                f"this rank is at step {self.step}, another is not: a rank left out a step, or continued after an error"
            )

    def raise_failure(self, own: BaseException | None) -> None:
        """Exchange what went wrong; raise it where another process failed."""
        found = self.group.gather(None if own is None else describe(own))
        self.open = False
        if own is None:
            rank, description = next((rank, one) for rank, one in enumerate(found) if one is not None)
            raise told(rank, description, self.step)

    def tell(self, error: BaseException, send_failure: Any) -> None:
        """Tell the other processes of a failure here, if they still wait for our part of a message."""
        if isinstance(error, DistributedError) or not self.open:
            return
        try:
            if self.checked:
                send_failure()
            else:
                self._exchange_digests(failed=True)
            self.raise_failure(error)
        except DistributedError as second:
            error.add_note(f"the other ranks could not be told: {second}")
        finally:
            self.open = False

    def _exchange_digests(
        self, model: Fingerprint | None = None, structure: Fingerprint | None = None, *, failed: bool = False
    ) -> Tensor:
        """Return for every process: failed, two numbers for its model, two for its batch (zero where it has none)."""
        return self.group.stack(torch.tensor([int(failed), *digest(model), *digest(structure)])).cpu()
