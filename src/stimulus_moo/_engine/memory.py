"""Estimate of the memory a MultiGradient needs, before training starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from stimulus_moo._engine.differentiation import choose
from stimulus_moo._engine.products import entries_converted
from stimulus_moo._engine.replay import SMALL
from stimulus_moo._engine.sketch import SIGNS, WIDTH
from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import positive_integer

if TYPE_CHECKING:
    from stimulus_moo._engine.loss_forms import LossForm
    from stimulus_moo._engine.store import Store
    from stimulus_moo.estimators import Estimator

_RANDOM_STATES = 4 * 5056  # bytes
_ALLOWANCE = 32  # one part in so many is added for biases, losses and other small tensors


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes beyond the model, the optimizer and the activations: an upper bound on the peak of a step.

    Attributes:
        objectives: S.
        rows: U, the S x P matrix, without the parts of heads that an objective does not reach; one row if the weights
            are fixed or solved for from a sketch.
        staging: a second U, in which a small model's update is built so that it can be discarded exactly. Under kept
            weights, the one row that the estimator remembers.
        previous: x_{t-1}, for estimators that compare two points.
        gradients: ``p.grad``, the direction of the last step.
        transient: the most that is held briefly at any moment of a step. While gradients are computed: those not yet in
            the rows (all S rows of a small model and of the engine ``"batched"``, one parameter's of a large one),
            x_t while x_{t-1} is in the parameters, and up to three vectors that observe the step. Afterwards: a
            float64 copy of at most 2^17 entries of U, and the new direction. A sketch: S rows of at most 32,771 numbers
            and a table of signs, 5 MiB, while the weights are solved for.

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


@dataclass(frozen=True)
class _Sizes:
    """What the parts of a step consist of, in bytes."""

    objectives: int
    point: int  # all parameters
    largest: int  # of them
    entries: int  # of U
    rows: int  # U
    one: int  # one row, in float32 at the least
    gradients: int  # all S gradients of a batch


def estimate_memory(
    store: Store,
    estimator: Estimator,
    form: LossForm | None,
    step: int,
    batch: Any = None,
    objectives: int | None = None,
    *,
    supervised: bool = False,
) -> MemoryEstimate:
    """Return the estimate; without a batch or a first step every objective counts as reaching every parameter.

    ``form`` is what is differentiated to solve for the weights; None if they are fixed.
    """
    reach: list[int] | None = None
    if batch is not None:
        objectives, reach = store.survey(batch, step)
    elif store.objective.count is not None:
        objectives, reach = store.objective.count, store.layout
    if objectives is None:
        raise InvalidOption("memory_estimate needs a batch or objectives=S before the first step, found neither")
    sizes = _measure(store, positive_integer("objectives", objectives), reach)
    if store.one_row:
        rows, staging, peak = _with_one_row(store, estimator, form, sizes, supervised=supervised)
    else:
        rows, staging, peak = _with_all_rows(store, estimator, sizes, supervised=supervised)
    transient = peak - rows - staging
    found = MemoryEstimate(
        objectives=sizes.objectives,
        rows=rows,
        staging=staging,
        previous=sizes.point if estimator.two_point else 0,
        gradients=sizes.point,
        transient=transient + transient // _ALLOWANCE + _RANDOM_STATES,
    )
    entries = sizes.entries if rows == sizes.rows else store.objective.dimension
    return found if store.reducer is None else store.reducer.memory(found, entries)


def _measure(store: Store, objectives: int, reach: list[int] | None) -> _Sizes:
    parameters, storage, single = store.objective.parameters, store.storage, store.storage.for_one_row()
    counts = [objectives] * len(parameters) if reach is None else [mask.bit_count() for mask in reach]
    pairs = list(zip(counts, parameters, strict=True))
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    return _Sizes(
        objectives=objectives,
        point=sum(sizes),
        largest=max(sizes),
        entries=sum(count * parameter.numel() for count, parameter in pairs),
        rows=sum(count * parameter.numel() * storage.dtype_for(parameter).itemsize for count, parameter in pairs),
        one=sum(parameter.numel() * single.dtype_for(parameter).itemsize for parameter in parameters),
        gradients=sum(count * size for count, size in zip(counts, sizes, strict=True)),
    )


def _with_all_rows(store: Store, estimator: Estimator, sizes: _Sizes, *, supervised: bool) -> tuple[int, int, int]:
    """Return rows, staging, and the peak of a step beyond x_{t-1} and ``p.grad``, where all rows are kept."""
    staged, point = store.stages(sizes.objectives), sizes.point
    evaluation = _evaluation(store, sizes, staged=staged) + _probes(estimator) * sizes.one
    phases = list(_weighing(store, sizes))
    if estimator.two_point:
        evaluation += _aside(store, sizes) + (point if supervised else 0)  # for a step that a safeguard takes back
        phases.append(point + 2 * sizes.largest)  # x_t - x_{t-1} and its norm
        phases.append(3 * point + 2 * sizes.largest if staged else 0)  # the change of the direction
    staging = sizes.rows if staged and _remembers(estimator) else 0
    return sizes.rows, staging, sizes.rows + staging + max(evaluation, *phases)


def _with_one_row(
    store: Store, estimator: Estimator, form: LossForm | None, sizes: _Sizes, *, supervised: bool
) -> tuple[int, int, int]:
    """Return rows, staging, and the peak of a step beyond x_{t-1} and ``p.grad``, under kept or fixed weights."""
    remembered = sizes.one if _remembers(estimator) else 0
    spare = 0 if store.plain_row else sizes.one  # the memory of the last row, which the next one uses
    peaks = [sizes.one + remembered + _kept_step(store, estimator, sizes, supervised=supervised)]
    if form is None or form.sketched:
        rows, staging = sizes.one, remembered
    else:
        rows, staging = sizes.rows, remembered + spare
        peaks[0] += sizes.rows if store.stages(sizes.objectives) else 0  # a small model keeps their memory
        spread = sizes.one if _estimates_variance(estimator) else 0
        evaluation = _evaluation(store, sizes, staged=store.stages(sizes.objectives)) + spread
        gramian, direction = _weighing(store, sizes)
        if _remembers(estimator) and not store.plain_row:  # the row is a copy, of half-precision models a second sum
            direction += sizes.one * (2 if store.objective.narrow else 1)
        peaks.append(sizes.rows + staging + max(evaluation, gramian, direction))
    if form is not None and form.sketched:
        peaks.append(remembered + spare + _sketch(store, sizes))
    # where U is split over the processes, its part may be smaller than what a kept step needs
    return rows, staging, max(peaks) if not store.sharded else max(rows + staging + peaks[0], *peaks)


def _kept_step(store: Store, estimator: Estimator, sizes: _Sizes, *, supervised: bool) -> int:
    """Return what a step that differentiates one loss holds briefly, beyond its row and the one that is remembered."""
    objective, point, plain = store.objective, sizes.point, store.plain_row
    probes = _probes(estimator)
    if estimator.two_point and estimator.anchor is not None and not estimator.observes:
        probes = int(supervised or _estimates_variance(estimator))  # the change is the difference of two rows
    several = objective.micro_batch is not None or estimator.anchor is not None or _remembers(estimator)
    gradient = sizes.largest if several else 0  # if it is the first, it is the row
    if probes or not plain or not store.engine.accumulates(objective.parameters):
        gradient = point
    evaluation = gradient + probes * sizes.one
    if store.engine.name == "compiled":
        evaluation = max(evaluation, 3 * point)
    copied = sizes.largest if _remembers(estimator) else 0  # ``p.grad`` is a copy of a row that is remembered
    phases = [copied if plain else _direction(sizes)]
    if estimator.two_point:
        evaluation += _aside(store, sizes) + (point if supervised else 0)
        phases.append(_difference(store, sizes) if plain else 2 * _direction(sizes) + point)  # ||d_t - d_{t-1}||
    if estimator.anchor is not None:
        phases.append(point)  # a copy of the row is checked for NaN after every batch
    return max(evaluation, *phases)


def _sketch(store: Store, sizes: _Sizes) -> int:
    """Return the bytes of a sketch while the weights are solved for from it."""
    pairs = zip(store.objective.parameters, store.objective.decisive, strict=True)
    decisive = [parameter for parameter, counts in pairs if counts]
    item = torch.promote_types(decisive[0].dtype, torch.float32).itemsize
    entries = sizes.objectives * min(WIDTH, sum(parameter.numel() for parameter in decisive))
    evaluation = _evaluation(store, sizes, staged=False, sketched=True) + SIGNS  # they are drawn as bytes
    message = 0 if store.reducer is None else item * entries
    metric = 0 if store.metric is None else sizes.one + sizes.largest  # D^(-1/2), and one gradient times it
    return item * (entries + SIGNS) + metric + max(evaluation, 8 * entries_converted(entries), message)


def _weighing(store: Store, sizes: _Sizes) -> tuple[int, int]:
    """Return what the Gramian needs, and the direction with its norm."""
    chunk = 8 * entries_converted(sizes.entries)  # in float64
    metric = 0 if store.metric is None else 2 * sizes.one  # D^(-1/2) by parameter, and as one vector
    return chunk + metric, _direction(sizes) + min(chunk, 2 * sizes.point)


def _direction(sizes: _Sizes) -> int:
    """Return what a combination of rows needs: it is converted where the parameters are of another type."""
    return sizes.one + (sizes.point if sizes.one != sizes.point else 0)


def _evaluation(store: Store, sizes: _Sizes, *, staged: bool, sketched: bool = False) -> int:
    """Return the bytes of the gradients that the engine holds before they are added to the rows."""
    parameters, model = store.objective.parameters, store.engine.model
    name = store.engine.name
    name = choose(model, parameters, sizes.objectives) if name == "auto" else name
    rounding = 2 * sizes.largest if store.objective.narrow else 0  # one parameter's gradient in float32
    if store.storage.dtype is torch.bfloat16 and not sketched:
        rounding = 3 * sizes.largest  # stochastic: the sum in float32, and its bits in int64
    if name == "batched" or (name == "compiled" and not sketched):
        return sizes.objectives * sizes.point + max(sizes.largest, rounding)
    sharded = store.sharded and not sketched
    if staged and not sharded:
        return sizes.gradients
    streams = store.engine.accumulates(parameters) and not sharded
    return (sizes.largest if streams else 2 * sizes.point) + rounding


def _aside(store: Store, sizes: _Sizes) -> int:
    """Return the bytes of x_t while x_{t-1} is in the parameters."""
    return sizes.point if store.objective.dimension <= SMALL else sizes.largest


def _difference(store: Store, sizes: _Sizes) -> int:
    """Return what the distance of two vectors of the model's size needs."""
    return sizes.point if store.objective.dimension <= SMALL else sizes.largest


def _remembers(estimator: Estimator) -> bool:
    """Return whether the estimator keeps rows at some steps at least."""
    return estimator.remembers or (estimator.two_point and estimator.anchor is not None)


def _probes(estimator: Estimator) -> int:
    """Return how many vectors of the model's size a step may use to observe the gradients."""
    if estimator.observes:
        return 3 if estimator.two_point else 1
    return int(estimator.two_point or _estimates_variance(estimator))


def _estimates_variance(estimator: Estimator) -> bool:
    return estimator.anchor is not None and estimator.anchor.estimates_variance
