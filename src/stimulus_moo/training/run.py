"""One training run of ``fit``: its steps, its evaluation and the state that a checkpoint holds."""

import copy
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stimulus_moo._engine.counts import Counts
from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.objective import Losses, Objective
from stimulus_moo._engine.precompiled import original
from stimulus_moo._engine.storage import Storage
from stimulus_moo._engine.store import Store
from stimulus_moo.anchors import FullPass
from stimulus_moo.data.sources import BatchPlan
from stimulus_moo.distributed import find_group, make_reducer
from stimulus_moo.errors import InvalidOption, NonFiniteError, StateMismatch, StimulusWarning
from stimulus_moo.methods import Method, Settings
from stimulus_moo.metrics import Measurement, measure_with
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim import DoG, SecondMoment
from stimulus_moo.safeguard import Safeguard
from stimulus_moo.state import Stateful
from stimulus_moo.training import checkpoint as checkpoints
from stimulus_moo.training.description import (
    describe,
    describe_data,
    describe_optimizer,
    describe_scheduler,
    same,
    shortened,
)
from stimulus_moo.training.devices import on_device
from stimulus_moo.training.history import History, Result
from stimulus_moo.training.limits import COSTS
from stimulus_moo.training.progress import Progress
from stimulus_moo.training.random_clock import RandomClock
from stimulus_moo.training.state_checks import check_parts, check_seconds, measurement_of
from stimulus_moo.weightings.base import GramianToWeights
from stimulus_moo.weightings.metric import rule_of

logger = logging.getLogger("stimulus_moo")

_ENDS = ("tolerance", *COSTS, "callback")
_PLACES = ("source", "partition")  # settings that are not values


