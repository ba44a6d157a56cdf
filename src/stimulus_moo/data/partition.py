"""The part of a batch, a draw or a pass that one of several processes handles."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Partition:
    """The part of process ``rank`` of ``size`` processes.

    >>> [Partition(rank, 3).part(8) for rank in range(3)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """

    rank: int = 0
    size: int = 1

    def part(self, count: int) -> slice:
        """Return this process's slice of ``count`` items; the lengths of the slices differ by at most one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def takes(self, k: int) -> bool:
        """Return whether item k belongs to this process when items are assigned round robin."""
        return k % self.size == self.rank


#: The partition of a single process: everything.
ALL = Partition()
