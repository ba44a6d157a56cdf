"""The one row of kept weights on its way: summed over the processes in buckets, which are sent while backward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from stimulus_moo._engine.flat import views
from stimulus_moo.distributed.group import Group
from stimulus_moo.distributed.head import Head

#: entries of the row in one bucket, at least
SMALLEST = 1 << 18

#: at most so many buckets are made of a row
MOST = 8

_FLAGS = 16  # entries before the row, so that it begins where a cache line does; three of them are used


class Flags(NamedTuple):
    """What the processes say with the last bucket."""

    failed: bool = False  #: has a process failed since the head?
    partial: bool = False  #: has one not reached all parameters there is room for?
    grown: bool = False  #: has one reached parameters there is no room for?


class RowMessage:
    """The messages of one step: the head, then the row in buckets, from its last parameter to its first.

    The head is sent when the message is made: after the last forward pass, when losses and sample counts are known.
    ``take`` is called during the backward pass with each gradient that is complete; a bucket is sent as soon as its
    gradients are there. ``finish`` sends the rest. If a process has failed before the head, no buckets are sent.

    Args:
        group: the processes.
        head: what this process says first.
        parameters: all parameters of the model, of one type and on one device.
        room: for each parameter whether it is part of the row, as the processes have agreed.
    """

    def __init__(self, group: Group, head: Head, parameters: Sequence[Tensor], room: Sequence[int]) -> None:
        self._group, self._head = group, head
        self._wait_for_head = head.begin(group)
        self._total: Head | None = None
        members = [i for i, mask in enumerate(room) if mask]
        own = [parameters[i] for i in members]
        memory = parameters[0].new_empty(_FLAGS + sum(map(Tensor.numel, own)))
        self._flags = memory[:_FLAGS].zero_()
        self.row = memory[_FLAGS:]  # the sum, once ``finish`` has returned
        self._views = dict(zip(members, views(self.row, own) if own else (), strict=True))
        self._missing = set(members)
        self._buckets = _cut(memory, self._views)
        self._sent: list[tuple[Tensor, Callable[[], Tensor]]] = []

    @property
    def total(self) -> Head:
        """The head of all processes."""
        if self._total is None:
            self._total = self._head.read(self._wait_for_head())
        return self._total

    @property
    def sound(self) -> bool:
        """Whether all processes were at this step, and none had failed, when the heads were sent."""
        return not self.total.failed and self.total.step == self._group.size * self._head.step

    def take(self, i: int, gradient: Tensor) -> None:
        """Take the complete gradient of one parameter, and send what can be sent."""
        if i not in self._views:
            return  # ``finish`` says so
        self._views[i].copy_(gradient)
        self._missing.discard(i)
        while len(self._sent) < len(self._buckets) - 1:  # the last one has the flags
            members, part = self._buckets[len(self._sent)]
            if not self._missing.isdisjoint(members) or not self.sound:
                return
            self._sent.append((part, self._group.begin_sum(part)))

    def finish(self, parts: Sequence[Tensor | None] | None = None, *, failed: bool = False) -> Flags:
        """Send the rest of this process's parts, or zeros if there are none, and wait for the sums."""
        if not self.sound:
            return Flags()
        for i in self._missing:
            part = None if parts is None else parts[i]
            self._views[i].zero_() if part is None else self._views[i].copy_(part)
        self._missing = set()
        if parts is not None:
            reached = {i for i, part in enumerate(parts) if part is not None}
            room = set(self._views)
            self._flags[1], self._flags[2] = float(bool(room - reached)), float(bool(reached - room))
        self._flags[0] = float(failed)
        for _, part in self._buckets[len(self._sent) :]:
            self._sent.append((part, self._group.begin_sum(part)))
        for part, wait in self._sent:
            if (found := wait()) is not part:  # it was sent from another device
                part.copy_(found)
        return Flags(*(self._flags[:3] > 0).tolist())


def _cut(memory: Tensor, views: dict[int, Tensor]) -> list[tuple[list[int], Tensor]]:
    """Return the parameters of each bucket and its part of the memory, the last parameters first."""
    least = max(SMALLEST, -(-len(memory) // MOST))
    found: list[tuple[list[int], Tensor]] = []
    members: list[int] = []
    start = stop = len(memory)
    for i in reversed(views):
        members.append(i)
        start -= views[i].numel()
        if stop - start >= least and start > _FLAGS:
            found.append((members, memory[start:stop]))
            members, stop = [], start
    return [*found, (members, memory[:stop])]
