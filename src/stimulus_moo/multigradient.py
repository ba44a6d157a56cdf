"""The loop's door: one call takes a batch through objective -> estimator -> weighting and leaves d_t in p.grad."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stimulus_moo import snapshot
from stimulus_moo.distributed import find_group, open_ledger, unwrapped
from stimulus_moo.engines import ENGINES, Engine
from stimulus_moo.errors import InvalidOption, ModelChanged, StateMismatch, StimulusWarning
from stimulus_moo.estimators import Estimator
from stimulus_moo.guard import Guard, full_precision
from stimulus_moo.ledger import Ledger
from stimulus_moo.memory import MemoryEstimate, estimate
from stimulus_moo.objective import Losses, Objective
from stimulus_moo.options import choice, positive_integer
from stimulus_moo.rows import Storage
from stimulus_moo.state import Stateful
from stimulus_moo.weightings.base import Adapter, GramianToWeights, as_weighting, checked
from stimulus_moo.weightings.min_norm import MinNorm

logger = logging.getLogger("stimulus_moo")

#: what a saved state holds
_COUNTS = ("step", "samples", "gradients")
_ENTRIES = {*_COUNTS, "kind", "version", "objectives", "engine", "rows", "previous", "layout", "estimator", "weighting"}


@dataclass(frozen=True, eq=False)
class Step:
    """What one call of ``backward`` saw and chose.

    Attributes:
        losses: the S losses at x_t: over the batch, or over the anchor on an anchor step.
        weights: lambda_t, length S.
        sq_norm: ||d_t||^2 over all parameters, a 0-d tensor.
        anchored: whether this was an anchor step.
    """

    losses: Tensor
    weights: Tensor
    sq_norm: Tensor
    anchored: bool


class MultiGradient(Stateful):
    """Multi-objective gradients for an existing training loop.

    ``backward(batch)`` takes the place of ``loss.backward()``: it overwrites every ``p.grad`` with that parameter's
    part of d_t = sum_s lambda_t^s u_t^s, so ``zero_grad`` is not needed, and any ``torch.optim`` optimizer, schedule or
    clipping works on it. Parameters that no loss reaches, or that are frozen, have ``p.grad`` None.

    Whatever is raised inside ``backward``, by the library, the losses, the data or the weighting, leaves the
    parameters, their gradients, buffers, the random state, the estimator and the counters as they were before the call.

    Args:
        model: a ``torch.nn.Module``.
        losses: ``losses(model, batch)`` returns the S mean losses of a batch, as a tuple of 0-d tensors or as a 1-D
            tensor.
        estimator: how gradients are estimated, e.g. ``Recursive(anchor, period)``.
        weighting: from the S x S Gramian of the rows to S weights; default ``MinNorm()``; any callable will do, a
            TorchJD weighting for instance.
        shared: the parameters whose gradients decide the weights (the trunk of a multi-head model); default all.
        micro_batch: evaluate at most so many samples at once; the result is the same, memory does not grow with the
            batch.
        batch_size: a function from a batch to its size, where that is not the leading dimension of its first tensor.
        engine: how rows are differentiated; the results are the same up to rounding.
            ``"rowwise"``: one backward pass per objective, works with everything.
            ``"batched"``: all rows in one vectorised pass, faster for small models without convolutions.
            ``"compiled"``: both points and all rows in one function by ``torch.compile``, fastest for small models. It
            is used for batches of a shape only after it has been compiled for them, which takes several seconds, and
            has agreed with single rows.
            ``"auto"``: rowwise or batched, by the model's size and layers. An engine that cannot serve a model (random
            or stateful layers compiled, operations that do not vectorise, no compiler) gives way to rowwise, with one
            warning.
        rows_dtype: the type the rows U are kept in; default that of the parameters, float32 at the least.
            ``torch.bfloat16`` halves the memory; sums are then rounded at random, so that they are right on average.
        rows_device: where the rows are kept; default beside the parameters. ``"cpu"`` frees an accelerator's memory for
            the price of moving every gradient.
        process_group: the processes of ``torch.distributed`` that make every step together, each with its share of the
            batch and of the anchor; default all of them where ``init_process_group`` was called, else this process on
            its own. See ``docs/distributed.md``.
        shard: split U over these processes, which divides its memory by their number.

    Raises:
        InvalidOption: an argument cannot work; the message says which and why.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, Recursive
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(3, 2)
    >>> x, y = torch.randn(64, 3), torch.randn(64, 2)
    >>> def losses(model, batch):
    ...     x, y = batch
    ...     return (model(x) - y).square().mean(0)
    >>> mg = MultiGradient(model, losses, Recursive([(x, y)], period=8))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for batch in zip(x.split(8), y.split(8)):
    ...     step = mg.backward(batch)
    ...     optimizer.step()
    >>> mg.samples, mg.gradients
    (120, 176)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        losses: Losses,
        estimator: Estimator,
        weighting: GramianToWeights | None = None,
        *,
        shared: Iterable[Tensor] | None = None,
        micro_batch: int | None = None,
        batch_size: Callable[[Any], int] | None = None,
        engine: str = "auto",
        process_group: Any = None,
        shard: bool = False,
        rows_dtype: torch.dtype | None = None,
        rows_device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(estimator, Estimator):
            raise InvalidOption(
                f"estimator must be an Estimator such as Recursive(anchor, period) or MiniBatch(), found {estimator!r}"
            )
        self._group = find_group(process_group, shard)
        self._shard = shard
        self.estimator = estimator
        self.weighting = as_weighting(MinNorm() if weighting is None else weighting)
        inner = unwrapped(model)
        self.objective = Objective(inner, losses, shared=shared, micro_batch=micro_batch, batch_size=batch_size)
        self._engine = Engine(choice("engine", engine, ENGINES), model)
        if rows_dtype not in (None, torch.bfloat16, torch.float32, torch.float64):
            raise InvalidOption(
                f"rows_dtype must be None, torch.bfloat16, torch.float32 or torch.float64, found {rows_dtype!r}"
            )
        self._storage = Storage(rows_dtype, _device(rows_device))
        self._ledger = self._open_ledger()
        self.t = 0  # calls of backward since the estimator's start
        self.samples = 0  # samples drawn
        self.gradients = 0  # per-sample multi-gradient evaluations (IFO calls)
        self._warned = False

    def backward(self, batch: Any = None) -> Step:
        """Estimate, weigh, and write d_t into every ``p.grad``.

        Args:
            batch: any nest of tensors (tuple, dict, dataclass). On an anchor step it is not used and not counted.

        Returns:
            The record of this step.

        Raises:
            InvalidBatch, InvalidLosses, InvalidWeights: something given does not fit; the message says what.
            NonFiniteError: a loss or a gradient is NaN or infinite.
            ModelChanged: parameters were added, removed, frozen, cast or moved since the last call.
            DistributedError: the processes could not make this step together. What one of them raises on its own, all
                raise, and all are as before.
        """
        self._check_model()
        guard = Guard(self.objective.model, self.objective.parameters)
        memory = self._engine.name, self.estimator.state_dict(), self.weighting.state_dict()
        try:
            with torch.no_grad():
                update = self.estimator.update(self.t)
                anchored = update.anchor is not None
                # An estimator may have drawn from the global random state: both points start from where it is now.
                replay = guard if guard.undrawn() else Guard(self.objective.model, self.objective.parameters)
                account = self._ledger.apply(update, batch, self.t, replay)
                losses = account.losses
                assert losses is not None
                with full_precision(self.objective.devices):
                    weights = checked(self.weighting(self._ledger.gramian(self.t)), len(losses))
                    if isinstance(self.weighting, Adapter):  # a rule of the user's, which may be random
                        weights = self._ledger.same(weights)
                    direction, sq_norm = self._ledger.pending.combine(weights)
                self.estimator.record(float(sq_norm), anchored=anchored)
        except BaseException as error:
            self._ledger.abandon(error)
            self._take_back(guard, *memory, error)
            raise
        self._ledger.commit(remember_rows=self.estimator.remembers, remember_point=self.estimator.two_point)
        self._write(direction)
        self.objective.count = len(losses)
        self.t += 1
        self.samples += account.samples
        self.gradients += account.gradients
        return Step(losses, weights.to(losses, copy=True), sq_norm.to(losses), anchored)

    @property
    def engine(self) -> str:
        """How rows are differentiated; ``"auto"`` until the first step has shown how many objectives there are."""
        return self._engine.name

    def reset(self) -> None:
        """Start the estimator again from the model as it is now; counters and the weighting go on."""
        self._adopt()
        self.t = 0

    def rows(self) -> list[dict[str, Tensor]]:
        """Return copies of the rows u_t^s that the estimator keeps, by parameter name; empty where it keeps none."""
        return snapshot.save_rows(self._ledger)

    def memory_estimate(self, batch: Any = None, *, objectives: int | None = None) -> MemoryEstimate:
        """Say what will be held in memory beyond the model, the optimizer and the activations.

        Args:
            batch: the losses are evaluated on it, without a trace, to find S and which parameters each loss reaches.
            objectives: S, if no batch is given and no step was made; then every objective counts as reaching every
                parameter, which is the most it can be.

        >>> import torch
        >>> from stimulus_moo import MiniBatch, MultiGradient
        >>> model = torch.nn.Linear(1000, 1000)
        >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0)[:4], MiniBatch())
        >>> print(mg.memory_estimate(torch.randn(8, 1000)))
        26.7 MiB for 4 objectives: rows 15.3, staging 0.0, previous point 0.0, gradients 7.6, transient 3.8
        """
        reach: list[int] | None = None
        if batch is not None:
            objectives, reach = self._ledger.survey(batch, self.t)
        elif self.objective.count is not None:
            objectives, reach = self.objective.count, self._ledger.layout
        if objectives is None:
            raise InvalidOption("memory_estimate needs a batch or objectives=S before the first step, found neither")
        found = estimate(
            self.objective.parameters,
            positive_integer("objectives", objectives),
            reach,
            self._storage,
            staged=self._ledger.stages(objectives),
            remembers=self.estimator.remembers,
            two_point=self.estimator.two_point,
        )
        return self._ledger.adjusted(found)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the future, as copies that load with ``torch.load(weights_only=True)``."""
        return {
            "kind": "MultiGradient",
            "version": 1,
            "step": self.t,
            "samples": self.samples,
            "gradients": self.gradients,
            "objectives": self.objective.count,
            "engine": self.engine,
            "rows": self.rows(),
            "previous": snapshot.save_point(self._ledger),
            "layout": snapshot.save_layout(self._ledger),
            "estimator": self.estimator.state_dict(),
            "weighting": self.weighting.state_dict(),
        }

    def check_state(self, state: Any, path: str = "MultiGradient") -> None:
        """Raise StateMismatch if ``state`` does not fit this object, naming the entry and the parameter."""
        if not isinstance(state, dict) or set(state) != _ENTRIES or state["kind"] != "MultiGradient":
            found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise StateMismatch(f"the state of {path} must be a dict with {sorted(_ENTRIES)}, found {found}")
        if state["version"] != 1:
            raise StateMismatch(f"{path}.version is {state['version']!r}; this version of the library reads 1")
        if state["engine"] not in ENGINES:
            raise StateMismatch(f"{path}.engine is {state['engine']!r}, not one of {ENGINES}")
        for name in _COUNTS:
            if not isinstance(state[name], int) or state[name] < 0:
                raise StateMismatch(f"{path}.{name} must be a count, found {state[name]!r}")
        count, objectives = self.objective.count, state["objectives"]
        if objectives is not None and (not isinstance(objectives, int) or objectives < 1):
            raise StateMismatch(f"{path}.objectives must be a positive integer or None, found {objectives!r}")
        if count is not None and objectives not in (None, count):
            raise StateMismatch(f"{path}.objectives is {objectives}, this model has {count}")
        snapshot.check(self._ledger, objectives, state["rows"], state["previous"], state["layout"], path)
        self.estimator.check_state(state["estimator"], f"{path}.estimator")
        self.weighting.check_state(state["weighting"], f"{path}.weighting")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state, also into a fresh object; the model's parameters are not part of it.

        Raises:
            StateMismatch: it belongs to another model, estimator or weighting; nothing has changed then.
        """
        if not self.objective.unchanged():
            self._adopt()
        self.check_state(state)
        snapshot.load(self._ledger, state["rows"], state["previous"], state["layout"])
        self.t, self.samples, self.gradients = state["step"], state["samples"], state["gradients"]
        self.objective.count, self._engine.name = state["objectives"], state["engine"]
        self.estimator.load_state_dict(state["estimator"])
        self.weighting.load_state_dict(state["weighting"])

    def _check_model(self) -> None:
        if not self.objective.unchanged():
            if self.t and self.estimator.remembers:
                raise ModelChanged(
                    "the model's trainable parameters are not those of the last step (added, removed, frozen, cast or "
                    "moved); call reset() to start the estimator again from the model as it is now"
                )
            self._adopt()
        if self.estimator.finite_sum and not self._warned:
            layers = self.objective.batch_norms()
            if layers:
                self._warned = True
                warnings.warn(
                    f"BatchNorm in training mode ties the samples of a batch together ({', '.join(layers)}), so the "
                    "loss is not a finite sum and the estimate is biased; use GroupNorm or LayerNorm, or .eval() these "
                    "layers",
                    StimulusWarning,
                    stacklevel=3,
                )

    def _adopt(self) -> None:
        self.objective.adopt()
        self._ledger = self._open_ledger()

    def _open_ledger(self) -> Ledger:
        return open_ledger(self._group, self._shard, self.objective, self._engine, self._storage)

    def _take_back(
        self, guard: Guard, engine: str, estimator: dict[str, Any], weighting: dict[str, Any], error: BaseException
    ) -> None:
        try:
            self._ledger.roll_back()
        except BaseException as second:
            self.reset()
            error.add_note(f"the rows could not be restored ({second!r}): the estimator starts again at the next step")
        guard.restore()
        self._engine.name = engine
        self.estimator.load_state_dict(estimator)
        self.weighting.load_state_dict(weighting)

    def _write(self, direction: list[Tensor | None]) -> None:
        for parameter in self.objective.frozen:
            parameter.grad = None
        for parameter, gradient in zip(self.objective.parameters, direction, strict=True):
            parameter.grad = gradient


def _device(device: torch.device | str | None) -> torch.device | None:
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidOption(f"rows_device must be a device such as 'cpu', found {device!r}") from error
