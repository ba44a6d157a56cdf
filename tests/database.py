"""The database of the tests: every method, estimator, weighting and engine as data, and two problems to run them on.

A new row of ``stimulus_moo.METHODS``, a new public estimator or weighting and a new engine each need an entry here:
``check_complete`` fails without it. The entries are crossed with the properties of ``tests/properties.py`` in
``tests/test_twins.py`` and ``tests/test_properties.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import isabstract
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import stimulus_moo
from stimulus_moo import (
    Adaptive,
    AdaptiveBatch,
    Averaged,
    Balanced,
    Bounded,
    Estimator,
    Filtered,
    Fixed,
    Full,
    MiniBatch,
    MinNorm,
    MultiGradient,
    Page,
    ProjectedDescent,
    Ray,
    Recursive,
    Smoothed,
    Storm,
    Tracking,
    Weighting,
)
from stimulus_moo.data.random_streams import stream_seed
from stimulus_moo.data.sources import as_source
from stimulus_moo.methods import Settings
from tests.harness import cut, data, two_heads
from tests.reference import kept, twins
from tests.reference.problems import NonconvexSum

#: Private names that the tests read or replace.
STAGED_ENTRIES = "stimulus_moo._engine.store.STAGED_ENTRIES"  # rows above this size are updated in place
BACKEND = "stimulus_moo._engine.compiled.BACKEND"  # what torch.compile uses
ENGINE_NAMES = "stimulus_moo._engine.differentiation.ENGINES"

STEPS = 200
LR = 0.1
BATCH = 8
PERIOD = 8
MOMENTUM = 0.5
OBJECTIVES = (0, 1, 2)  # both problems have three


# Problems


class Point(nn.Module):
    """A model that is one vector x."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.as_tensor(x, dtype=torch.float64).clone())


