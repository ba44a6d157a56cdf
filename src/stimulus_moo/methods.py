"""The table of methods as data: each is an estimator, a weighting and a step, and adding one is adding a row."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch.optim import Optimizer

from stimulus_moo.anchors import AdaptiveBatch, Anchor, FullPass
from stimulus_moo.data.partition import ALL, Partition
from stimulus_moo.data.sources import Source
from stimulus_moo.errors import InvalidOption
from stimulus_moo.estimators import Estimator, Filtered, Full, MiniBatch, Page, Recursive, Storm, Tracking
from stimulus_moo.optim import HeavyBall
from stimulus_moo.options import Schedule
from stimulus_moo.weightings import Fixed, MinNorm, ProjectedDescent, Smoothed, Weighting


class MethodOptions(TypedDict, total=False):
    """What some methods can be told beyond step size, momentum, batch and period; defaults are those of Settings."""

    epsilon: float | str
    sigma2: float | str
    c_gamma: float
    c_epsilon: float
    alpha: Schedule
    beta: Schedule
    gamma: Schedule
    rho: float
    probability: Schedule | None
    weights: Sequence[float] | None


@dataclass(frozen=True)
class Settings:
    """Everything a row of the table is built from."""

    source: Source
    lr: float | str
    momentum: float
    batch_size: int
    period: int | str
    anchor_batch: int = 1024
    seed: int = 0
    epsilon: float | str = 1e-3  # STIMULUS+: the accuracy aimed at
    sigma2: float | str = "auto"  # STIMULUS+: variance of one sample's gradient
    c_gamma: float = 8.0  # STIMULUS+
    c_epsilon: float = 1.0  # STIMULUS+
    alpha: Schedule = 0.9  # CR-MOGM: weight of the last lambda
    beta: Schedule = 0.5  # MoCo, MoCo+: weight of the new gradient
    gamma: Schedule = 0.1  # MoCo, MoCo+: step size of lambda
    rho: float = 0.0  # MoCo, MoCo+: regularisation of lambda
    probability: Schedule | None = None  # PAGE-MOO: of an anchor; None: batch_size / (n + batch_size)
    weights: Sequence[float] | None = None  # scalarisation: None: 1/S each
    partition: Partition = ALL  # the part of every batch and pass that belongs to this process

    @property
    def rate(self) -> float:
        """The step size an optimizer is built with; ``"auto"`` sets it before the first step."""
        return 1.0 if isinstance(self.lr, str) else self.lr

    def anchor(self) -> Iterable[Any]:
        """Return the pass over all data."""
        if not self.source.finite:
            raise InvalidOption("this method needs a data set with a length, found a stream; use one of the + variants")
        return FullPass(self.source, self.anchor_batch, self.partition)

    def adaptive(self, momentum: float = 0.0) -> Anchor:
        """Return the adaptive draw."""
        return AdaptiveBatch(
            self.source,
            epsilon=self.epsilon,
            sigma2=self.sigma2,
            c_gamma=self.c_gamma,
            c_epsilon=self.c_epsilon,
            momentum=momentum,
            micro_batch=self.anchor_batch,
            seed=self.seed,
        )

    def odds(self) -> Schedule:
        """Return the probability of an anchor."""
        if self.probability is not None:
            return self.probability
        size = len(self.source) if self.source.finite else self.batch_size
        return self.batch_size / (size + self.batch_size)


def sgd(parameters: Any, s: Settings) -> Optimizer:
    """x_{t+1} = x_t - eta d_t."""
    return torch.optim.SGD(parameters, lr=s.rate)


def heavy_ball(parameters: Any, s: Settings) -> Optimizer:
    """x_{t+1} = x_t - eta d_t + alpha (x_t - x_{t-1})."""
    return HeavyBall(parameters, lr=s.rate, momentum=s.momentum)


def adam(parameters: Any, s: Settings) -> Optimizer:
    """Adam on d_t."""
    return torch.optim.Adam(parameters, lr=s.rate)


@dataclass(frozen=True)
class Method:
    """One row: how its estimator, its weighting and its step are built from the settings.

    ``takes_auto_lr`` is False where the step is not the learning rate times the gradient, as ``lr="auto"`` needs it.
    """

    name: str
    title: str
    estimator: Callable[[Settings], Estimator]
    weighting: Callable[[Settings], Weighting]
    step: Callable[[Any, Settings], Optimizer]
    takes_auto_lr: bool = True


_TABLE = (
    Method("mgd", "MGD", lambda s: Full(s.anchor()), lambda s: MinNorm(), sgd),
    Method("smgd", "SMGD", lambda s: MiniBatch(), lambda s: MinNorm(), sgd),
    Method("moco", "MoCo", lambda s: Tracking(s.beta), lambda s: ProjectedDescent(s.gamma, s.rho), sgd),
    Method("moco+", "MoCo+", lambda s: Storm(s.beta), lambda s: ProjectedDescent(s.gamma, s.rho), sgd),
    Method("cr-mogm", "CR-MOGM", lambda s: MiniBatch(), lambda s: Smoothed(MinNorm(), s.alpha), sgd),
    Method("stimulus", "STIMULUS", lambda s: Recursive(s.anchor(), s.period), lambda s: MinNorm(), sgd),
    Method("stimulus-m", "STIMULUS-M", lambda s: Recursive(s.anchor(), s.period), lambda s: MinNorm(), heavy_ball),
    Method("stimulus+", "STIMULUS+", lambda s: Recursive(s.adaptive(), s.period), lambda s: MinNorm(), sgd),
    Method(
        "stimulus-m+",
        "STIMULUS-M+",
        lambda s: Recursive(s.adaptive(s.momentum), s.period),
        lambda s: MinNorm(),
        heavy_ball,
    ),
    # beyond the paper
    Method("page-moo", "PAGE-MOO", lambda s: Page(s.anchor(), s.odds(), seed=s.seed), lambda s: MinNorm(), sgd),
    Method(
        "page-moo-m", "PAGE-MOO-M", lambda s: Page(s.anchor(), s.odds(), seed=s.seed), lambda s: MinNorm(), heavy_ball
    ),
    Method("filtered", "Filtered STIMULUS", lambda s: Filtered(), lambda s: MinNorm(), sgd),
    Method("filtered-m", "Filtered STIMULUS-M", lambda s: Filtered(), lambda s: MinNorm(), heavy_ball),
    Method(
        "vr-scalarisation",
        "VR scalarisation",
        lambda s: Recursive(s.anchor(), s.period),
        lambda s: Fixed(s.weights),
        sgd,
    ),
    Method("scalarisation", "Scalarisation, SGD", lambda s: MiniBatch(), lambda s: Fixed(s.weights), sgd),
    Method(
        "scalarisation-adam",
        "Scalarisation, Adam",
        lambda s: MiniBatch(),
        lambda s: Fixed(s.weights),
        adam,
        takes_auto_lr=False,
    ),
)

#: Every method by name, in the order of the table.
METHODS: dict[str, Method] = {method.name: method for method in _TABLE}

#: What ``method="auto"`` takes: docs/hands-free.md says why.
AUTO_METHOD = "filtered-m"

#: The nine methods the paper names.
PAPER_METHODS = tuple(METHODS)[:9]


def find_method(name: str) -> Method:
    """Return a method by name, in any case; ``"auto"`` is ``AUTO_METHOD``.

    Raises:
        InvalidOption: there is no such method; the message suggests the nearest.

    >>> find_method("STIMULUS-M+").title
    'STIMULUS-M+'
    """
    key = str(name).lower()
    key = AUTO_METHOD if key == "auto" else key
    if key not in METHODS:
        known = ("auto", *METHODS)
        raise InvalidOption(f"method {name!r} is unknown; {_nearest(key, known)}known are {', '.join(known)}")
    return METHODS[key]


def check_options(options: MethodOptions) -> None:
    """Raise InvalidOption for a name that no method knows, with the nearest that exists."""
    known = MethodOptions.__annotations__
    for name in options:
        if name not in known:
            raise InvalidOption(f"option {name!r} is unknown; {_nearest(name, known)}known are {', '.join(known)}")


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""
