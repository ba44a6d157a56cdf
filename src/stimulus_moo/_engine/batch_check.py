"""Checks the first batch for mistakes in ``losses`` and anchors that would give wrong gradients without an error."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from stimulus_moo._engine.graphs import precision
from stimulus_moo._engine.interrupts import DeferredInterrupts
from stimulus_moo._engine.objective import Evaluated, Objective
from stimulus_moo.data.batches import leading_size, pick, rebuild, split, tensors
from stimulus_moo.errors import DOCS, NonFiniteError, StimulusError

if TYPE_CHECKING:
    from stimulus_moo.multigradient import MultiGradient

#: largest relative distance between the losses of a batch and the mean over its halves, by the precision of the losses
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4}
HALF_TOLERANCE = 5e-2

_PAGE = f"see {DOCS}guides/own-loop.html#the-first-step-is-checked"


class Finding(NamedTuple):
    """A probable mistake."""

    subject: str
    message: str


def check_batch(mg: MultiGradient, batch: Any) -> list[Finding]:
    """Return what is probably wrong; model, batch, random state and counters are as before.

    What fails in ``losses`` is left to the step, which reports it.
    """
    objective = mg.objective
    if isinstance(batch, Tensor) and batch.grad_fn is not None:
        text = f"backward takes the batch and evaluates losses itself, found the result of a computation. {_PAGE}"
        return [Finding("losses", text)]
    found = [*check_anchor(mg.estimator)]
    first = None if objective.is_empty(batch) else _first_piece(objective, batch)
    if first is None:
        return found
    with _unchanged(objective):
        copy = rebuild(first, lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf)
        versions = _versions(tensors(copy)), _versions(objective.parameters)
        buffers = _buffer_versions(objective.model)
        snapshot = objective.snapshot()
        whole = _evaluate(objective, copy)
        if whole is None or isinstance(whole, NonFiniteError):
            return found
        found += _in_place(copy, objective, versions)
        if mg.estimator.finite_sum:
            found += _moving_buffers(objective.model, buffers)
        matters = mg.estimator.finite_sum or objective.micro_batch is not None or mg.store.reducer is not None
        splits = objective.counts is None and objective.batch_size is None and not objective.compiled
        if matters and splits and snapshot.undrawn() and not objective.batch_norms():
            found += _halves(objective, first, whole)
    return found


def check_anchor(estimator: Any) -> Iterator[Finding]:
    """Find an anchor that leaves samples out."""
    loader = getattr(getattr(estimator, "anchor", None), "iterable", None)
    if not isinstance(loader, DataLoader) or not loader.drop_last or not hasattr(loader.dataset, "__len__"):
        return
    size, samples = loader.batch_size or 1, len(loader.dataset)
    if samples % size:
        yield Finding(
            "anchor",
            f"the anchor's DataLoader has drop_last=True and leaves out {samples % size} of {samples} samples, so the "
            f"anchor is not the full gradient; pass drop_last=False. {_PAGE}",
        )


@contextmanager
def _unchanged(objective: Objective) -> Iterator[None]:
    """Restore the random states, also those of Python and NumPy, and the buffers."""
    snapshot, python, numpy = objective.snapshot(), random.getstate(), np.random.get_state()  # noqa: NPY002
    returned, grad_mode = objective.returned, torch.is_grad_enabled()
    try:
        yield
    finally:
        with DeferredInterrupts():
            torch.set_grad_enabled(grad_mode)
            snapshot.restore()
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            objective.returned = returned


def _first_piece(objective: Objective, batch: Any) -> Any:
    """Return what the engine evaluates at once; None where there is nothing."""
    if batch is None:
        return None
    try:
        return batch if objective.micro_batch is None else next(split(batch, objective.micro_batch))
    except StimulusError:
        return None


def _evaluate(objective: Objective, piece: Any) -> Evaluated | NonFiniteError | None:
    counts = None if objective.counts is None else _counts(objective, piece)
    try:
        return objective.evaluate(piece, 0, counts)
    except NonFiniteError as error:
        return error
    except Exception:
        return None


def _counts(objective: Objective, piece: Any) -> list[float] | None:
    try:
        return objective.count_labels(piece)
    except Exception:
        return None


def _versions(found: Any) -> list[int]:
    """Return how often each tensor was written to; inference tensors cannot tell."""
    return [0 if tensor.is_inference() else tensor._version for tensor in found]


def _buffer_versions(model: torch.nn.Module) -> dict[str, int]:
    return {
        f"{name}.{key}".lstrip("."): buffer._version
        for name, module in model.named_modules()
        if not isinstance(module, _BatchNorm)
        for key, buffer in module._buffers.items()
        if buffer is not None and buffer.is_floating_point() and not buffer.is_inference()
    }


def _in_place(copy: Any, objective: Objective, versions: tuple[Sequence[int], Sequence[int]]) -> Iterator[Finding]:
    if _versions(tensors(copy)) != versions[0]:
        yield Finding(
            "batch",
            "losses changes the batch in place, so a second evaluation of the same batch sees other data and "
            f"differences are wrong; work on a copy, say x = x - mean instead of x -= mean. {_PAGE}",
        )
    changed = zip(objective.names, _versions(objective.parameters), versions[1], strict=True)
    if names := [name for name, now, before in changed if now != before]:
        yield Finding(
            "parameters",
            f"losses changes the parameter {names[0]} in place; only the optimizer may do that. {_PAGE}",
        )


def _moving_buffers(model: torch.nn.Module, before: dict[str, int]) -> Iterator[Finding]:
    now = _buffer_versions(model)
    if names := [name for name in before if name in now and now[name] != before[name]]:
        yield Finding(
            "buffers",
            f"a forward pass changes the buffer {names[0]}, so the losses depend on earlier batches and are not a "
            f"finite sum; update it outside the model, or call .eval() on that module. {_PAGE}",
        )


def _halves(objective: Objective, first: Any, whole: Evaluated) -> Iterator[Finding]:
    """Compare the losses of a batch with the mean over its two halves."""
    try:
        size = leading_size(first)
        middle = size // 2
        if middle == 0 or any(not tensor.dim() or tensor.shape[0] != size for tensor in tensors(first)):
            return
        parts = [pick(first, slice(0, middle), size), pick(first, slice(middle, size), size)]
    except Exception:
        return
    copies = [rebuild(p, lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf) for p in parts]
    halves = [_evaluate(objective, copy) for copy in copies]
    if any(isinstance(half, NonFiniteError) for half in halves):
        s = next(half.objective for half in halves if isinstance(half, NonFiniteError))
        yield Finding("mean", _not_a_mean(objective.label(s), "is NaN or infinite on one half of the batch"))
        return
    if not all(isinstance(half, Evaluated) and len(half.losses) == len(whole.losses) for half in halves):
        return
    one, other = (half.losses.double() for half in halves if isinstance(half, Evaluated))
    mean, values = (middle * one + (size - middle) * other) / size, whole.losses.double()
    scale = torch.stack([values.abs(), one.abs(), other.abs()]).amax(0)
    tolerance = TOLERANCE.get(precision(whole.graphs), HALF_TOLERANCE)
    wrong = ((values - mean).abs() > tolerance * scale).nonzero().flatten().tolist()
    if wrong:
        s = wrong[0]
        summed = abs(float(values[s] - one[s] - other[s])) <= tolerance * float(scale[s])
        problem = f"is {float(values[s]):.4g} on a batch and {float(mean[s]):.4g} on average over its halves"
        yield Finding("mean", _not_a_mean(objective.label(s), problem, summed=summed))


def _not_a_mean(label: str, problem: str, *, summed: bool = False) -> str:
    fix = "it is a sum: divide it by the number of samples" if summed else "for missing labels or padding pass counts="
    return (
        f"{label} {problem}, so it is not a mean over samples, and batches, anchors and pieces of micro_batch cannot "
        f"be combined; {fix}, or pass check=False if this is meant. {_PAGE}"
    )
