"""Which part of a batch, a draw or a pass is this process's, where several processes make one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Partition:
    """The part of process ``rank`` among ``size`` processes.

    >>> [Partition(rank, 3).part(8) for rank in range(3)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """

    rank: int = 0
    size: int = 1

    def part(self, count: int) -> slice:
        """Return which of ``count`` things in a row are this process's: the parts differ by one at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def takes(self, k: int) -> bool:
        """Tell whether the k-th of things that are dealt out in turn is this process's."""
        return k % self.size == self.rank


#: The share of a process on its own: everything.
ALL = Partition()
