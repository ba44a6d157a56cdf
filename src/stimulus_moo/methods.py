"""The table of methods: each row is an estimator, a weighting and an optimizer step."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import torch
from torch.optim import Optimizer

from stimulus_moo.anchors import AdaptiveBatch, Anchor, FullPass
from stimulus_moo.data.partition import ALL, Partition
from stimulus_moo.data.random_streams import stream_seed
from stimulus_moo.data.sources import Source
from stimulus_moo.deprecated import old_field, old_names
from stimulus_moo.errors import InvalidOption
from stimulus_moo.estimators import Adaptive, Estimator, Filtered, Full, MiniBatch, Page, Recursive, Storm, Tracking
from stimulus_moo.optim import HeavyBall
from stimulus_moo.options import Schedule
from stimulus_moo.plugins import load_installed
from stimulus_moo.weightings import Balanced, Fixed, MinNorm, ProjectedDescent, Smoothed, Weighting


class MethodOptions(TypedDict, total=False):
    """Options of single methods; ``Settings`` has their defaults."""

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
    """The settings from which a row of the table is built."""

    source: Source
    lr: float | str
    momentum: float
    batch_size: int
    period: int | str | None  # STIMULUS: steps from one anchor to the next; None: there is no default (a stream)
    anchor_batch: int = 1024
    seed: int = 0
    epsilon: float | str = 1e-3  # STIMULUS+: the target accuracy
    sigma2: float | str = "auto"  # STIMULUS+: variance of one sample's gradient
    c_gamma: float = 8.0  # STIMULUS+
    c_epsilon: float = 1.0  # STIMULUS+
    alpha: Schedule = 0.9  # CR-MOGM: weight of the previous lambda
    beta: Schedule = 0.5  # MoCo, MoCo+: weight of the new gradient
    gamma: Schedule = 0.1  # MoCo, MoCo+: step size of lambda
    rho: float = 0.0  # MoCo, MoCo+: regularisation of lambda
    probability: Schedule | None = None  # PAGE-MOO: of an anchor; None: batch_size / (n + batch_size)
    weights: Sequence[float] | None = None  # scalarisation; None: 1/S each
    partition: Partition = ALL  # the part of every batch and pass that belongs to this process

    @property
    def rate(self) -> float:
        """The learning rate for the optimizer; with ``"auto"``, ``DoG`` sets it before the first step."""
        return 1.0 if isinstance(self.lr, str) else self.lr

    def stream(self, purpose: str) -> int:
        """Return the seed of the random stream for one purpose."""
        return stream_seed(self.seed, purpose)

    def recursive(self, anchor: Iterable[Any] | Anchor) -> Estimator:
        """Return the recursive rule with this anchor."""
        if self.period is None:
            raise InvalidOption("period must be given for a stream, which has no length, found None")
        return Recursive(anchor, self.period)

    def anchor(self) -> Iterable[Any]:
        """Return a pass over all data."""
        if not self.source.finite:
            raise InvalidOption("this method needs a data set with a length, found a stream; use one of the + variants")
        return FullPass(self.source, self.anchor_batch, self.partition)

    def adaptive(self, momentum: float = 0.0) -> Anchor:
        """Return an adaptive anchor."""
        return AdaptiveBatch(
            self.source,
            epsilon=self.epsilon,
            sigma2=self.sigma2,
            c_gamma=self.c_gamma,
            c_epsilon=self.c_epsilon,
            momentum=momentum,
            micro_batch=self.anchor_batch,
            seed=self.stream("anchor"),
        )

    def odds(self) -> Schedule:
        """Return the probability of an anchor."""
        size = len(self.source) if self.source.finite else self.batch_size
        return self.batch_size / (size + self.batch_size) if self.probability is None else self.probability


def min_norm(s: Settings) -> Weighting:
    """Min-norm weights, the default of the table."""
    return MinNorm()


def balanced(s: Settings) -> Weighting:
    """Balanced weights, averaged over the solves."""
    return Balanced(memory=0.9)


def fixed(s: Settings) -> Weighting:
    """Constant weights."""
    return Fixed(s.weights)


def sgd(parameters: Any, s: Settings) -> Optimizer:
    """x_{t+1} = x_t - eta d_t."""
    return torch.optim.SGD(parameters, lr=s.rate)


def heavy_ball(parameters: Any, s: Settings) -> Optimizer:
    """x_{t+1} = x_t - eta d_t + alpha (x_t - x_{t-1})."""
    return HeavyBall(parameters, lr=s.rate, momentum=s.momentum)


def adam(parameters: Any, s: Settings, beta2: float = 0.999) -> Optimizer:
    """Adam on d_t."""
    return torch.optim.Adam(parameters, lr=s.rate, betas=(0.9, beta2))


@old_field("takes_auto_lr", True, "every method accepts lr='auto'")
@dataclass(frozen=True)
class Method:
    """A row of the table: functions that build the estimator, the weighting and the optimizer from the settings.

    ``metric``: the weights are solved for in the metric of the optimizer's step. ``reweigh``: when they are solved for,
    unless the user says otherwise. ``lr``: the learning rate that goes with the method in experiments, if there is one.
    ``targeted``: the method that takes its place for a preference or bounds, which need losses without the noise of a
    batch.
    """

    name: str
    title: str
    estimator: Callable[[Settings], Estimator]
    weighting: Callable[[Settings], Weighting]
    step: Callable[[Any, Settings], Optimizer]
    metric: bool = False
    reweigh: int | str = 1
    lr: str | None = None
    targeted: str | None = None


_TABLE = (
    Method("mgd", "MGD", lambda s: Full(s.anchor()), min_norm, sgd),
    Method("smgd", "SMGD", lambda s: MiniBatch(), min_norm, sgd),
    Method("moco", "MoCo", lambda s: Tracking(s.beta), lambda s: ProjectedDescent(s.gamma, s.rho), sgd),
    Method("moco+", "MoCo+", lambda s: Storm(s.beta), lambda s: ProjectedDescent(s.gamma, s.rho), sgd),
    Method("cr-mogm", "CR-MOGM", lambda s: MiniBatch(), lambda s: Smoothed(MinNorm(), s.alpha), sgd),
    Method("stimulus", "STIMULUS", lambda s: s.recursive(s.anchor()), min_norm, sgd),
    Method("stimulus-m", "STIMULUS-M", lambda s: s.recursive(s.anchor()), min_norm, heavy_ball),
    Method("stimulus+", "STIMULUS+", lambda s: s.recursive(s.adaptive()), min_norm, sgd),
    Method("stimulus-m+", "STIMULUS-M+", lambda s: s.recursive(s.adaptive(s.momentum)), min_norm, heavy_ball),
    # not in the paper
    Method(
        "auto",
        "Auto",
        lambda s: Adaptive(s.anchor() if s.source.finite else None),
        balanced,
        partial(adam, beta2=0.99),
        metric=True,
        reweigh="auto",
        lr="auto",
        targeted="stimulus-adam",
    ),
    Method(
        "stimulus-adam",
        "STIMULUS, Adam",
        lambda s: s.recursive(s.anchor()),
        min_norm,
        partial(adam, beta2=0.95),
        metric=True,
        lr="auto",
    ),
    Method("page-moo", "PAGE-MOO", lambda s: Page(s.anchor(), s.odds(), seed=s.stream("coin")), min_norm, sgd),
    Method(
        "page-moo-m", "PAGE-MOO-M", lambda s: Page(s.anchor(), s.odds(), seed=s.stream("coin")), min_norm, heavy_ball
    ),
    Method("filtered", "Filtered STIMULUS", lambda s: Filtered(), min_norm, sgd),
    Method("filtered-m", "Filtered STIMULUS-M", lambda s: Filtered(), min_norm, heavy_ball),
    Method("vr-scalarisation", "VR scalarisation", lambda s: s.recursive(s.anchor()), fixed, sgd),
    Method("scalarisation", "Scalarisation, SGD", lambda s: MiniBatch(), fixed, sgd),
    Method("scalarisation-adam", "Scalarisation, Adam", lambda s: MiniBatch(), fixed, adam),
)

#: Every method by name, in the order of the table.
METHODS: dict[str, Method] = {method.name: method for method in _TABLE}

#: The nine methods of the paper.
PAPER_METHODS = tuple(METHODS)[:9]


def find_method(name: str) -> Method:
    """Return a method by its name, ignoring case.

    Raises:
        InvalidOption: there is no such method; the message suggests the closest name.

    >>> find_method("STIMULUS-M+").title
    'STIMULUS-M+'
    """
    key = str(name).lower()
    if key not in METHODS:
        load_installed()
    if key not in METHODS:
        raise InvalidOption(f"method {name!r} is unknown; {_suggest(key, METHODS)}")
    return METHODS[key]


#: What other libraries call an argument of ``fit``.
_OTHER_NAMES = {
    "epochs": "limit a run by steps=, gradients=, passes= or seconds=; an epoch of n samples is n / batch_size steps",
    **dict.fromkeys(("max_epochs", "num_epochs", "num_train_epochs"), "see epochs"),
    **dict.fromkeys(("learning_rate", "eta", "step_size"), "the learning rate is lr="),
    **dict.fromkeys(("max_steps", "iterations", "max_iter", "n_iter"), "the number of steps is steps="),
    **dict.fromkeys(("verbose", "disp"), "progress=True shows a progress bar"),
    **dict.fromkeys(("val_data", "validation_data", "eval_dataset", "test_data"), "pass batches as evaluation="),
    **dict.fromkeys(("num_workers", "n_jobs"), "the number of processes that load data is workers="),
    **dict.fromkeys(("random_state", "rng"), "the seed is seed="),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "use batch_size= and micro_batch="),
    **dict.fromkeys(("sampler", "shuffle"), "fit draws the batches itself, reshuffled at every pass"),
    **dict.fromkeys(("loss_weights", "task_weights"), "method='scalarisation' takes weights="),
}


def check_options(options: MethodOptions) -> None:
    """Raise InvalidOption for an unknown name, with the name that ``fit`` has for it."""
    for name in options:
        if name not in MethodOptions.__annotations__:
            key = "epochs" if _OTHER_NAMES.get(name) == "see epochs" else name
            fix = _OTHER_NAMES.get(key) or _suggest(name, MethodOptions.__annotations__)
            raise InvalidOption(f"option {name!r} is unknown; {fix}")


def _suggest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"{f'did you mean {close[0]!r}? ' if close else ''}known are {', '.join(known)}"


__getattr__ = old_names(
    __name__, {"AUTO_METHOD": ("stimulus_moo.deprecated:AUTO_METHOD", "pass the name 'auto', or 'filtered-m'")}
)
