"""Variance reduction when it pays: the batch's gradient while losses fall, anchored differences once they do not."""

import math
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from stimulus_moo._engine.observation import Observation
from stimulus_moo.anchors import Anchor, as_anchor
from stimulus_moo.errors import StateMismatch
from stimulus_moo.estimators.base import DIFFERENCE, Estimator, Update
from stimulus_moo.state import check_numbers

FRESH = Update(keep=0.0, now=1.0)
STREAM = Update(keep=0.9, now=1.0, before=-0.9)  # MoCo+'s rule with beta = 0.1, where there is no anchor

FAST, SLOW, SHORT = 0.98, 0.995, 0.9  # memories of running means: about 50, 200 and 10 steps
STALLED = 0.03  # losses that fall by less than this share over the slower memory have stalled
LOOK = 300  # steps from which on the running means tell something
LARGE = 0.5  # largest mean square of a difference, relative to that of a batch's gradient


class Adaptive(Estimator):
    r"""The batch's gradient while the signal dominates, recursive differences from anchors once the noise does.

    .. code-block:: text

        m_s, M_s  <- running means of f_A^s(x_t) over about 50 and 200 steps,   l_s of |f_A^s(x_t)| over 200
        stalled   if  mean over s of (M_s - m_s) / l_s < 0.03,  300 steps after the last change at the earliest

        alone:      u_t = grad F_A(x_t)                                             until stalled
        recursive:  u_t = mean of grad F_j(x_t) over the anchor                     first, and when the steps since the
                                                                                    last anchor have cost as much as it
                    u_t = u_{t-1} + grad F_A(x_t) - grad F_A(x_{t-1})               otherwise
                    until  mean of ||grad f_A(x_t) - grad f_A(x_{t-1})||^2 > 0.5 mean of ||grad f_A||^2

    Derivation: a step of length eta along a gradient with variance R decreases a loss of smoothness L in the mean by
    eta ||grad f||^2 - eta^2 L (||grad f||^2 + R) / 2. While the first term dominates, losses fall, and the second point
    of a difference is wasted. They stall when the two are equal: then less noise is the only way to go on, besides
    shorter steps. A model that can fit its data never stalls, since R vanishes with the losses. The variance of a
    recursive difference is proportional to the squared length of the step. If it is not smaller than that of the
    batch's gradient, differences are useless at these steps, and the rule returns to the batch's gradient.

    Losses are seen at every step anyway: nothing is evaluated for the decision, batches are never cut, and several
    processes, which see the same losses, decide alike.

    Args:
        anchor: as for ``Recursive``. None for streams: once stalled, the rule is that of ``Storm`` with beta = 0.1.

    >>> import torch
    >>> from stimulus_moo import Adaptive, MultiGradient
    >>> _ = torch.manual_seed(0)
    >>> model, x, y = torch.nn.Linear(3, 1), torch.randn(256, 3), torch.randn(256, 2)  # noise: it soon stalls
    >>> losses = lambda m, batch: (m(batch[0]) - batch[1]).square().mean(0)
    >>> mg = MultiGradient(model, losses, Adaptive([(x, y)]))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    >>> anchors = 0
    >>> for k in range(400):
    ...     pick = torch.randint(256, (16,))
    ...     anchors += mg.backward((x[pick], y[pick])).anchored
    ...     optimizer.step()
    >>> anchors > 0, mg.estimator.recursive
    (True, True)
    """

    two_point = finite_sum = observes = judges = True
    state_names: ClassVar[tuple[str, ...]] = (
        *("anchor", "recursive", "count", "fast", "slow", "level", "noise", "change", "cost", "spent"),
    )
    optional_names = MappingProxyType({"fast": list, "slow": list, "level": list, "noise": float, "change": float})
    count_names, amount_names = ("count", "cost", "spent"), ("noise", "change")

    def __init__(self, anchor: Iterable[Any] | Anchor | None = None) -> None:
        self.anchor = None if anchor is None else as_anchor(anchor)
        if self.anchor is None:
            self.state_names = tuple(name for name in type(self).state_names if name != "anchor")  # type: ignore[misc]
        self.recursive = False  # are differences used?
        self.count = 0  # steps since that changed
        self.fast: list[float] | None = None  # m
        self.slow: list[float] | None = None  # M
        self.level: list[float] | None = None  # l
        self.noise: float | None = None  # running mean of the squared norm of a batch's gradient
        self.change: float | None = None  # running mean of the squared norm of a difference
        self.cost = self.spent = 0  # evaluations of the last anchor, and since

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Whether the rows are needed at the next iteration."""
        return self.recursive

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the numbers in its lists."""
        super().check_state(state, path)
        if type(state["recursive"]) is not bool:
            raise StateMismatch(f"{path or self.kind}.recursive must be a bool, found {state['recursive']!r}")
        for name in ("fast", "slow", "level"):
            if state[name] is not None:
                low = 0.0 if name == "level" else -math.inf
                check_numbers(state[name], f"{path or self.kind}.{name}", low=low)

    def update(self, t: int) -> Update:
        """Return the batch's gradient, an anchor, or the difference."""
        if t == 0:  # also after rows were lost
            self._change(recursive=False)
        elif not self.recursive and self.stalled():
            self._change(recursive=True)
            return FRESH if self.anchor is None else Update(keep=0.0, now=1.0, anchor=self.anchor)
        elif self.recursive and self._useless():
            self._change(recursive=False)
        if not self.recursive:
            return FRESH
        if self.anchor is None:
            return STREAM
        return Update(keep=0.0, now=1.0, anchor=self.anchor) if self.spent >= self.cost else DIFFERENCE

    def stalled(self) -> bool:
        """Return whether the losses no longer fall."""
        if self.count < LOOK or self.fast is None or self.slow is None or self.level is None:
            return False
        falls = [
            (slow - fast) / level if level else 0.0
            for fast, slow, level in zip(self.fast, self.slow, self.level, strict=True)
            if math.isfinite(level)
        ]
        return sum(falls) < STALLED * len(falls)

    def learn(self, observation: Observation) -> None:
        """Update the running means."""
        self.count += 1
        if observation.anchored:
            self.cost, self.spent = observation.gradients, 0
            return
        self.spent += observation.gradients
        losses: Sequence[float] = observation.losses.tolist()
        self.fast = _means(self.fast, losses, FAST)
        self.slow = _means(self.slow, losses, SLOW)
        self.level = _means(self.level, [abs(loss) for loss in losses], SLOW)
        if observation.change is not None:
            (self.change,) = _means(None if self.change is None else [self.change], [observation.change**2], SHORT)

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Update the mean square of a batch's gradient."""
        super().record(sq_norm, anchored=anchored)
        if not self.recursive:
            (self.noise,) = _means(None if self.noise is None else [self.noise], [sq_norm], FAST)

    def _useless(self) -> bool:
        return self.change is not None and self.noise is not None and self.change > LARGE * self.noise

    def _change(self, *, recursive: bool) -> None:
        self.recursive, self.count, self.change = recursive, 0, None
        self.cost = self.spent = 0


def _means(old: list[float] | None, new: Sequence[float], memory: float) -> list[float]:
    """Return running means; a loss without a count is NaN and leaves its mean, which is infinite before the first."""
    means = [math.inf] * len(new) if old is None else old
    return [_mean(mean, value, memory) for mean, value in zip(means, new, strict=True)]


def _mean(old: float, new: float, memory: float) -> float:
    if math.isnan(new):
        return old
    return memory * old + (1.0 - memory) * new if math.isfinite(old) else new
