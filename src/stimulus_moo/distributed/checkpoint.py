"""States with tensors that are split over the processes, in a folder of ``torch.distributed.checkpoint``."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stimulus_moo._engine.placement import find_placement, is_a
from stimulus_moo.errors import DistributedError, StateMismatch

_MARK = "split tensor"


def save_sharded(folder: str | Path, state: Any) -> None:
    """Save a nest of dicts and lists with DTensors, such as states of models split by ``fully_shard``; a collective.

    Every process writes its shards, the first one also everything else, ``state.pt``, last: a folder without it is
    incomplete. ``load_sharded`` reads the folder with any number of processes.

    Args:
        folder: a folder that all processes can write to. An older state in it is removed first: to keep that until the
            new one is complete, use another folder.
        state: say ``{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "mg": mg.state_dict()}``.

    >>> import tempfile, torch
    >>> from stimulus_moo import HeavyBall, MiniBatch, MultiGradient
    >>> model = torch.nn.Linear(2, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_sharded(folder, {"model": model.state_dict(), "step": 3})
    ...     state = load_sharded(folder, model)
    >>> torch.equal(state["model"]["weight"], model.weight), state["step"]
    (True, 3)
    """
    from stimulus_moo.training.files import write_whole

    folder, first = Path(folder), not dist.is_initialized() or dist.get_rank() == 0
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.pt").unlink(missing_ok=True)
        remove_shards(folder / "shards")
    _wait()
    rest = write_shards(folder / "shards", state)
    if first:
        write_whole(folder / "state.pt", lambda file: torch.save(rest, file))
    _wait()


def load_sharded(folder: str | Path, model: nn.Module) -> Any:
    """Return what ``save_sharded`` saved, with tensors split as the parameters of ``model`` are, or whole as they are.

    The number of processes may be another one. All of them must call this.

    Raises:
        StateMismatch: the folder is incomplete or damaged.
    """
    path = Path(folder) / "state.pt"
    try:
        rest = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateMismatch(f"{path} cannot be read: the folder is incomplete or damaged ({error})") from error
    return read_shards(Path(folder) / "shards", rest, model)


def write_shards(folder: Path, state: Any) -> Any:
    """Write the DTensors of a state to a folder, if it has any; return the state with marks in their places."""
    tensors: dict[str, Tensor] = {}
    rest = _taken_out(state, "", tensors)
    if tensors:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_saver import save

        try:
            save(tensors, checkpoint_id=str(folder))
        except CheckpointException as error:
            raise DistributedError(
                f"{folder} could not be written by all ranks ({str(error).splitlines()[0]}); older checkpoints are "
                "intact. Fix the disk or its permissions, then resume"
            ) from error
    return rest


def read_shards(folder: Path, rest: Any, model: nn.Module) -> Any:
    """Return the state that ``write_shards`` wrote, from the one with marks; shards are those of this process."""
    placement, tensors = find_placement(model), dict[str, Tensor]()
    for mark in _marks(rest):
        tensors[mark[_MARK]] = placement.blank(mark["shape"], mark["like"].dtype, mark["dim"])
    if not tensors:
        return rest
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings():  # torch tells a process on its own that it is one
            warnings.simplefilter("ignore", UserWarning)
            load(tensors, checkpoint_id=str(folder), no_dist=not dist.is_initialized())
    except (Exception, CheckpointException) as error:  # the latter is none of the former
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StateMismatch(f"{folder} cannot be read: it is incomplete or damaged ({reason})") from error
    return _put_back(rest, tensors)


def remove_shards(folder: Path) -> None:
    """Remove a folder of shards, if there is one. Idempotent."""
    shutil.rmtree(folder, ignore_errors=True)


def _wait() -> None:
    if dist.is_initialized():
        dist.barrier()


def _taken_out(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if is_a(value, "DTensor"):
        tensors[path] = value
        dim = value.placements[-1].dim
        like = torch.empty(0, dtype=value.dtype)
        return {_MARK: path, "shape": list(value.shape), "like": like, "dim": dim}
    if isinstance(value, dict):
        return {name: _taken_out(one, f"{path}/{name}", tensors) for name, one in value.items()}
    if isinstance(value, list):
        return [_taken_out(one, f"{path}/{k}", tensors) for k, one in enumerate(value)]
    return value


def _marks(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict) and _MARK in value:
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [mark for part in parts for mark in _marks(part)]


def _put_back(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if _MARK in value:
            return tensors[value[_MARK]]
        return {name: _put_back(one, tensors) for name, one in value.items()}
    return [_put_back(one, tensors) for one in value] if isinstance(value, list) else value
