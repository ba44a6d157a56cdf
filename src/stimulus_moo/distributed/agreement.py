"""What the processes have agreed on: the step, S, the layout of the rows, and whether one has failed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stimulus_moo._engine.store import Store
from stimulus_moo.distributed.fingerprint import Fingerprint, require_same
from stimulus_moo.distributed.group import Group, describe, told
from stimulus_moo.errors import InvalidLosses, RankMismatch

#: S, and by parameter the bit mask of the objectives there is room for
Layout = tuple[int, list[int]]


class Agreement:
    """What the processes that make a step together have agreed on, and the messages by which they do."""

    def __init__(self, group: Group) -> None:
        self.group, self.partition = group, group.partition
        self._objectives = 0  # S, once the processes have agreed on it and on ``Store.layout``
        self._awaited = True  # do the others still wait for our part of the step?
        self._step = 0

    def _agree(self, store: Store, own: Layout | None, *, failed: bool = False) -> None:
        """Agree on S and on the layout of the rows, which decide the shape of every message from here on."""
        found = self.group.gather((failed, own))
        if any(lost for lost, _ in found):
            if not failed:
                self._raise_failure(None)
            return
        known = {rank: part for rank, (_, part) in enumerate(found) if part is not None}
        counts = {rank: count for rank, (count, _) in known.items()}
        if len({self._objectives or min(counts.values(), default=0), *counts.values()}) > 1:
            self._awaited = False
            listed = ", ".join(f"{count} on rank {rank}" for rank, count in counts.items())
            raise InvalidLosses(
                f"losses returned different numbers of losses on the ranks at step {self._step}: {listed}"
                f"{f', {self._objectives} before' if self._objectives else ''}; every rank must return the same ones"
            )
        for count, layout in known.values():
            self._objectives = count
            store.layout = [old | new for old, new in zip(store.layout, layout, strict=True)]

    def _union(self, reach: Sequence[int], rows: int) -> list[int]:
        bits = torch.tensor([[float(mask >> s & 1) for s in range(rows)] for mask in reach])
        counts = self.group.sum(bits).tolist()
        return [sum(1 << s for s, count in enumerate(row) if count) for row in counts]

    def _require_same_step(self, total: float, own: float) -> None:
        if total != self.group.size * own:
            raise RankMismatch(
                f"this rank is at step {self._step}, another is not: a rank left out a step or continued after an error"
            )

    def _raise_failure(self, own: BaseException | None) -> None:
        """Exchange what went wrong; raise it where another process failed."""
        found = self.group.gather(None if own is None else describe(own))
        self._awaited = False
        if own is None:
            rank, description = next((rank, one) for rank, one in enumerate(found) if one is not None)
            raise told(rank, description, self._step)

    def _compare(self, own: Fingerprint | None) -> None:
        """Raise RankMismatch on all processes where they differ; None says that this one has failed."""
        found = self.group.gather(own)
        if own is not None:
            if None in found:
                self._raise_failure(None)
            require_same(found, self._step)
