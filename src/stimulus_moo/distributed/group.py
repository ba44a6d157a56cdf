"""The processes of ``torch.distributed`` that make one step together: finding them, and talking to them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stimulus_moo import errors
from stimulus_moo.data.partition import ALL, Partition
from stimulus_moo.errors import DistributedError, InvalidOption, NonFiniteError, RankFailed, StimulusError


class Alone:
    """A process on its own, with the interface of a group."""

    partition = ALL
    rank, size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        """Return its own value."""
        return [value]

    def broadcast(self, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns."""
        return make()

    def any(self, flag: bool) -> bool:
        """Return its own flag."""
        return flag


class Group:
    """A process group of at least two, with the collectives the library needs.

    All processes must call every method, in the same order. A message that fails, because a process is gone or silent
    for longer than the group's timeout, raises DistributedError with the step.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.rank: int = dist.get_rank(handle)
        self.size: int = dist.get_world_size(handle)
        self.partition = Partition(self.rank, self.size)
        self.step = 0  # t, for messages
        nccl = "nccl" in str(dist.get_backend(handle))
        self._device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, bit for bit the same in each; the tensor is overwritten."""
        message = values.to(self._device)
        self._send(lambda: dist.all_reduce(message, group=self.handle))
        return message.to(values.device)

    def begin_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """Start to sum a tensor over all processes; return a function that waits for the sum and returns it.

        The tensor is overwritten, and must not be used until then.
        """
        message, works = values.to(self._device), []
        self._send(lambda: works.append(dist.all_reduce(message, group=self.handle, async_op=True)))

        def wait() -> Tensor:
            self._send(works[0].wait)
            return message.to(values.device)

        return wait

    def scatter_sum(self, values: Tensor) -> Tensor:
        """Return this process's row of the sum of a [R, n] tensor over all processes."""
        message = values.to(self._device).contiguous().view(-1)
        own = message.new_empty(values.shape[1])
        self._send(lambda: _reduce_scatter(own, message, group=self.handle))
        return own.to(values.device)

    def stack(self, values: Tensor) -> Tensor:
        """Return the [R, n] tensor of every process's n values."""
        message = values.to(self._device).contiguous()
        every = message.new_empty(self.size * message.numel())
        self._send(lambda: _all_gather(every, message, group=self.handle))
        return every.view(self.size, -1).to(values.device)

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, any object that can be pickled."""
        found: list[Any] = [None] * self.size
        self._send(lambda: dist.all_gather_object(found, value, group=self.handle))
        return found

    def broadcast(self, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns in the first process, and raise everywhere what it raises there."""
        found: list[Any] = [None]
        failure: Exception | None = None
        if self.rank == 0:
            try:
                found = [(make(), None)]
            except Exception as error:
                failure = error
                found = [(None, describe(error))]
        first = dist.get_global_rank(self.handle, 0) if self.handle is not None else 0
        self._send(lambda: dist.broadcast_object_list(found, src=first, group=self.handle))
        if failure is not None:
            raise failure
        value, description = found[0]
        if description is not None:
            raise told(0, description, self.step)
        return value

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return bool(self.sum(torch.tensor([float(flag)])).item())

    def _send(self, message: Callable[[], Any]) -> None:
        try:
            message()
        except (RuntimeError, ConnectionError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DistributedError(
                f"rank {self.rank} of {self.size} could not finish a message of step {self.step}: another rank has "
                f"died, has left the loop or has been silent for longer than the group's timeout ({reason}); end this "
                "process and start all of them again from the last checkpoint, with torchrun --max-restarts for "
                "instance"
            ) from error


def find_group(process_group: Any, shard: bool) -> Group | Alone:
    """Return the group to make steps with, or this process on its own.

    Raises:
        InvalidOption: there is no such group, or this process is not in it.
    """
    if not isinstance(shard, bool):
        raise InvalidOption(f"shard must be True or False, found {shard!r}")
    ready = dist.is_available() and dist.is_initialized()
    if not ready:
        if process_group is not None or shard:
            raise InvalidOption(
                "process_group and shard need torch.distributed: call torch.distributed.init_process_group first and "
                f"start with torchrun, found process_group={process_group!r}, shard={shard!r} without it"
            )
        return Alone()
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise InvalidOption(
            "process_group must be a group made by torch.distributed that this process is in, or None for all "
            f"processes, found {process_group!r}"
        )
    return Group(process_group) if dist.get_world_size(process_group) > 1 else Alone()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, whose own messages would be sent in addition to ours."""
    inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


def describe(error: BaseException) -> dict[str, Any]:
    """Return what other processes are told about an error."""
    found = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, NonFiniteError):
        return {**found, "objective": error.objective, "objectives": error.objectives}
    return found


def told(rank: int, description: dict[str, Any], step: int) -> StimulusError:
    """Return the error for a failure of another process: of the library's type, if it was one of the library's."""
    message = f"rank {rank}: {description['message']}"
    kind = getattr(errors, description["type"], None)
    if kind is NonFiniteError:
        error = NonFiniteError(message, objective=description["objective"], step=step)
        error.objectives = description["objectives"]
        return error
    if isinstance(kind, type) and issubclass(kind, StimulusError) and not issubclass(kind, DistributedError):
        return kind(message)
    return RankFailed(
        f"rank {rank} raised {description['type']} at step {step}: {description['message']}; nothing was changed here",
        rank=rank,
        step=step,
    )


# newer versions of torch have other names for these two
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", getattr(dist, "reduce_scatter_tensor", None))
_all_gather: Any = getattr(dist, "all_gather_single", getattr(dist, "all_gather_into_tensor", None))
