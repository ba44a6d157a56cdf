"""How several processes form the sums of a step; a process on its own has no reducer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stimulus_moo._engine.rows import Rows
from stimulus_moo.anchors.variance import Spread
from stimulus_moo.data.partition import Partition

if TYPE_CHECKING:
    from stimulus_moo._engine.memory import MemoryEstimate
    from stimulus_moo._engine.store import Store
    from stimulus_moo._engine.transaction import Account, Transaction


class Reducer(ABC):
    """Forms the sums of a step from the parts that the processes contribute.

    A transaction calls ``begin`` first and ``sum`` last; between the two it evaluates this process's part of the
    update. After ``sum``, rows, losses and counts are those of all processes.
    """

    #: the part of every batch, draw and pass that belongs to this process
    partition: Partition
    #: whether the rows are split over the processes
    sharded = False

    @abstractmethod
    def begin(self, transaction: Transaction, batch: Any) -> None:
        """Prepare a step."""

    def target(self, transaction: Transaction, graphs: Sequence[Tensor]) -> Rows:
        """Return the rows to which the gradients of these losses are added."""
        return transaction.open_rows(graphs)

    @abstractmethod
    def sum(self, transaction: Transaction, account: Account, spread: Spread, *, last: bool = True) -> Spread:
        """Make the pending rows and the account those of all processes; return the spread of all processes."""

    @abstractmethod
    def tally(self, transaction: Transaction, spread: Spread) -> Spread:
        """Sum in the middle of an anchor, which then decides how many more samples it draws."""

    @abstractmethod
    def sum_vectors(self, vectors: Sequence[Tensor], share: float) -> None:
        """Replace vectors of means over this process's ``share`` of the samples by those over all samples."""

    @abstractmethod
    def broadcast(self, weights: Tensor) -> Tensor:
        """Return the weights of the first process."""

    @abstractmethod
    def abandon(self, store: Store, error: BaseException) -> None:
        """Tell the other processes that the step failed here, unless they know."""

    @abstractmethod
    def roll_back(self, store: Store) -> None:
        """Forget what the processes agreed on during the step."""

    @abstractmethod
    def commit(self) -> None:
        """Finish a step."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything the processes have agreed on."""

    def new_rows(self, store: Store, objectives: int) -> Rows:
        """Return empty rows for the model."""
        return Rows(store.objective.parameters, objectives, store.objective.decisive, store.storage)

    @abstractmethod
    def memory(self, estimate: MemoryEstimate, parameters: int) -> MemoryEstimate:
        """Return the memory estimate of one process of the group."""
