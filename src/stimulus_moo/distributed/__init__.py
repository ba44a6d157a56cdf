"""Several processes of ``torch.distributed`` that make every step together and follow one trajectory."""

from stimulus_moo._engine.storage import Storage
from stimulus_moo.distributed.group import Alone, Group, find_group, unwrapped
from stimulus_moo.distributed.reducer import AllReduce
from stimulus_moo.distributed.sharded import ReduceScatter

__all__ = ["Alone", "Group", "find_group", "make_reducer", "unwrapped"]


def make_reducer(group: Group | Alone, shard: bool, storage: Storage) -> AllReduce | None:
    """Return how the processes form sums: each with all of U, or with its columns; None for a process on its own."""
    if isinstance(group, Alone):
        return None
    return ReduceScatter(group, storage) if shard else AllReduce(group, storage)
