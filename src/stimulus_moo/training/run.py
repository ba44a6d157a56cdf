"""The moving parts of one training run of ``fit``: its step, its batches, and the state a checkpoint holds."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.objective import Losses, Objective
from stimulus_moo.anchors import FullPass
from stimulus_moo.data.batches import pick, rebuild
from stimulus_moo.data.sources import Stream
from stimulus_moo.distributed import find_group, open_ledger
from stimulus_moo.errors import InvalidOption, NonFiniteError, StateMismatch
from stimulus_moo.methods import Method, Settings
from stimulus_moo.metrics import Measurement, measure_with
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.optim import DoG
from stimulus_moo.safeguard import Safeguard
from stimulus_moo.training import checkpoint as checkpoints
from stimulus_moo.training.history import History, Result
from stimulus_moo.training.random_clock import RandomClock
from stimulus_moo.weightings.base import GramianToWeights

logger = logging.getLogger("stimulus_moo")


class Run:
    """A model on its way: one ``advance`` per step; its state is what a checkpoint holds."""

    def __init__(
        self,
        model: torch.nn.Module,
        losses: Losses,
        settings: Settings,
        method: Method,
        weighting: GramianToWeights | None,
        optimizer: Callable[[Iterable[Tensor]], Optimizer] | None,
        scheduler: Callable[[Optimizer], LRScheduler] | None,
        shared: Iterable[Tensor] | None,
        micro_batch: int | None,
        engine: str,
        mu: float | None,
        guard: bool,
        on_nonfinite: str = "raise",
        process_group: Any = None,
        shard: bool = False,
    ) -> None:
        self.group, self.shard = find_group(process_group, shard), shard
        self.model, self.losses, self.settings, self.method = model, losses, settings, method
        self.evaluation: Iterable[Any] | None = None
        self.multigradient = MultiGradient(
            model,
            _on_device(model, losses),
            method.estimator(settings),
            method.weighting(settings) if weighting is None else weighting,
            shared=shared,
            micro_batch=micro_batch,
            engine=engine,
            on_nonfinite=on_nonfinite,
            process_group=process_group,
            shard=shard,
        )
        self.on_nonfinite = on_nonfinite
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
        self.batches = Batches(settings)
        self.step = 0
        self._last: tuple[Any] | None = None  # the batch of the last step made here, which may be None
        self._measured: tuple[int, Measurement] | None = None

    def advance(self, done: float = 0.0) -> dict[str, Any]:
        """Take one step and record it; a step that is skipped moves nothing but on to the next batch.

        Args:
            done: the share of the run that lies behind, where its end is known.
        """
        batch = self.batches.at(self.step)
        step = (self.guard or self.multigradient).backward(batch)
        self._last = (batch,)
        rate = math.nan
        if not step.skipped:
            if self.clock is not None:
                self.clock.update()
            if self.schedule is not None:
                self.schedule.step(done)
            rate = float(self.optimizer.param_groups[0]["lr"]) * (1.0 if self.guard is None else self.guard.share)
            (self.guard or self.optimizer).step()
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
        stream = isinstance(self.settings.source, Stream)
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
            ledger = open_ledger(self.group, self.shard, objective, Engine("auto", objective.model))
            try:
                found = measure_with(ledger, batches, self.step)
            except NonFiniteError as error:
                if self.on_nonfinite == "raise":
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
            return (batch for k, batch in enumerate(self.evaluation) if self.group.share.takes(k))
        if isinstance(self.settings.source, Stream):
            return None
        return FullPass(self.settings.source, self.settings.anchor_batch, self.group.share)

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
        size = None if isinstance(self.settings.source, Stream) else len(self.settings.source)
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
            "stream": self.batches.consumed,
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
        self.batches.consumed = state["stream"]
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


class Batches:
    """The batch of step k as a function of the seed and k alone, so that a resumed run sees the same batches.

    Every process has its part of the same batch, which may be none of it: then ``at`` returns None. A stream is read in
    full by each.
    """

    def __init__(self, settings: Settings) -> None:
        self.source, self.size, self.seed = settings.source, settings.batch_size, settings.seed
        self.part = settings.share.part(self.size)  # which samples of every batch are this process's
        self._next = -1  # the step whose batch comes next
        self._coming: Iterator[Any] = iter(())

    def at(self, step: int) -> Any:
        """Return the batch of a step."""
        empty = self.part.start == self.part.stop
        if isinstance(self.source, Stream):
            batch = self.source.take(self.size)
            return None if empty else batch if self.part == slice(0, self.size) else pick(batch, self.part, self.size)
        if empty:
            return None
        if step != self._next:
            self._coming = self.source.follow(self._plan(step))
        self._next = -1  # where an iterator that raises stands is unknown
        batch = next(self._coming)
        self._next = step + 1
        return batch

    def _plan(self, step: int) -> Iterator[Tensor]:
        """Yield the indices of the batches from a step on, for ever."""
        assert not isinstance(self.source, Stream)
        size = len(self.source)
        epoch, slot = divmod(step, size // self.size)
        while True:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % (1 << 64))
            order = torch.randperm(size, generator=generator)
            for indices in order[slot * self.size : size // self.size * self.size].split(self.size):
                yield indices[self.part]
            epoch, slot = epoch + 1, 0

    @property
    def consumed(self) -> int:
        """How far a stream has been read."""
        return self.source.consumed if isinstance(self.source, Stream) else 0

    @consumed.setter
    def consumed(self, count: int) -> None:
        if isinstance(self.source, Stream):
            self.source.consumed = count


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
