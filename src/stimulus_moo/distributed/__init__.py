"""Several processes of ``torch.distributed`` that make every step together and follow one trajectory."""

from stimulus_moo._engine.placement import WHOLE, Placement
from stimulus_moo._engine.storage import Storage
from stimulus_moo.distributed.checkpoint import load_sharded, save_sharded
from stimulus_moo.distributed.group import Alone, Group, find_group, unwrapped
from stimulus_moo.distributed.reducer import AllReduce
from stimulus_moo.distributed.sharded import ReduceScatter

__all__ = ["Alone", "Group", "find_group", "load_sharded", "make_reducer", "save_sharded", "unwrapped"]


def make_reducer(
    group: Group | Alone, shard: bool, storage: Storage, placement: Placement = WHOLE, *, halves: bool = False
) -> AllReduce | None:
    """Return how the processes form sums: each with all of U, or with its columns; None for a process on its own."""
    placed = placement.new_reducer(storage)
    if placed is not None or isinstance(group, Alone):
        return placed
    return (ReduceScatter if shard else AllReduce)(group, storage, halves=halves)
