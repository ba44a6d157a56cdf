"""The loop's door: one call takes a batch through objective -> estimator -> weighting and leaves d_t in p.grad."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine import store as snapshot
from stimulus_moo._engine.differentiation import ENGINES, Engine
from stimulus_moo._engine.interrupts import DeferredInterrupts, complete
from stimulus_moo._engine.memory import MemoryEstimate, estimate
from stimulus_moo._engine.nonfinite import Skips, check_direction
from stimulus_moo._engine.objective import Losses, Objective
from stimulus_moo._engine.observation import Observation, Probe, distance
from stimulus_moo._engine.replay import Snapshot, full_precision
from stimulus_moo._engine.rows import Storage
from stimulus_moo._engine.transaction import Account, Ledger
from stimulus_moo._engine.warnings import WarnOnce
from stimulus_moo.distributed import find_group, open_ledger, unwrapped
from stimulus_moo.errors import InvalidOption, ModelChanged, NonFiniteError, StateMismatch
from stimulus_moo.estimators import Estimator, Update
from stimulus_moo.options import choice, positive_integer
from stimulus_moo.state import Stateful
from stimulus_moo.weightings.base import Adapter, GramianToWeights, as_weighting, checked
from stimulus_moo.weightings.min_norm import MinNorm

logger = logging.getLogger("stimulus_moo")

#: what a saved state holds
_COUNTS = ("step", "samples", "gradients", "skipped", "skipped_in_a_row")
_ENTRIES = {
    *_COUNTS,
    *("kind", "version", "objectives", "engine", "rows", "previous", "layout", "estimator", "weighting"),
    *("weights", "sq_norm"),
}
_VERSION = 2

#: A step this many times as long as 1 / L is called too long. Gradient descent on a quadratic diverges from 2 on.
FAR_TOO_LONG = 10.0

#: how often a loop that nobody guards is looked at: at the first steps, and then at one in so many
_FIRST, _EVERY = 16, 16


@dataclass(frozen=True, eq=False)
class Step:
    """What one call of ``backward`` saw and chose.

    Attributes:
        losses: the S losses at x_t: over the batch, or over the anchor on an anchor step.
        weights: lambda_t, length S.
        sq_norm: ||d_t||^2 over all parameters, a 0-d tensor.
        anchored: whether this was an anchor step.
        skipped: whether it met NaN or infinity and was left out (``on_nonfinite="skip"``); losses, weights and sq_norm
            are then NaN.
    """

    losses: Tensor
    weights: Tensor
    sq_norm: Tensor
    anchored: bool
    skipped: bool = False


class MultiGradient(Stateful):
    """Multi-objective gradients for an existing training loop.

    ``backward(batch)`` takes the place of ``loss.backward()``: it overwrites every ``p.grad`` with that parameter's
    part of d_t = sum_s lambda_t^s u_t^s, so ``zero_grad`` is not needed, and any ``torch.optim`` optimizer, schedule or
    clipping works on it. Parameters that no loss reaches, or that are frozen, have ``p.grad`` None.

    Whatever is raised inside ``backward``, by the library, the losses, the data or the weighting, leaves the
    parameters, their gradients, buffers, the random state, the estimator and the counters as they were before the call.
    A Ctrl-C that comes while the finished step is being written waits until all of it is: that step counts as made.

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
        on_nonfinite: what happens where a loss, a gradient or the direction is NaN or infinite. ``"raise"``:
            ``NonFiniteError``. ``"skip"``: the call is logged and counted in ``skipped``, and otherwise did not happen,
            but for every ``p.grad``, which is None, so that any ``torch.optim`` optimizer leaves the parameters and its
            own state alone; the step returned has ``skipped=True``. After 10 in a row the next one raises.
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
        on_nonfinite: str = "raise",
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
        if estimator.observes and not self._ledger.splits:
            raise InvalidOption(
                f"{type(estimator).__name__} compares the two halves of a batch, which several processes that make one "
                "step do not in this version; take Recursive with a number as its period"
            )
        self.t = 0  # calls of backward since the estimator's start
        self.samples = 0  # samples drawn
        self.gradients = 0  # per-sample multi-gradient evaluations (IFO calls)
        #: what the last step saw on its way; None unless somebody watches, see ``watch``
        self.observation: Observation | None = None
        self._weights: Tensor | None = None  # lambda_{t-1}
        self._sq_norm: float | None = None  # ||d_{t-1}||^2
        self._watched = False
        self._hints = WarnOnce()
        self._skips = Skips(on_nonfinite)

    def backward(self, batch: Any = None) -> Step:
        """Estimate, weigh, and write d_t into every ``p.grad``.

        Args:
            batch: any nest of tensors (tuple, dict, dataclass). On an anchor step it is not used and not counted.

        Returns:
            The record of this step.

        Raises:
            InvalidBatch, InvalidLosses, InvalidWeights: something given does not fit; the message says what.
            NonFiniteError: a loss, a gradient or the direction is NaN or infinite, and is not to be skipped.
            ModelChanged: parameters were added, removed, frozen, cast or moved since the last call.
            DistributedError: the processes could not make this step together. What one of them raises on its own, all
                raise, and all are as before.
        """
        account = Account()
        try:
            return self.attempt(batch, account)
        except NonFiniteError as error:
            return self.skip(error, anchored=account.anchored)

    def attempt(
        self,
        batch: Any,
        account: Account,
        *,
        mend: Callable[[Update], Update] | None = None,
        judge: Callable[[Observation], None] | None = None,
        retries: int = 0,
    ) -> Step:
        """Make a step of ``backward`` that may still be refused; for ``Safeguard``.

        Args:
            batch: as for ``backward``.
            account: what the step costs and sees, also where it fails.
            mend: from the update that the estimator wants to the one that is made.
            judge: is told what was seen before anything is final; what it raises takes the step back.
            retries: how often this was tried before, for the observation.
        """
        self._check_model()
        guard = Snapshot(self.objective.model, self.objective.parameters)
        memory = self._engine.name, self.estimator.state_dict(), self.weighting.state_dict()
        t, mode = self.t, torch.is_grad_enabled()
        try:
            with torch.no_grad():
                moved = self._moved()
                update = self._wanted(self.t, moved, mend)
                if t and update.keep and self.estimator.remembers and self._ledger.rows is None:
                    # lost by an update that was to forget them: as at the first step
                    self.estimator.load_state_dict(memory[1])
                    update = self._wanted(0, moved, mend)
                account.anchored, account.paired = update.anchor is not None, bool(update.before)
                # An estimator may have drawn from the global random state: both points start from where it is now.
                replay = guard if guard.undrawn() else Snapshot(self.objective.model, self.objective.parameters)
                probe = self._probe(update)
                self._ledger.apply(update, batch, self.t, replay, account, probe)
                losses = account.losses
                assert losses is not None
                observation = self._observe(account, probe, moved, retries)
                if judge is not None:
                    judge(observation)
                with full_precision(self.objective.devices):
                    weights = checked(self.weighting(self._ledger.gramian(self.t)), len(losses))
                    if isinstance(self.weighting, Adapter):  # a rule of the user's, which may be random
                        weights = self._ledger.same(weights)
                    direction, sq_norm = self._ledger.pending.combine(weights)
                    check_direction(direction, sq_norm, self._ledger.pending, weights, self.t)
                if self.estimator.observes:
                    self.estimator.learn(observation)
                self.estimator.record(float(sq_norm), anchored=account.anchored)
                step = Step(losses, weights.to(losses, copy=True), sq_norm.to(losses), account.anchored)
            samples, gradients = self.samples + account.samples, self.gradients + account.gradients

            def finish() -> None:
                self._ledger.commit(remember_rows=self.estimator.remembers, remember_point=self.estimator.two_point)
                self._write(direction)
                self.objective.count = len(losses)
                self.t, self.samples, self.gradients = t + 1, samples, gradients
                self.observation = observation if self._watched else None
                self._weights, self._sq_norm = weights.detach().double().cpu().clone(), float(sq_norm)
                self._skips.made()

            complete(finish)
        except BaseException as error:
            torch.set_grad_enabled(mode)  # a signal may strike on the way out of a context
            if self.t > t:
                raise  # a signal that had to wait for the end of the step
            self._ledger.abandon(error)
            self._take_back(guard, *memory, account, error)
            raise
        if probe is not None and mend is None:  # no guard sees to it
            self._look(observation)
        return step

    def _wanted(self, t: int, moved: float | None, mend: Callable[[Update], Update] | None) -> Update:
        """Return what the estimator wants to do at step t, mended."""
        if moved is not None:
            self.estimator.prepare(moved)
        update = self.estimator.update(t)
        return update if mend is None else mend(update)

    def skip(self, error: NonFiniteError, *, anchored: bool) -> Step:
        """Return the record of a step that is left out; raise the error where ``on_nonfinite`` says so."""
        if not self._skips.take(error):
            raise error
        self._write([None] * len(self.objective.parameters))
        nothing = torch.full((self.objective.returned,), torch.nan)
        return Step(nothing, nothing.clone(), torch.tensor(torch.nan), anchored, skipped=True)

    @property
    def norm(self) -> float | None:
        """||d_t|| of the last step; None before the first."""
        return None if self._sq_norm is None else math.sqrt(self._sq_norm)

    @property
    def last_point(self) -> list[Tensor] | None:
        """The parameters' values at the last step, one tensor each, where the estimator keeps them."""
        return self._ledger.previous

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to add to; without them an estimator starts as at the first step."""
        return self._ledger.rows is not None

    @property
    def revocable(self) -> bool:
        """Whether a step that has been evaluated can still be refused by a judge and all is as before."""
        return self._ledger.revocable

    def watch(self) -> None:
        """Keep an ``Observation`` of every step in ``observation``, as ``Safeguard`` and ``DoG`` need.

        It costs no evaluations, and changes nothing.

        >>> import torch
        >>> from stimulus_moo import MultiGradient, Recursive
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(2, 2, bias=False), torch.randn(6, 2)
        >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Recursive([x], period=10))
        >>> mg.watch()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> for batch in x.split(2):
        ...     step = mg.backward(batch)
        ...     optimizer.step()
        >>> mg.observation.decrease > 0, mg.observation.smoothness > 0
        (True, True)
        """
        self._watched = True

    @property
    def engine(self) -> str:
        """How rows are differentiated; ``"auto"`` until the first step has shown how many objectives there are."""
        return self._engine.name

    @property
    def skipped(self) -> int:
        """How many calls met NaN or infinity and were left out.

        >>> import torch
        >>> from stimulus_moo import MiniBatch, MultiGradient
        >>> model = torch.nn.Linear(2, 2)
        >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), MiniBatch(), on_nonfinite="skip")
        >>> mg.backward(torch.full((4, 2), torch.nan)).skipped, mg.skipped, model.weight.grad
        (True, 1, None)
        """
        return self._skips.total

    def reset(self) -> None:
        """Start the estimator again from the model as it is now; counters and the weighting go on."""
        self._adopt()
        self.t = 0
        self._weights = self._sq_norm = None

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
        """Return everything that decides the future, as copies that load with ``torch.load(weights_only=True)``.

        Options given when the object was built, such as a period, beta or ``on_nonfinite``, are not part of it: where a
        state is loaded into an object with other options, those of that object hold from there on.
        """
        return {
            "kind": "MultiGradient",
            "version": _VERSION,
            "step": self.t,
            "samples": self.samples,
            "gradients": self.gradients,
            "skipped": self._skips.total,
            "skipped_in_a_row": self._skips.in_a_row,
            "objectives": self.objective.count,
            "engine": self.engine,
            "rows": self.rows(),
            "previous": snapshot.save_point(self._ledger),
            "layout": snapshot.save_layout(self._ledger),
            "estimator": self.estimator.state_dict(),
            "weighting": self.weighting.state_dict(),
            "weights": None if self._weights is None else self._weights.clone(),
            "sq_norm": self._sq_norm,
        }

    def check_state(self, state: Any, path: str = "MultiGradient") -> None:
        """Raise StateMismatch if ``state`` does not fit this object, naming the entry and the parameter."""
        if not isinstance(state, dict) or set(state) != _ENTRIES or state["kind"] != "MultiGradient":
            found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise StateMismatch(f"the state of {path} must be a dict with {sorted(_ENTRIES)}, found {found}")
        if state["version"] != _VERSION:
            raise StateMismatch(f"{path}.version is {state['version']!r}; this version of the library reads {_VERSION}")
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
        weights, sq_norm = state["weights"], state["sq_norm"]
        if weights is not None and (not isinstance(weights, Tensor) or weights.shape != (objectives,)):
            raise StateMismatch(f"{path}.weights must hold {objectives} numbers, found {weights!r}")
        if not isinstance(sq_norm, float | None):
            raise StateMismatch(f"{path}.sq_norm must be a number or None, found {sq_norm!r}")
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
        self._skips.total, self._skips.in_a_row = state["skipped"], state["skipped_in_a_row"]
        self.objective.count, self._engine.name = state["objectives"], state["engine"]
        self._weights = None if state["weights"] is None else state["weights"].detach().double().cpu().clone()
        self._sq_norm = state["sq_norm"]
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
        if self.estimator.finite_sum and "BatchNorm" not in self._hints:
            layers = self.objective.batch_norms()
            if layers:
                self._hints.tell(
                    "BatchNorm",
                    f"BatchNorm in training mode ties the samples of a batch together ({', '.join(layers)}), so the "
                    "loss is not a finite sum and the estimate is biased; use GroupNorm or LayerNorm, or .eval() these "
                    "layers; see docs/guides/batchnorm.md",
                    level=5,
                )

    def _moved(self) -> float | None:
        """Return ||x_t - x_{t-1}|| where somebody will ask for it."""
        if self._ledger.previous is None or not self._curious():
            return None
        return distance(self.objective.parameters, self._ledger.previous)

    def _curious(self) -> bool:
        """Tell whether this step is looked at: always if somebody watches, else now and then for too long a step.

        Several processes send nothing for the latter.
        """
        if self._watched or self.estimator.observes:
            return True
        return self._ledger.splits and "step" not in self._hints and (self.t < _FIRST or self.t % _EVERY == 1)

    def _probe(self, update: Update) -> Probe | None:
        if update.anchor is not None:
            wanted = update.anchor.estimates_variance
        else:
            wanted = update.halves or (bool(update.before) and self._curious())
        if not wanted:
            return None
        return Probe(self._weights, self.objective.parameters, halves=update.halves)

    def _observe(self, account: Account, probe: Probe | None, moved: float | None, retries: int) -> Observation:
        assert account.losses is not None
        probe = None if account.anchored else probe  # it saw single pairs of pieces there
        return Observation(
            step=self.t,
            samples=account.samples,
            gradients=account.gradients,
            anchored=account.anchored,
            losses=account.losses,
            retries=retries,
            before=account.before,
            weights=self._weights,
            sq_norm=self._sq_norm,
            moved=moved,
            change=None if probe is None else probe.change,
            change_variance=None if probe is None else probe.change_variance,
            variance=None if probe is None else probe.variance,
        )

    def _look(self, seen: Observation) -> None:
        """Warn, once, where the step just made is far longer than the smoothness seen on the way allows."""
        smoothness, rise = seen.smoothness, seen.decrease
        if not smoothness or not seen.sq_norm or seen.moved is None or rise is None:
            return
        taken = seen.moved / math.sqrt(seen.sq_norm)
        if taken * smoothness > FAR_TOO_LONG and rise < 0:
            self._hints.tell(
                "step",
                f"the step from {seen.step - 1} to {seen.step} was {taken:.3g} times the gradient, which is "
                f"{taken * smoothness:.0f} times 1/L for the smoothness L = {smoothness:.3g} seen on the way, and the "
                "loss rose; take a smaller learning rate, or let a guard see to it (guard=True in fit, which is the "
                "default, Safeguard in your own loop, no --no-guard on the command line); see docs/guides/step-size.md",
                level=5,
            )

    def _adopt(self) -> None:
        self.objective.adopt()
        self._ledger = self._open_ledger()

    def _open_ledger(self) -> Ledger:
        return open_ledger(self._group, self._shard, self.objective, self._engine, self._storage)

    def _take_back(
        self,
        guard: Snapshot,
        engine: str,
        estimator: dict[str, Any],
        weighting: dict[str, Any],
        account: Account,
        error: BaseException,
    ) -> None:
        try:
            account.gradients += self._ledger.roll_back()
        except BaseException as second:
            self.reset()
            error.add_note(f"the rows could not be restored ({second!r}): the estimator starts again at the next step")
        with DeferredInterrupts():
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
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidOption(f"rows_device must be a device such as 'cpu', found {device!r}") from error
