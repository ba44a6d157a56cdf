"""Estimate of the memory a MultiGradient needs, before training starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from stimulus_moo._engine.differentiation import choose
from stimulus_moo._engine.products import CHUNK
from stimulus_moo._engine.replay import SMALL
from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import positive_integer

if TYPE_CHECKING:
    from stimulus_moo._engine.store import Store
    from stimulus_moo.estimators import Estimator

_RANDOM_STATES = 3 * 5056  # bytes
_ALLOWANCE = 32  # one part in so many is added for biases, losses and other small tensors


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes beyond the model, the optimizer and the activations: an upper bound on the peak of a step.

    Attributes:
        objectives: S.
        rows: U, the S x P matrix, without the parts of heads that an objective does not reach.
        staging: a second U, in which a small model's update is built so that it can be discarded exactly.
        previous: x_{t-1}, for estimators that compare two points.
        gradients: ``p.grad``, the direction of the last step.
        transient: the most that is held briefly at any moment of a step. While gradients are computed: those not yet in
            the rows (all S rows of a small model and of the engine ``"batched"``, one parameter's of a large one),
            x_t while x_{t-1} is in the parameters, and up to three vectors that observe the step. Afterwards: a
            float64 copy of at most 2^17 entries of U, and the new direction.

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
    store: Store,
    estimator: Estimator,
    step: int,
    batch: Any = None,
    objectives: int | None = None,
    *,
    supervised: bool = False,
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
    whole = sum(mask.bit_count() * size for mask, size in zip(masks, sizes, strict=True))  # all gradients of a batch
    evaluation, probes = _evaluation(store, objectives, whole, staged=staged), _probes(estimator)
    point, largest = sum(sizes), max(sizes)
    entries = sum(mask.bit_count() * parameter.numel() for mask, parameter in zip(masks, parameters, strict=True))
    chunk = 8 * min(entries, CHUNK)  # in float64
    phases = [
        evaluation + probes * point,
        chunk,  # the Gramian
        point + min(chunk, 2 * point),  # the direction and its norm
    ]
    if estimator.two_point:
        aside = point if store.objective.dimension <= SMALL else largest  # while x_{t-1} is in the parameters
        phases[0] += aside + (point if supervised else 0)  # a safeguard copies the point of a step that it takes back
        phases.append(point + 2 * largest)  # x_t - x_{t-1} and its norm
        phases.append(3 * point + 2 * largest if staged else 0)  # the change of the direction
    found = MemoryEstimate(
        objectives=objectives,
        rows=rows,
        staging=rows if staged and estimator.remembers else 0,
        previous=point if estimator.two_point else 0,
        gradients=point,
        transient=max(phases) + max(phases) // _ALLOWANCE + _RANDOM_STATES,
    )
    return found if store.reducer is None else store.reducer.memory(found, store.objective.dimension)


def _evaluation(store: Store, objectives: int, whole: int, *, staged: bool) -> int:
    """Return the bytes of the gradients that the engine holds before they are added to the rows."""
    parameters, model = store.objective.parameters, store.engine.model
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    name = store.engine.name
    name = choose(model, parameters, objectives) if name == "auto" else name
    largest = max(sizes)
    # the stochastic rounding of one parameter's row: the sum in float32, and its bits in int64
    rounding = 3 * largest if store.storage.dtype is torch.bfloat16 else 0
    if name != "rowwise":
        return objectives * sum(sizes) + max(largest, rounding)
    if staged and not store.sharded:
        return whole
    streams = store.engine.accumulates(parameters) and not store.sharded
    return (largest if streams else 2 * sum(sizes)) + rounding


def _probes(estimator: Estimator) -> int:
    """Return how many vectors of the model's size a step may use to observe the gradients."""
    if estimator.observes:
        return 3 if estimator.two_point else 1
    return int(estimator.two_point or (estimator.anchor is not None and estimator.anchor.estimates_variance))
