"""The random-clock output of the strongly convex theorems: one iterate picked online, in the memory of one."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption, StateMismatch
from stimulus_moo.options import real, seed_number
from stimulus_moo.state import Stateful, check_tensors


class RandomClock(Stateful):
    """Picks x_t with probability proportional to w_t = (1 - 3 mu eta / 4)^(1-t) among the iterates seen.

    A weighted reservoir of size one: with r = 1 - 3 mu eta / 4, the sum of the weights relative to the newest is
    W_t = r W_{t-1} + 1, which cannot overflow. The newest iterate replaces the picked one with probability 1 / W_t.

    Args:
        parameters: the model's parameters.
        mu: strong convexity, > 0.
        lr: eta, > 0, with 3 mu eta / 4 < 1.
        seed: seed of the draw.

    >>> import torch
    >>> x = torch.nn.Parameter(torch.zeros(1))
    >>> clock = RandomClock([x], mu=1.0, lr=0.1)
    >>> for t in range(5):
    ...     clock.update()  # call at x_t, before optimizer.step()
    ...     x.data += 1.0
    >>> clock.picked_at in range(5) and clock.picked[0].item() == clock.picked_at
    True
    """

    state_names = ("generator", "total", "seen", "picked_at", "picked")
    count_names, amount_names = ("seen",), ("total",)

    def __init__(self, parameters: Iterable[Tensor], *, mu: float, lr: float, seed: int = 0) -> None:
        iterable = isinstance(parameters, Iterable) and not isinstance(parameters, Tensor)
        self.parameters = list(parameters) if iterable else []
        if not self.parameters or not all(isinstance(parameter, Tensor) for parameter in self.parameters):
            raise InvalidOption(f"parameters must be an iterable of at least one tensor, found {parameters!r}")
        self.ratio = 1.0 - 0.75 * real("mu", mu, low=0.0, open_low=True) * real("lr", lr, low=0.0, open_low=True)
        if self.ratio <= 0.0:
            raise InvalidOption(f"3 mu lr / 4 must be below 1, found mu={mu!r} and lr={lr!r}; lower lr")
        self.generator = torch.Generator().manual_seed(seed_number(seed))
        self.total = 0.0  # W_t
        self.seen, self.picked_at = 0, -1
        self.picked: list[Tensor] = []

    def update(self) -> None:
        """Replace the picked iterate by the current one, with probability 1 / W_t."""
        self.total = self.ratio * self.total + 1.0
        if torch.rand((), generator=self.generator, dtype=torch.float64).item() * self.total < 1.0:
            self.picked = [parameter.detach().clone() for parameter in self.parameters]
            self.picked_at = self.seen
        self.seen += 1

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the shapes of the picked iterate."""
        super().check_state(state, path)
        where, at = path or self.kind, state["picked_at"]
        if not isinstance(at, int) or not (at == -1 if not state["seen"] else 0 <= at < state["seen"]):
            raise StateMismatch(f"{where}.picked_at must be one of the {state['seen']} iterates seen, found {at!r}")
        check_tensors(state["picked"], self.parameters if state["seen"] else [], f"{where}.picked")

    def apply(self) -> None:
        """Copy the picked iterate into the parameters."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.picked, strict=bool(self.picked)):
                parameter.copy_(value)
