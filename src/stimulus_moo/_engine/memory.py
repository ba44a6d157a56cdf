"""Estimate of the memory a MultiGradient needs, before training starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import positive_integer

if TYPE_CHECKING:
    from stimulus_moo._engine.store import Store
    from stimulus_moo.estimators import Estimator


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes beyond the model, the optimizer and the activations of a forward pass.

    Attributes:
        objectives: S.
        rows: U, the S x P matrix, without the parts of heads that an objective does not reach.
        staging: a second U, in which a small model's update is built so that it can be discarded exactly.
        previous: x_{t-1}, for estimators that compare two points.
        gradients: ``p.grad``: the direction of the last step, while that of this step is formed.
        transient: held briefly: a row of a small model, one parameter's gradient of a large one. A step observed by a
            safeguard, or an anchor that estimates its noise, needs up to three rows more.

    >>> estimate = MemoryEstimate(objectives=2, rows=8_000_000, staging=0, previous=4_000_000, gradients=8_000_000,
    ...                           transient=1_000_000)
    >>> estimate.total
    21000000
    >>> print(estimate)
    20.0 MiB for 2 objectives: rows 7.6, staging 0.0, previous point 3.8, gradients 7.6, transient 1.0
    """

    objectives: int
    rows: int
    staging: int
    previous: int
    gradients: int
    transient: int

    @property
    def total(self) -> int:
        """The sum of all."""
        return self.rows + self.staging + self.previous + self.gradients + self.transient

    def __str__(self) -> str:
        names = {"rows": "rows", "staging": "staging", "previous": "previous point"}
        names |= {"gradients": "gradients", "transient": "transient"}
        parts = ", ".join(f"{title} {getattr(self, name) / 2**20:.1f}" for name, title in names.items())
        return f"{self.total / 2**20:.1f} MiB for {self.objectives} objectives: {parts}"


def estimate_memory(
    store: Store, estimator: Estimator, step: int, batch: Any = None, objectives: int | None = None
) -> MemoryEstimate:
    """Return the estimate; without a batch or a first step every objective counts as reaching every parameter."""
    parameters, storage = store.objective.parameters, store.storage
    reach: list[int] | None = None
    if batch is not None:
        objectives, reach = store.survey(batch, step)
    elif store.objective.count is not None:
        objectives, reach = store.objective.count, store.layout
    if objectives is None:
        raise InvalidOption("memory_estimate needs a batch or objectives=S before the first step, found neither")
    objectives = positive_integer("objectives", objectives)
    masks = [(1 << objectives) - 1] * len(parameters) if reach is None else reach
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    rows = sum(
        mask.bit_count() * parameter.numel() * storage.dtype_for(parameter).itemsize
        for mask, parameter in zip(masks, parameters, strict=True)
    )
    staged = store.stages(objectives)
    found = MemoryEstimate(
        objectives=objectives,
        rows=rows,
        staging=rows if staged and estimator.remembers else 0,
        previous=sum(sizes) if estimator.two_point else 0,
        gradients=2 * sum(sizes),
        transient=sum(sizes) if staged else max(sizes),
    )
    return found if store.reducer is None else store.reducer.memory(found, store.objective.dimension)
