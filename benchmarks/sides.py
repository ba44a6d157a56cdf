"""The sides of a comparison: a training step of this library, the same step with TorchJD, and the bare work."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case
from stimulus_moo import MiniBatch, MultiGradient, Recursive, StimulusWarning

_RATE = 1e-4  # small, so that thousands of steps do not reach values for which arithmetic is slower


#: the first 16 steps are observed more closely than later ones
SETTLED = 20


class OurStep:
    """``backward`` and SGD: two points (an inner STIMULUS step, after its anchor), or one (SMGD).

    ``options`` are those of ``MultiGradient``, such as the engine and ``reweigh``.
    """

    def __init__(self, case: Case, *, points: int, period: int = 10**9, **options: Any) -> None:
        self.model, self.batch = case.copy(), case.batch
        estimator = MiniBatch() if points == 1 else Recursive([case.batch], period)
        self.multigradient = MultiGradient(self.model, case.losses, estimator, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE, fused=True)

    def __call__(self) -> None:
        self.multigradient.backward(self.batch)
        self.optimizer.step()

    def settle(self, steps: int = SETTLED) -> str:
        """Make the first steps, which choose the engine and compile, and return the engine in use."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StimulusWarning)  # the table shows if an engine falls back
            for _ in range(steps):
                self()
        return self.multigradient.engine


class WeightedSum:
    """The bare step of scalarisation: a forward pass, one backward pass of the mean of the losses, SGD."""

    def __init__(self, case: Case) -> None:
        self.case, self.model = case, case.copy()
        self.weights = torch.full((case.objectives,), 1.0 / case.objectives)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE, fused=True)

    def __call__(self) -> None:
        self.backward(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, sign: float) -> None:
        """Add the gradient of the weighted sum, or subtract it."""
        losses = self.case.losses(self.model, self.case.batch)
        if isinstance(losses, Tensor):
            total = losses @ (sign * self.weights)
        else:
            total = sum(loss * weight for loss, weight in zip(losses, (sign * self.weights).tolist(), strict=True))
        total.backward()


class TwoPoints(WeightedSum):
    """An inner STIMULUS step on the weighted sum, written by hand, without checks and without a way back.

    Two passes at two points, the old row added, its norm, and copies of x_t and d, as the rule needs them.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.parameters = list(self.model.parameters())
        self.previous, self.row = ([x.detach().clone() for x in self.parameters] for _ in range(2))
        self.gradients = [torch.zeros_like(x) for x in self.parameters]

    def __call__(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        self._swap()
        self.backward(-1.0)
        self._swap()
        self.backward(1.0)
        row = [parameter.grad for parameter in self.parameters]
        torch._foreach_add_(row, self.row)
        torch.stack(torch._foreach_norm(row)).square().sum().item()
        torch._foreach_copy_(self.gradients, row)
        torch._foreach_copy_(self.previous, [parameter.detach() for parameter in self.parameters])
        self.row = row
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def _swap(self) -> None:
        for i, parameter in enumerate(self.parameters):
            own, parameter.data = parameter.data, self.previous[i]
            self.previous[i] = own


class TorchJDStep:
    """``backward``, ``jac_to_grad`` with MGDA, SGD: the loop of TorchJD's documentation."""

    def __init__(self, case: Case, *, chunk: int | None = None, lean: bool = False) -> None:
        from torchjd.aggregation import MGDA

        self.case, self.model = case, case.copy()
        self.aggregator = MGDA()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE, fused=True)
        self.chunk, self.lean = chunk, lean

    def __call__(self) -> None:
        from torchjd.autojac import backward, jac_to_grad

        losses = self.case.losses(self.model, self.case.batch)
        backward(as_list(losses), parallel_chunk_size=self.chunk)
        jac_to_grad(self.model.parameters(), self.aggregator, optimize_gramian_computation=self.lean)
        self.optimizer.step()
        self.optimizer.zero_grad()


#: TorchJD's options: all rows at once (its default), one at a time, and one at a time without one large matrix
TORCHJD: dict[str, dict[str, Any]] = {
    "TorchJD MGDA, default": {},
    "TorchJD MGDA, chunk size 1": {"chunk": 1},
    "TorchJD MGDA, chunk size 1, summed Gramian": {"chunk": 1, "lean": True},
}


def floor(case: Case, *, points: int) -> Callable[[], None]:
    """Return the bare work: a forward pass and S row gradients at each point, without storing them."""
    model = case.copy()
    parameters = list(model.parameters())

    def run() -> None:
        for _ in range(points):
            losses = as_list(case.losses(model, case.batch))
            for s, loss in enumerate(losses):
                torch.autograd.grad(loss, parameters, retain_graph=s + 1 < len(losses), allow_unused=True)

    return run


def as_list(losses: Any) -> list[Tensor]:
    return list(losses.unbind()) if isinstance(losses, Tensor) else list(losses)


def verdict(met: bool, figure: object) -> str:
    """Return the last cell of a row with a target."""
    return f"{'met' if met else 'missed'}: {figure}"
