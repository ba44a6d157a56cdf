"""The moving parts of one training run of ``fit``: its step, its evaluation, and the state a checkpoint holds."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.objective import Losses, Objective
from stimulus_moo._engine.storage import Storage
from stimulus_moo._engine.store import Store
from stimulus_moo.anchors import FullPass
from stimulus_moo.data.batches import rebuild
from stimulus_moo.data.sources import BatchPlan
from stimulus_moo.distributed import find_group, make_reducer
from stimulus_moo.errors import InvalidOption, NonFiniteError, StateMismatch
from stimulus_moo.methods import Method, Settings
from stimulus_moo.metrics import Measurement, measure_with
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim import DoG
from stimulus_moo.safeguard import Safeguard
from stimulus_moo.training import checkpoint as checkpoints
from stimulus_moo.training.history import History
from stimulus_moo.training.random_clock import RandomClock
from stimulus_moo.training.result import Result
from stimulus_moo.weightings.base import GramianToWeights

logger = logging.getLogger("stimulus_moo")


class Run:
    """A training run: one ``advance`` per step; its state is what a checkpoint holds.

    Args:
        model, losses: as for ``fit``.
        settings, method: the row of the table and what it is built from.
        guard: attach a ``Safeguard``.
        weighting, optimizer, scheduler, mu, evaluation: as for ``fit``.
        engine_options: further arguments of ``MultiGradient``.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        losses: Losses,
        settings: Settings,
        method: Method,
        *,
        guard: bool,
        weighting: GramianToWeights | None = None,
        optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        mu: float | None = None,
        evaluation: Iterable[Any] | None = None,
        **engine_options: Any,
    ) -> None:
        self.group = find_group(engine_options.get("process_group"), engine_options.get("shard", False))
        self.model, self.losses, self.settings, self.method = model, losses, settings, method
        self.evaluation = evaluation
        self._shard = engine_options.get("shard", False)
        self.multigradient = MultiGradient(
            model,
            _on_device(model, losses),
            method.estimator(settings),
            method.weighting(settings) if weighting is None else weighting,
            **engine_options,
        )
        parameters = self.multigradient.objective.parameters
        self.optimizer = method.step(parameters, settings) if optimizer is None else optimizer(parameters)
        self.schedule = DoG(self.optimizer, self.multigradient) if settings.lr == "auto" else None
        if self.schedule is not None and scheduler is not None:
            raise InvalidOption("lr='auto' is a schedule of its own, found a scheduler beside it; give one of the two")
        self.scheduler = None if scheduler is None else scheduler(self.optimizer)
        self.guard = Safeguard(self.optimizer, self.multigradient) if guard else None
        if mu is not None and settings.lr == "auto":
            raise InvalidOption("the random clock of mu needs a number for lr, found 'auto'")
        self.clock = None if mu is None else RandomClock(parameters, mu=mu, lr=settings.rate, seed=settings.seed)
        self.history = History()
        self.batches = BatchPlan(settings.source, settings.batch_size, settings.seed, settings.partition)
        self.step = 0
        self._last: tuple[Any] | None = None  # the batch of the last step made here, which may be None
        self._measured: tuple[int, Measurement] | None = None

    def advance(self, done: float = 0.0) -> dict[str, Any]:
        """Take one step and record it; a step that is skipped moves nothing but on to the next batch.

        Args:
            done: the share of the run that lies behind, where its end is known.
        """
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
        self.history.add(
            step=self.step,
            samples=self.multigradient.samples,
            gradients=self.multigradient.gradients,
            losses=step.losses.tolist(),
            weights=step.weights.tolist(),
            sq_norm=step.sq_norm.item(),
            anchored=step.anchored,
            lr=rate,
        )
        if step.skipped:
            self.history.skip()
        self.step += 1
        return self.history.last()

    def settle(self) -> None:
        """Judge the last step, which no further one will; of a stream, on the last batch once more, if it is here."""
        stream = not self.settings.source.finite
        if self.guard is not None and self.step and (self._last is not None or not stream):
            before = self.guard.taken_back
            self.guard.settle(self._last[0] if stream and self._last else self.batches.at(self.step))
            if self.guard.taken_back > before:
                self._measured = None

    def evaluate(self) -> Measurement | None:
        """Measure the model where it stands, once per step; None for a stream without evaluation data.

        Where the evaluation data gives NaN or infinity and that is to be skipped, nothing was measured.
        """
        if self._measured is None or self._measured[0] != self.step:
            batches = self._evaluation_batches()
            if batches is None:
                return None
            objective = Objective(self.multigradient.objective.model, self.multigradient.objective.losses)
            reducer = make_reducer(self.group, self._shard, Storage())
            store = Store(objective, Engine("auto", objective.model), reducer=reducer)
            try:
                found = measure_with(store, batches, self.step)
            except NonFiniteError as error:
                if self.multigradient.policy.policy == "raise":
                    raise
                logger.warning("not evaluated after %d steps: %s", self.step, error)
                return None
            self._measured = self.step, found
            if len(self.history):
                self.history.evaluated(found.stationarity, found.losses)
        return self._measured[1]

    def _evaluation_batches(self) -> Iterable[Any] | None:
        """Return this process's share of the evaluation data."""
        if self.evaluation is not None:
            return (batch for k, batch in enumerate(self.evaluation) if self.group.partition.takes(k))
        if not self.settings.source.finite:
            return None
        return FullPass(self.settings.source, self.settings.anchor_batch, self.group.partition)

    def stationarity(self) -> float:
        """Return the stationarity if it was evaluated at this step, else infinity."""
        if self._measured is None or self._measured[0] != self.step:
            return math.inf
        return self._measured[1].stationarity

    def result(self, stopped: str) -> Result:
        """Evaluate at the end and gather everything."""
        found = self.evaluate()
        picked: dict[str, Tensor] = {}
        if self.clock is not None and self.clock.picked:
            picked = dict(zip(self.multigradient.objective.names, self.clock.picked, strict=True))
        return Result(
            model=self.model,
            method=self.method.name,
            history=self.history,
            steps=self.step,
            samples=self.multigradient.samples,
            gradients=self.multigradient.gradients,
            losses=[] if found is None else found.losses,
            stationarity=math.nan if found is None else found.stationarity,
            stopped=stopped,
            skipped=self.multigradient.skipped,
            picked=picked,
            picked_at=self.clock.picked_at if picked and self.clock is not None else None,
            alone=0 if self.guard is None else self.guard.alone,
            shortened=0 if self.guard is None else self.guard.shortened,
            taken_back=0 if self.guard is None else self.guard.taken_back,
        )

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings that decide the trajectory, those of them that are plain values."""
        plain = {k: v for k, v in vars(self.settings).items() if isinstance(v, bool | int | float | str)}
        size = len(self.settings.source) if self.settings.source.finite else None
        return {"method": self.method.name, "n": size, "guard": self.guard is not None, **plain}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the rest of the run."""
        return {
            "settings": self.settings_dict(),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "multigradient": self.multigradient.state_dict(),
            "clock": None if self.clock is None else self.clock.state_dict(),
            "guard": None if self.guard is None else self.guard.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "stream": self.settings.source.consumed,
            "history": self.history.state_dict(),
            "random": _streams(self.group.gather(checkpoints.random_state())),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint.

        Raises:
            StateMismatch: it belongs to a run with other settings, which the message names.
        """
        for name, value in self.settings_dict().items():
            if state["settings"].get(name) != value:
                raise StateMismatch(
                    f"the checkpoint was made with {name}={state['settings'].get(name)!r}, this run has {value!r}; "
                    "resume with the same settings, or use another folder"
                )
        if (state["clock"] is None) != (self.clock is None) or (state["scheduler"] is None) != (self.scheduler is None):
            raise StateMismatch("the checkpoint was made with another choice of mu or scheduler; resume with the same")
        self.multigradient.check_state(state["multigradient"])
        if self.guard is not None:
            self.guard.check_state(state["guard"])
        if self.schedule is not None:
            self.schedule.check_state(state["schedule"])
        self.history.load_state_dict(state["history"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.multigradient.load_state_dict(state["multigradient"])
        if self.clock is not None:
            self.clock.load_state_dict(state["clock"])
        if self.guard is not None:
            self.guard.load_state_dict(state["guard"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        self.settings.source.consumed = state["stream"]
        self.step = state["step"]
        checkpoints.set_random_state(_stream(state["random"], self.group.rank))


def take_over(run: Run, state: dict[str, Any]) -> None:
    """Load a checkpoint into a run, all of it or nothing.

    Raises:
        StateMismatch: it does not fit; run and model are as they were.
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


def _streams(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the random states of all processes as one: the first one's, and beside it the others'."""
    first, *others = states
    return {**first, "others": others}


def _stream(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return a process's random state; one that was not there when it was saved starts a stream of its own."""
    known: list[dict[str, Any]] = [state, *state.get("others", [])]
    if rank < len(known):
        return known[rank]
    generator = torch.Generator()
    generator.set_state(state["cpu"])
    seed = int(torch.randint(1 << 62, (), generator=generator)) + rank
    return {"cpu": generator.manual_seed(seed).get_state()}


def _on_device(model: torch.nn.Module, losses: Losses) -> Losses:
    if not isinstance(model, torch.nn.Module) or not callable(losses):
        return losses  # which are refused where they are used
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "cpu":
        return losses

    def moved(model: Any, batch: Any) -> Any:
        return losses(model, rebuild(batch, lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf))

    return moved