class TorchProblem:
    """The torch side of ``NonconvexSum``: the same per-sample losses through autograd, nothing shared with the twin.

    ``order`` permutes the objectives, or selects some of them.
    """

    def __init__(self, order: Sequence[int] = OBJECTIVES, batch_size: int = BATCH) -> None:
        self.numpy = NonconvexSum()
        self.order = list(order)
        self.columns = (
            torch.tensor(self.numpy.features).transpose(0, 1).contiguous()[:, self.order],
            torch.tensor(self.numpy.targets).T.contiguous()[:, self.order],
        )
        self.start = np.random.default_rng(1).standard_normal(self.numpy.dimension)
        draw = np.random.default_rng(2)
        self.batches = [draw.choice(self.numpy.n, batch_size, replace=False) for _ in range(STEPS)]

    def model(self) -> Point:
        return Point(self.start)

    def losses(self, model: Point, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, targets = batch
        values = torch.tanh(features @ model.x)
        penalty = self.numpy.regularisation * (model.x**2 / (1 + model.x**2)).sum()
        return 0.5 * (values - targets).square().mean(0) + penalty

    def batch(self, t: int) -> tuple[Tensor, ...]:
        return tuple(column[torch.as_tensor(self.batches[t])] for column in self.columns)

    def drawer(self, seed: int = stream_seed(0, "anchor")) -> Callable[[int], np.ndarray]:
        """The index draw of AdaptiveBatch, so that the twin sees the same anchors."""
        generator = torch.Generator().manual_seed(seed)
        return lambda size: torch.randperm(self.numpy.n, generator=generator)[:size].numpy()

    def coin(self, seed: int = stream_seed(0, "coin")) -> Callable[[], float]:
        """The coin of Page, so that the twin anchors at the same steps."""
        generator = torch.Generator().manual_seed(seed)
        return lambda: torch.rand((), generator=generator).item()


COLUMNS = data(24)
BATCHES = cut(COLUMNS, 6)
ANCHOR = cut(COLUMNS, 10)  # ragged: 10, 10, 4


class TwoHeadsProblem:
    """A trunk and two heads, on 24 samples in batches of 6: a loss for each head, and one for both."""

    def __init__(self, order: Sequence[int] = OBJECTIVES) -> None:
        self.order = list(order)

    def model(self) -> nn.Module:
        return two_heads()

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        left, right = model(batch[0])
        pairs = (left, batch[1][:, 0]), (right, batch[1][:, 1]), (left, right)
        return tuple((pairs[s][0] - pairs[s][1]).square().mean() for s in self.order)

    def batch(self, t: int) -> tuple[Tensor, Tensor]:
        return BATCHES[t % len(BATCHES)]


@dataclass(frozen=True, eq=False)
class Parts:
    """What a training loop consists of."""

    estimator: Estimator
    weighting: Any
    optimizer: torch.optim.Optimizer


# Methods


@dataclass(frozen=True, eq=False)
class MethodInfo:
    """One row of the table of methods.

    Attributes:
        name: in ``stimulus_moo.METHODS``.
        twin: the literal numpy version, of ``tests/reference/twins.py``.
        options: of ``Settings``, beyond step size, momentum, batch and period.
        twin_options: the same for the twin.
        draws: what the twin must draw exactly as the library does, by the twin's argument: a function of the problem.
        per_objective: the options that hold one number per objective.
        symmetric: permuting the objectives permutes the weights.
        compares_halves: the method cuts batches in two.
        telescopes: an inner step adds the difference of two points and nothing else.
    """

    name: str
    twin: Callable[..., twins.Trajectory]
    options: Mapping[str, Any] = field(default_factory=dict)
    twin_options: Mapping[str, Any] = field(default_factory=dict)
    draws: Mapping[str, Callable[[TorchProblem], Any]] = field(default_factory=dict)
    per_objective: tuple[str, ...] = ()
    symmetric: bool = True
    compares_halves: bool = False
    telescopes: bool = False

    problem = TorchProblem
    reweigh: ClassVar[Any] = 1
    gramian: ClassVar[str] = "exact"
    short = PERIOD + 3  # steps that meet two anchors, and inner steps after each

    def parts(self, problem: Any, model: nn.Module, **changes: Any) -> Parts:
        """Build the row from its settings."""
        options: dict[str, Any] = dict(
            lr=LR, momentum=MOMENTUM, batch_size=BATCH, period=PERIOD, anchor_batch=40, **self.options
        )
        for name in self.per_objective:
            options[name] = [options[name][s] for s in problem.order]
        settings = Settings(source=as_source(problem.columns), **{**options, **changes})
        method = stimulus_moo.METHODS[self.name]
        step = method.step(model.parameters(), settings)
        return Parts(method.estimator(settings), method.weighting(settings), step)


ADAPTIVE = {"sigma2": 0.5, "epsilon": 0.02, "c_gamma": 8.0, "c_epsilon": 1.0}
MOCO = {"beta": 0.3, "gamma": 0.1, "rho": 0.01}
WEIGHTS = {"weights": [0.2, 0.3, 0.5]}
_PERIOD, _HEAVY, _ODDS = {"period": PERIOD}, {"momentum": MOMENTUM}, {"probability": 0.15}
_DRAW, _COIN = {"draw": TorchProblem.drawer}, {"coin": TorchProblem.coin}

METHODS: dict[str, MethodInfo] = {
    info.name: info
    for info in (
        MethodInfo("mgd", twins.mgd),
        MethodInfo("smgd", twins.smgd),
        MethodInfo("moco", twins.moco, MOCO, MOCO),
        MethodInfo("moco+", twins.moco_plus, MOCO, MOCO),
        MethodInfo("cr-mogm", twins.cr_mogm, {"alpha": 0.7}, {"alpha": 0.7}),
        MethodInfo("stimulus", twins.stimulus, {}, _PERIOD, telescopes=True),
        MethodInfo("stimulus-m", twins.stimulus_m, {}, _PERIOD | _HEAVY, telescopes=True),
        MethodInfo("stimulus+", twins.stimulus_plus, ADAPTIVE, _PERIOD | ADAPTIVE, _DRAW, telescopes=True),
        MethodInfo("stimulus-m+", twins.stimulus_m_plus, ADAPTIVE, _PERIOD | _HEAVY | ADAPTIVE, _DRAW, telescopes=True),
        MethodInfo("auto", twins.auto),
        MethodInfo("stimulus-adam", twins.stimulus_adam, {}, _PERIOD, telescopes=True),
        MethodInfo("page-moo", twins.page_moo, _ODDS, _ODDS, _COIN, telescopes=True),
        MethodInfo("page-moo-m", twins.page_moo_m, {}, _HEAVY | {"probability": 8 / 68}, _COIN, telescopes=True),
        MethodInfo("filtered", twins.filtered, compares_halves=True),
        MethodInfo("filtered-m", twins.filtered_m, {}, _HEAVY, compares_halves=True),
        MethodInfo(
            "vr-scalarisation",
            twins.vr_scalarisation,
            WEIGHTS,
            _PERIOD | WEIGHTS,
            per_objective=("weights",),
            telescopes=True,
        ),
        MethodInfo("scalarisation", twins.scalarisation, WEIGHTS, WEIGHTS, per_objective=("weights",)),
        MethodInfo("scalarisation-adam", twins.scalarisation_adam, WEIGHTS, WEIGHTS, per_objective=("weights",)),
    )
}


# Kept weights


@dataclass(frozen=True, eq=False)
class KeptInfo(MethodInfo):
    """A row of the table of methods whose weights are kept between solves; its twin is of ``tests/reference/kept.py``.

    Attributes:
        reweigh, gramian: of MultiGradient.
    """

    reweigh: Any = 3  # type: ignore[misc]
    gramian: str = "exact"  # type: ignore[misc]


def _later(k: int) -> float:
    """A schedule of the smoothed weights; k counts the solves."""
    return k / (k + 2)


_EVERY, _LATER = {"every": 3}, {"alpha": _later}

KEPT: dict[str, KeptInfo] = {
    f"{info.name}, {info.reweigh}": info
    for info in (
        KeptInfo("smgd", kept.smgd, {}, _EVERY),
        KeptInfo("mgd", kept.mgd, {}, _EVERY),
        KeptInfo("cr-mogm", kept.cr_mogm, _LATER, _EVERY | _LATER),
        KeptInfo("moco", kept.moco, MOCO, _EVERY | MOCO),
        KeptInfo("moco+", kept.moco_plus, MOCO, _EVERY | MOCO),
        KeptInfo("stimulus", kept.stimulus, {}, _PERIOD, reweigh="anchor"),
        KeptInfo("stimulus-m", kept.stimulus, {}, _PERIOD | _HEAVY, reweigh="anchor"),
        KeptInfo("stimulus+", kept.stimulus_plus, ADAPTIVE, _PERIOD | ADAPTIVE, _DRAW, reweigh="anchor"),
        KeptInfo("stimulus-m+", kept.stimulus_plus, ADAPTIVE, _PERIOD | _HEAVY | ADAPTIVE, _DRAW, reweigh="anchor"),
        KeptInfo("page-moo", kept.page_moo, _ODDS, _ODDS, _COIN, reweigh="anchor"),
        KeptInfo(
            "vr-scalarisation",
            kept.vr_scalarisation,
            WEIGHTS,
            _PERIOD | WEIGHTS,
            per_objective=("weights",),
            reweigh=1,
        ),
        KeptInfo("scalarisation", kept.scalarisation, WEIGHTS, WEIGHTS, per_objective=("weights",), reweigh=1),
    )
}


# Estimators


@dataclass(frozen=True, eq=False)
class EstimatorInfo:
    """One way to build an estimator, for ``TwoHeadsProblem``.

    Attributes:
        build: a fresh one.
        points: at how many points an inner step may evaluate its batch.
        anchor: the most samples of an anchor, and all of them where it is exact; 0 where there is none.
        exact: an anchor takes all samples.
        counts: samples and gradients after six steps, where they are known beforehand.
        pairs: crossed with every weighting that has ``pairs``.
        remembers: the rows are needed again, so a changed model is refused.
        finite_sum: the rule is biased under BatchNorm in training mode, and says so.
        telescopes: an inner step adds the difference of two points and nothing else.
        compares_halves: the rule cuts batches in two.
    """

    name: str
    build: Callable[[], Estimator]
    points: tuple[int, ...] = (1,)
    anchor: int = 0
    exact: bool = True
    counts: tuple[int, int] | None = None
    pairs: bool = False
    remembers: bool = True
    finite_sum: bool = True
    telescopes: bool = False
    compares_halves: bool = False
    symmetric: bool = True

    problem = TwoHeadsProblem
    short = 7

    def parts(self, problem: Any, model: nn.Module) -> Parts:
        return Parts(self.build(), MinNorm(), torch.optim.SGD(model.parameters(), lr=0.05))


def _adaptive(**options: Any) -> AdaptiveBatch:
    """An anchor of 8 to 24 samples that estimates its variance."""
    return AdaptiveBatch(COLUMNS, **{"epsilon": 0.1, "micro_batch": 8, **options})


def _falling(t: int) -> float:
    return 0.5 / (t + 1)


def _soon(anchor: Any = None) -> Adaptive:
    """An adaptive rule that takes losses for stalled after two steps."""
    rule = Adaptive(anchor)
    rule.stalled = partial(_two_steps, rule)  # type: ignore[method-assign]
    return rule


def _two_steps(rule: Adaptive) -> bool:
    return rule.count >= 2


def _recursive(name: str, build: Callable[[], Estimator], **known: Any) -> EstimatorInfo:
    return EstimatorInfo(name, build, points=(2,), anchor=24, telescopes=True, **known)


ESTIMATORS: dict[str, EstimatorInfo] = {
    info.name: info
    for info in (
        EstimatorInfo("full", lambda: Full(ANCHOR), anchor=24, counts=(6 * 24, 6 * 24), remembers=False, pairs=True),
        EstimatorInfo("full, adaptive", lambda: Full(_adaptive()), anchor=24, exact=False, remembers=False),
        EstimatorInfo("mini-batch", MiniBatch, counts=(6 * 6, 6 * 6), remembers=False, finite_sum=False, pairs=True),
        _recursive("recursive", lambda: Recursive(ANCHOR, 3), counts=(2 * 24 + 4 * 6, 2 * 24 + 4 * 12), pairs=True),
        _recursive("recursive, period 1", lambda: Recursive(ANCHOR, 1), counts=(6 * 24, 6 * 24)),
        _recursive("recursive, adaptive", lambda: Recursive(_adaptive(), 3), exact=False, pairs=True),
        _recursive(
            "recursive, momentum", lambda: Recursive(_adaptive(sigma2=1.0, momentum=0.5), 3), exact=False, pairs=True
        ),
        _recursive("recursive, auto", lambda: Recursive(ANCHOR, "auto"), compares_halves=True, pairs=True),
        _recursive(
            "recursive, auto, adaptive", lambda: Recursive(_adaptive(), "auto"), exact=False, compares_halves=True
        ),
        _recursive("page", lambda: Page(ANCHOR, 0.4)),
        _recursive("page, never", lambda: Page(ANCHOR, 0.0), counts=(24 + 5 * 6, 24 + 5 * 12)),
        _recursive("page, always", lambda: Page(ANCHOR, 1.0), counts=(6 * 24, 6 * 24)),
        _recursive("page, adaptive", lambda: Page(_adaptive(), 0.4), exact=False, pairs=True),
        EstimatorInfo("tracking", lambda: Tracking(0.3), counts=(6 * 6, 6 * 6), finite_sum=False, pairs=True),
        EstimatorInfo("storm", lambda: Storm(0.3), points=(1, 2), counts=(6 * 6, 6 + 5 * 12)),
        EstimatorInfo(
            "storm, schedule", lambda: Storm(_falling), points=(1, 2), counts=(6 * 6, 6 + 5 * 12), pairs=True
        ),
        EstimatorInfo("storm, beta 0", lambda: Storm(0.0), points=(1, 2), counts=(36, 6 + 5 * 12), telescopes=True),
        EstimatorInfo(
            "storm, forgets",  # beta = 1 at steps 3 and 6: the last point is not evaluated there
            lambda: Storm(lambda t: 1.0 if t % 3 == 0 else 0.2),
            points=(1, 2),
            counts=(6 * 6, 2 * 6 + 4 * 12),
        ),
        EstimatorInfo("adaptive", lambda: Adaptive(ANCHOR), counts=(6 * 6, 6 * 6), remembers=False, pairs=True),
        EstimatorInfo(
            "adaptive, stalled",  # anchors at steps 2 and 5
            lambda: _soon(ANCHOR),
            points=(1, 2),
            anchor=24,
            counts=(4 * 6 + 2 * 24, 2 * 6 + 2 * 12 + 2 * 24),
        ),
        EstimatorInfo("adaptive, stream", _soon, points=(1, 2), counts=(6 * 6, 3 * 6 + 3 * 12)),
        EstimatorInfo("filtered", lambda: Filtered(probe=2), points=(1, 2), compares_halves=True, pairs=True),
    )
}


# Weightings


@dataclass(frozen=True, eq=False)
class WeightingInfo:
    """One way to build a weighting, for ``TwoHeadsProblem``.

    Attributes:
        build: a fresh one, for the objectives in this order.
        simplex: its weights are non-negative and sum to one.
        stateful: its weights depend on the calls before.
        symmetric: permuting the objectives permutes the weights.
        pairs: crossed with every estimator that has ``pairs``.
        needs: a package that must be installed.
    """

    name: str
    build: Callable[[Sequence[int]], Any]
    simplex: bool = True
    stateful: bool = False
    symmetric: bool = True
    pairs: bool = False
    needs: str | None = None

    problem = TwoHeadsProblem
    short = 7

    def parts(self, problem: Any, model: nn.Module) -> Parts:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return Parts(Recursive(ANCHOR, 3), self.build(problem.order), optimizer)


class Memory(nn.Module):
    """A weighting of somebody else's: a module with a buffer that is empty at first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", None)

    def forward(self, gramian: Tensor) -> Tensor:
        new = MinNorm()(gramian)
        self.last = new if self.last is None else 0.5 * (self.last + new)
        return self.last


def inverse_lengths(gramian: Tensor) -> Tensor:
    """A plain function: the shorter a row, the larger its weight."""
    weights = 1 / (1 + gramian.diagonal())
    return weights / weights.sum()


def _of(numbers: Sequence[float], order: Sequence[int]) -> list[float]:
    return [numbers[s] for s in order]


def _torchjd(build: Callable[[Any], Any]) -> Callable[[Sequence[int]], Any]:
    return lambda order: build(import_module("torchjd.aggregation"))


_PREFERENCE, _FIXED = (1.0, 2.0, 0.5), (0.3, 0.5, 0.7)
_JD = {"simplex": False, "needs": "torchjd"}

WEIGHTINGS: dict[str, WeightingInfo] = {
    info.name: info
    for info in (
        WeightingInfo("min-norm", lambda order: MinNorm(), pairs=True),
        WeightingInfo("min-norm, preference", lambda order: MinNorm(_of(_PREFERENCE, order))),
        WeightingInfo("min-norm, normalise", lambda order: MinNorm(normalise=True)),
        WeightingInfo("balanced", lambda order: Balanced(), simplex=False),
        WeightingInfo("balanced, memory", lambda order: Balanced(0.7), simplex=False, stateful=True, pairs=True),
        WeightingInfo("smoothed", lambda order: Smoothed(MinNorm(), 0.9), stateful=True),
        WeightingInfo(
            "smoothed, schedule", lambda order: Smoothed(MinNorm(), lambda t: t / (t + 1)), stateful=True, pairs=True
        ),
        WeightingInfo("smoothed projected", lambda order: Smoothed(ProjectedDescent(0.1), 0.5), stateful=True),
        WeightingInfo("averaged", lambda order: Averaged(MinNorm(), 0.7), stateful=True, pairs=True),
        WeightingInfo("projected", lambda order: ProjectedDescent(0.1, 0.01), stateful=True),
        WeightingInfo(
            "projected, schedule", lambda order: ProjectedDescent(lambda t: 0.1 / (t + 1)), stateful=True, pairs=True
        ),
        WeightingInfo("projected, softmax", lambda order: ProjectedDescent(0.1, projection="softmax"), stateful=True),
        WeightingInfo(
            "projected, normalise", lambda order: ProjectedDescent(0.1, normalise=True), simplex=False, stateful=True
        ),
        WeightingInfo("ray", lambda order: Ray(_of(_PREFERENCE, order)), simplex=False, pairs=True),
        WeightingInfo(
            "averaged ray", lambda order: Averaged(Ray(_of(_PREFERENCE, order)), 0.7), simplex=False, stateful=True
        ),
        WeightingInfo("bounded", lambda order: Bounded({order.index(0): 0.3, order.index(2): 0.2}), pairs=True),
        WeightingInfo("fixed", lambda order: Fixed(_of(_FIXED, order)), simplex=False, pairs=True),
        WeightingInfo("fixed, equal", lambda order: Fixed()),
        WeightingInfo("function", lambda order: inverse_lengths),
        WeightingInfo("module", lambda order: Memory(), stateful=True, pairs=True),
        WeightingInfo("smoothed module", lambda order: Smoothed(Memory(), 0.5), stateful=True, pairs=True),
        WeightingInfo("UPGrad", _torchjd(lambda jd: jd.UPGradWeighting()), **_JD),
        WeightingInfo(
            "CR-MOGM(UPGrad)", _torchjd(lambda jd: jd.CRMOGMWeighting(jd.UPGradWeighting())), stateful=True, **_JD
        ),
        # GradVac takes the objectives in a random order, MGDA stops before it has converged
        WeightingInfo("GradVac", _torchjd(lambda jd: jd.GradVacWeighting()), stateful=True, symmetric=False, **_JD),
        WeightingInfo("MGDA", _torchjd(lambda jd: jd.MGDAWeighting()), symmetric=False, **_JD),
    )
    if info.needs is None or find_spec(info.needs)
}


# Engines


@dataclass(frozen=True, eq=False)
class EngineInfo:
    """One way to differentiate and to store rows.

    Attributes:
        option: ``engine=`` of MultiGradient.
        in_place: the rows are updated in place, as those of large models are.
    """

    name: str
    option: str
    in_place: bool = False

    @contextmanager
    def used(self) -> Iterator[str]:
        """Let models of any size be handled so; the value is ``engine=``.

        What the compiler is given is the same whatever it makes of it, so ``aot_eager`` stands in for C++;
        ``tests/_engine/test_differentiation.py`` compiles one model in earnest.
        """
        changes = {BACKEND: "aot_eager"} if self.option == "compiled" else {}
        if self.in_place:
            changes[STAGED_ENTRIES] = 0
        with replaced(changes):
            yield self.option
        if self.option == "compiled":
            torch._dynamo.reset()


@contextmanager
def replaced(changes: Mapping[str, Any]) -> Iterator[None]:
    """Set module attributes, given by their full names, and set them back at the end."""
    places = [
        (import_module(name.rpartition(".")[0]), name.rpartition(".")[2], value) for name, value in changes.items()
    ]
    before = [getattr(module, name) for module, name, _ in places]
    try:
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        for (module, name, _), value in zip(places, before, strict=True):
            setattr(module, name, value)


ENGINES: dict[str, EngineInfo] = {
    info.name: info
    for info in (
        EngineInfo("auto", "auto"),
        EngineInfo("rowwise", "rowwise"),
        EngineInfo("rowwise, in place", "rowwise", in_place=True),
        EngineInfo("batched", "batched"),
        EngineInfo("batched, in place", "batched", in_place=True),
        EngineInfo("compiled", "compiled"),
        EngineInfo("compiled, in place", "compiled", in_place=True),
    )
}

Info = MethodInfo | EstimatorInfo | WeightingInfo

#: everything that trains, for the properties that hold for all of it
SUBJECTS: dict[str, Info] = {
    f"{kind} {name}": info
    for kind, table in (("method", METHODS), ("estimator", ESTIMATORS), ("weighting", WEIGHTINGS))
    for name, info in table.items()
}


def check_complete() -> None:
    """Fail unless every method, public estimator, public weighting and engine has an entry, and no other has."""
    rows, entries = set(stimulus_moo.METHODS), set(METHODS)
    assert rows == entries, f"methods without an entry: {rows - entries}; entries without a method: {entries - rows}"
    for kind, built in (
        (Estimator, [info.build() for info in ESTIMATORS.values()]),
        (Weighting, [info.build(OBJECTIVES) for info in WEIGHTINGS.values()]),
    ):
        public = [getattr(stimulus_moo, name) for name in stimulus_moo.__all__]
        wanted = {part for part in public if isinstance(part, type) and issubclass(part, kind) and not isabstract(part)}
        found = {type(part) for part in built if isinstance(part, kind)}
        assert found == wanted, f"{kind.__name__} without an entry: {wanted - found}; not public: {found - wanted}"
    module, _, name = ENGINE_NAMES.rpartition(".")
    engines, options = set(getattr(import_module(module), name)), {info.option for info in ENGINES.values()}
    assert engines == options, f"engines without an entry: {engines - options}; not an engine: {options - engines}"


check_complete()


# Runs


class Run:
    """A method, estimator or weighting of the database in a training loop on its problem.

    Args:
        info: the entry.
        order: of the objectives.
        losses: from the problem's losses to those that are used.
        change: is called with the model before anything else is built.
        weighting: builds one in place of the entry's own.
        engine, micro_batch, on_nonfinite: of MultiGradient.
        settings: changes to the method's settings.
    """

    def __init__(
        self,
        info: Info,
        *,
        order: Sequence[int] = OBJECTIVES,
        losses: Callable[[Any], Any] | None = None,
        change: Callable[[nn.Module], None] | None = None,
        weighting: Callable[[], Any] | None = None,
        engine: str = "auto",
        micro_batch: int | None = None,
        on_nonfinite: str = "raise",
        **settings: Any,
    ) -> None:
        self.problem = info.problem(order)
        self.model: Any = self.problem.model()
        if change is not None:
            change(self.model)
        parts = info.parts(self.problem, self.model, **settings)
        used = self.problem.losses if losses is None else losses(self.problem.losses)
        chosen = parts.weighting if weighting is None else weighting()
        options: dict[str, Any] = {"engine": engine, "micro_batch": micro_batch, "on_nonfinite": on_nonfinite}
        options |= {name: getattr(info, name) for name in ("reweigh", "gramian") if hasattr(info, name)}
        self.multigradient = MultiGradient(self.model, used, parts.estimator, chosen, **options)
        self.optimizer = parts.optimizer
        self.x = [self.flat()]
        self.steps: list[Any] = []

    def step(self, batch: Any = None) -> Any:
        """Make one step, with the problem's own batch unless another is given; a skipped one is not recorded.

        The random state depends on t alone, so an interrupted run meets what a straight one does.
        """
        t = len(self.steps)
        torch.manual_seed(t)
        step = self.multigradient.backward(self.problem.batch(t) if batch is None else batch)
        self.optimizer.step()
        if not step.skipped:
            self.steps.append(step)
            self.x.append(self.flat())
        return step

    def run(self, steps: int) -> Run:
        for _ in range(steps):
            self.step()
        return self

    @property
    def path(self) -> np.ndarray:
        """x_0 to x_T, one row each."""
        return np.array(self.x)

    def state(self) -> dict[str, Any]:
        """Everything that decides the future."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "multigradient": self.multigradient.state_dict(),
        }

    def resume(self, state: dict[str, Any], other: Run) -> Run:
        """Take over what another run has saved, and its record of the past."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.multigradient.load_state_dict(state["multigradient"])
        self.x, self.steps = list(other.x), list(other.steps)
        return self

    def flat(self) -> np.ndarray:
        """All parameters as one vector."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).numpy().copy()
