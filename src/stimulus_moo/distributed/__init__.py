"""Several processes, one trajectory: who they are, how their updates become one, and how U is split over them."""

from __future__ import annotations

from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.rows import Storage
from stimulus_moo._engine.transaction import Ledger
from stimulus_moo.distributed import sharded
from stimulus_moo.distributed.group import Alone, Group, find_group, unwrapped
from stimulus_moo.distributed.sharded import ShardedLedger, StreamedLedger
from stimulus_moo.distributed.summed import SummedLedger

__all__ = ["Alone", "Group", "find_group", "open_ledger", "unwrapped"]


def open_ledger(
    group: Group | Alone, shard: bool, objective: Objective, engine: Engine, storage: Storage | None = None
) -> Ledger:
    """Return the ledger for a process on its own, for one of several, or for one that keeps only its columns of U."""
    if isinstance(group, Alone):
        return Ledger(objective, engine, storage)
    if not shard:
        return SummedLedger(group, objective, engine, storage)
    kind = ShardedLedger if objective.dimension <= sharded.WHOLE else StreamedLedger
    return kind(group, objective, engine, storage)