class Run:
    """A training run, with one ``advance`` per step and arguments as for ``fit``.

    ``method`` is built from ``settings``; ``engine_options`` are further arguments of ``MultiGradient``. If ``timed``,
    all processes count the seconds of the first, so that they end at the same step. ``bounds`` are those of a target
    that were given as shares of a loss's own best: the share, and the number that it led to.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        losses: Losses,
        settings: Settings,
        method: Method,
        *,
        guard: bool,
        timed: bool = False,
        reweigh: int | str | None = None,
        gramian: str = "exact",
        weighting: GramianToWeights | str | None = None,
        optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        mu: float | None = None,
        bounds: Mapping[int, tuple[float, float]] | None = None,
        evaluation: Iterable[Any] | None = None,
        counts: Counts | None = None,
        **engine_options: Any,
    ) -> None:
        self._shard: bool = engine_options.get("shard", False)
        self.group = find_group(engine_options.get("process_group"), self._shard)
        self.model, self.settings, self.method, self.evaluation = model, settings, method, evaluation
        self._timed = timed
        reweigh = method.reweigh if reweigh is None else reweigh
        make = (lambda parameters: method.step(parameters, settings)) if optimizer is None else optimizer
        self.optimizer = make(_trainable(model))
        self.multigradient = MultiGradient(
            model,
            on_device(model, losses),
            method.estimator(settings),
            method.weighting(settings) if weighting is None else weighting,
            reweigh=reweigh,
            metric=self.optimizer if method.metric and rule_of(self.optimizer) is not None else None,
            gramian=gramian,
            counts=counts,
            **engine_options,
        )
        parameters = self.multigradient.objective.model_parameters
        self.schedule = self._schedule(guard and scheduler is None and optimizer is None)
        if optimizer is None and method.metric and isinstance(self.optimizer, Adam):
            SecondMoment(self.optimizer, self.multigradient)
        if self.schedule is not None and scheduler is not None:
            raise InvalidOption("lr='auto' sets the learning rate itself, found a scheduler beside it; use one of them")
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self.multigradient.warn.given.add("guard")  # it is the default, whether or not the estimator has a use for it
        self.guard = Safeguard(self.optimizer, self.multigradient) if guard else None
        if mu is not None and settings.lr == "auto":
            raise InvalidOption("mu needs a number for lr, found 'auto'; pass a number, or mu=None")
        ticks = settings.stream("clock")
        self.clock = None if mu is None else RandomClock(parameters, mu=mu, lr=settings.rate, seed=ticks)
        self.history = History()
        self.batches = BatchPlan(settings.source, settings.batch_size, settings.seed, settings.partition)
        self.step = 0
        self.seconds = 0.0  # of all steps, without evaluations and callbacks
        self.measured: Measurement | None = None  # at the current step
        self.stopped: str | None = None  # the limit that ended the run
        self._last: tuple[Any] | None = None  # the batch of the last step, which may be None
        names = ("model", "optimizer", "scheduler", "multigradient", "clock", "guard", "schedule", "history")
        self._parts: dict[str, Any] = {name: getattr(self, name) for name in names}
        self._parts["model"] = original(model)  # whose names do not tell whether it was compiled
        #: what decides the path of the run, described before it begins
        self.described = self._describe(losses, guard=guard, reweigh=reweigh, gramian=gramian, mu=mu, counts=counts)
        self.described["bounds"] = None if bounds is None else json.dumps(bounds)

    def _schedule(self, limited: bool) -> DoG | None:
        """Return what sets the learning rate: for ``"auto"``, and to limit a number given for a method like auto."""
        if self.settings.lr == "auto":
            return DoG(self.optimizer, self.multigradient)
        if limited and self.multigradient.store.metric is not None:
            return DoG(self.optimizer, self.multigradient, lr=self.settings.rate)
        return None

    def _describe(self, losses: Losses, **options: Any) -> dict[str, Any]:
        objective, source = self.multigradient.objective, self.settings.source
        shared = [name for name, counts in zip(objective.names, objective.decisive, strict=True) if counts]
        return {
            "method": self.method.name,
            "n": len(source) if source.finite else None,
            **{name: _described(value) for name, value in vars(self.settings).items() if name not in _PLACES},
            **{name: _described(value) for name, value in options.items()},
            "data": describe_data(source),
            "losses": describe(losses),
            "weighting": describe(self.multigradient.weighting),
            "shared": "all" if all(objective.decisive) else describe(shared),
            "optimizer": describe_optimizer(self.optimizer),
            "scheduler": None if self.scheduler is None else describe_scheduler(self.scheduler),
        }

    def advance(self, done: float = 0.0, *, affordable: bool = True) -> None:
        """Take one step and record it.

        Args:
            done: the fraction of the run that is done, if known.
            affordable: whether the run has the budget for another anchor.
        """
        start = perf_counter()
        self.multigradient.estimator.affordable = affordable
        batch = self.batches.at(self.step)
        step = self.multigradient.backward(batch)
        self._last = (batch,)
        rate = math.nan
        if not step.skipped:
            if self.clock is not None:
                self.clock.update()
            if self.schedule is not None:
                self.schedule.step(done)
            rate = float(self.optimizer.param_groups[0]["lr"]) * (1.0 if self.guard is None else self.guard.lr_scale)
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
        losses, weights = step.losses.tolist(), step.weights.tolist()  # an accelerator has finished the step then
        spent = self.seconds + perf_counter() - start
        self.seconds = self.group.broadcast(lambda: spent) if self._timed else spent
        self.history.add(
            step=self.step,
            samples=self.multigradient.samples,
            gradients=self.multigradient.gradients,
            passes=self.multigradient.passes,
            seconds=self.seconds,
            losses=losses,
            weights=weights,
            sq_norm=step.sq_norm.item(),
            anchored=step.anchored,
            lr=rate,
        )
        self.history.names = step.names
        if step.skipped:
            self.history.skip()
        self.step += 1
        self.measured = None

    def progress(self) -> Progress:
        """Return what callbacks are told after a step."""
        record, names = self.history.last(), self.history.names
        return Progress(self.step, record, self.model, self.multigradient, self.optimizer, names)

    def settle(self) -> None:
        """Let the guard judge the last step: on the next batch, or for a stream on the last batch again."""
        stream = not self.settings.source.finite
        if self.guard is not None and self.step and (self._last is not None or not stream):
            before = self.guard.taken_back
            self.guard.settle(self._last[0] if stream and self._last else self.batches.at(self.step))
            if self.guard.taken_back > before:
                self.measured = None

    def evaluate(self, *, last: bool = False) -> Measurement | None:
        """Measure the model, once per step; None for a stream without evaluation data, or where it is not finite.

        On the way the guard may still take the step back. At the end, ``last``, NaN or infinity is raised or skipped,
        as ``on_nonfinite`` says.
        """
        if self.measured is not None:
            return self.measured
        batches: Iterable[Any]
        if self.evaluation is not None:
            batches = (batch for k, batch in enumerate(self.evaluation) if self.group.partition.takes(k))
        elif self.settings.source.finite:
            batches = FullPass(self.settings.source, self.settings.anchor_batch, self.group.partition)
        else:
            return None
        trained = self.multigradient.objective
        objective = Objective(trained.model, trained.losses, micro_batch=trained.micro_batch, counts=trained.counts)
        reducer = make_reducer(self.group, self._shard, Storage(), objective.placement)
        store = Store(objective, Engine("auto", objective.model, objective.placement), reducer=reducer)
        try:
            found = measure_with(store, batches, self.step)
        except NonFiniteError as error:
            if last and self.multigradient.policy.policy == "raise":
                raise
            logger.warning("not evaluated after %d steps: %s", self.step, error)
            return None
        self.measured, self.history.names = found, objective.loss_names or ()
        if len(self.history):
            self.history.evaluated(found.stationarity, found.losses)
        return found

    def result(self) -> Result:
        """Evaluate the model and return the result of the run."""
        found = self.evaluate(last=True)
        picked, picked_at = {}, None
        names = ("alone", "shortened", "taken_back")
        acted: dict[str, Any] = {name: getattr(self.guard, name, 0) for name in names}  # 0 without guard
        if self.clock is not None and self.clock.picked:
            picked = dict(zip(self.multigradient.objective.names, self.clock.picked, strict=True))
            picked_at = self.clock.picked_at
        return Result(
            model=self.model,
            method=self.method.name,
            history=self.history,
            steps=self.step,
            samples=self.multigradient.samples,
            gradients=self.multigradient.gradients,
            passes=self.multigradient.passes,
            seconds=self.seconds,
            losses=[] if found is None else found.losses,
            stationarity=math.nan if found is None else found.stationarity,
            stopped=self.stopped or "",
            skipped=self.multigradient.skipped,
            picked=picked,
            picked_at=picked_at,
            **acted,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that determines the rest of the run."""
        return {
            "settings": dict(self.described),
            "step": self.step,
            "seconds": self.seconds,
            "measured": None if self.measured is None else vars(self.measured).copy(),
            "stopped": self.stopped,
            **{name: None if part is None else part.state_dict() for name, part in self._parts.items()},
            "stream": self.settings.source.consumed,
            "random": checkpoints.random_states(self.group),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a checkpoint.

        Raises:
            StateMismatch: the checkpoint belongs to a run with other settings, which the message names.
        """
        for name, value in self.described.items():
            saved = state["settings"].get(name)
            if not same(saved, value):
                made, own = shortened(saved, value)
                if name == "losses":  # a mended loss is a reason to resume
                    message = f"the checkpoint was made with losses={made}, this run has {own}; continuing with these"
                    warnings.warn(message, StimulusWarning, stacklevel=4)
                    continue
                raise StateMismatch(
                    f"the checkpoint was made with {name}={made}, this run has {own}; resume with the same settings, "
                    "or use another folder"
                )
        check_parts(state, self.described, self._parts)
        check_seconds(state.get("seconds"))
        measured, stopped = measurement_of(state["measured"]), state["stopped"]
        if not isinstance(stopped, str | None) or stopped not in (None, *_ENDS):
            raise StateMismatch(f"the checkpoint's stopped must be None or one of {_ENDS}, found {stopped!r}")
        for name, part in self._parts.items():
            if (part is None) != (state[name] is None):
                found, option = "without" if state[name] is None else "with", "mu" if name == "clock" else name
                raise StateMismatch(f"the checkpoint was made {found} {option}; resume with the same arguments")
            if isinstance(part, Stateful):
                part.check_state(state[name])
        for name, part in self._parts.items():
            if part is not None:
                part.load_state_dict(state[name])
        self.measured, self.stopped = measured, stopped
        self.history.names = self.multigradient.objective.loss_names or ()
        self.settings.source.consumed, self.step = state["stream"], state["step"]
        self.seconds = state["seconds"]
        checkpoints.set_random_state(state["random"], self.group.rank)


def take_over(run: Run, state: dict[str, Any]) -> None:
    """Load a checkpoint into a run, completely or not at all.

    Raises:
        StateMismatch: the checkpoint does not fit; run and model are unchanged.
    """
    before = copy.deepcopy(run.state_dict())
    try:
        run.load_state_dict(state)
    except Exception as error:
        run.load_state_dict(before)
        if isinstance(error, StateMismatch):
            raise
        found = f"{type(error).__name__}: {error}"
        raise StateMismatch(f"the checkpoint does not fit this run ({found}); use another folder") from error


def _trainable(model: torch.nn.Module) -> list[Tensor]:
    """Return the trainable parameters; raise InvalidOption where there is nothing to train."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidOption(f"model must be a torch.nn.Module, found {type(model).__name__}")
    found: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not found:
        raise InvalidOption("model must have at least one parameter with requires_grad=True, found none")
    return found


def _described(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else describe(value)
