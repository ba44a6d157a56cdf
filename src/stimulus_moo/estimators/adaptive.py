"""Variance reduction when it pays: the batch's gradient while losses fall, anchored differences once they do not."""

import math
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from stimulus_moo._engine.observation import Observation
from stimulus_moo._engine.running_means import running_means
from stimulus_moo.anchors import Anchor, as_anchor
from stimulus_moo.errors import StateMismatch
from stimulus_moo.estimators.base import DIFFERENCE, Estimator, Update
from stimulus_moo.state import check_numbers

FRESH = Update(keep=0.0, now=1.0)
STREAM = Update(keep=0.9, now=1.0, before=-0.9)  # MoCo+'s rule with beta = 0.1, where there is no anchor

FAST, SLOW, SHORT = 0.98, 0.995, 0.9  # memories of running means: about 50, 200 and 10 steps
STALLED, RISEN = 0.03, 0.2  # relative fall of the losses over the slower memory, and rise since the switch
LOOK, AGAIN, TRIALS = 300, 4, 2  # steps before the first trial; so many times as many before the second, and last, one
SIGNAL = 4.0  # largest squared norm of the gradient at a trial's first anchor, in units of a batch's divided by q
FIRST = 5  # differences of a trial with which later ones are compared
STREAM_PERIOD = 10  # steps for which the rule for streams remembers a difference


class Adaptive(Estimator):
    r"""The batch's gradient while the signal dominates, recursive differences from anchors once the noise does.

    .. code-block:: text

        m_s, M_s  <- running means of f_A^s(x_t) over about 50 and 200 steps,   l_s of |f_A^s(x_t)| over 200
        stalled   if  mean over s of (M_s - m_s) / l_s < 0.03

        alone:      u_t = grad F_A(x_t)                                             until stalled, at least 300 steps
        recursive:  u_t = mean of grad F_j(x_t) over the anchor                     first, and when the steps since the
                                                                                    last anchor have cost as much as it
                    u_t = u_{t-1} + grad F_A(x_t) - grad F_A(x_{t-1})               otherwise
                    until  q mean of ||grad f_A(x_t) - grad f_A(x_{t-1})||^2  >  mean of ||grad f_A||^2,
                    or     q ||d||^2 of an anchor  >  mean of ||grad f_A||^2,   4 times that for the first one,
                    or     mean over s of (m_s - m_s at the switch) / l_s > 0.2

    q is the number of differences between two anchors. Within the first q the first condition is waived while
    differences become smaller. If a trial ends, the next one is made 1,200 steps later at the earliest; there are two.
    Under ``fit``, no anchor is begun that the budget cannot pay, or that has more samples than a tenth of the
    evaluations so far: a trial in vain then costs little.

    Derivation: a step of length eta along a gradient with variance R decreases a loss of smoothness L in the mean by
    eta ||grad f||^2 - eta^2 L (||grad f||^2 + R) / 2. While the first term dominates, losses fall, and the second point
    of a difference is wasted. They stall when the two are equal: then less noise is the only way to go on, besides
    shorter steps. A model that can fit its data never stalls, since R vanishes with the losses. The errors of recursive
    differences add up from anchor to anchor, to at most q times the mean square of one: if that is not below the
    noise of a batch's gradient, differences are useless at these steps. It is proportional to the squared length of the
    steps, which become shorter with the noise if the differences are right: hence the first q. A period of q
    differences costs as much as 4 q batches' gradients, whose mean has the noise of one divided by 4 q. Where an
    anchor's gradient is well above that, Adam's averages over batches find it at a lower price. The first anchor of a
    trial may have more: differences let the gradient shrink from anchor to anchor where they pay.

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
        *("anchor", "recursive", "count", "failures", "fast", "slow", "level", "entry"),
        *("noise", "change", "first", "signal", "cost", "spent", "size"),
    )
    optional_names = MappingProxyType(
        {
            **dict.fromkeys(("fast", "slow", "level", "entry"), list),
            **dict.fromkeys(("noise", "change", "first", "signal"), float),
        }
    )
    count_names = ("count", "failures", "cost", "spent", "size")
    amount_names = ("noise", "change", "first", "signal")

    def __init__(self, anchor: Iterable[Any] | Anchor | None = None) -> None:
        self.anchor = None if anchor is None else as_anchor(anchor)
        if self.anchor is None:
            self.state_names = tuple(name for name in type(self).state_names if name != "anchor")  # type: ignore[misc]
        self.recursive = False  # are differences used?
        self.count = 0  # steps since that changed
        self.failures = 0  # trials that have ended
        self.fast: list[float] | None = None  # m
        self.slow: list[float] | None = None  # M
        self.level: list[float] | None = None  # l
        self.entry: list[float] | None = None  # m at the switch
        self.noise: float | None = None  # running mean of the squared norm of a batch's gradient
        self.change: float | None = None  # running mean of the squared norm of a difference
        self.first: float | None = None  # its value at the beginning of the trial
        self.signal: float | None = None  # squared norm of the gradient at the last anchor; later ones times SIGNAL
        self.cost = self.spent = 0  # evaluations of the last anchor, and since
        self.size = 0  # samples of a batch

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Whether the rows are needed at the next iteration."""
        return self.recursive

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the numbers in its lists."""
        super().check_state(state, path)
        if type(state["recursive"]) is not bool:
            raise StateMismatch(f"{path or self.kind}.recursive must be a bool, found {state['recursive']!r}")
        for name in ("fast", "slow", "level", "entry"):
            if state[name] is not None:
                low = 0.0 if name == "level" else -math.inf
                check_numbers(state[name], f"{path or self.kind}.{name}", low=low)

    def update(self, t: int) -> Update:
        """Return the batch's gradient, an anchor, or the difference."""
        if t == 0:  # also after rows were lost
            self._change(recursive=False)
        elif self.recursive and not (self.pays() and self.relative(self.entry, self.fast) > -RISEN):
            self.failures += 1
            self._change(recursive=False)
        elif not self.recursive and self.affordable and self.stalled():
            self._change(recursive=True)
            return FRESH if self.anchor is None else self._anchor()
        if not self.recursive:
            return FRESH
        if self.anchor is None:
            return STREAM
        return self._anchor() if self.affordable and self.spent >= self.cost else DIFFERENCE

    def _anchor(self) -> Update:
        return Update(keep=0.0, now=1.0, anchor=self.anchor)

    def pays(self) -> bool:
        """Return whether the differences of a period have less noise than a batch's gradient, or soon will have.

        And whether there is noise to be reduced: an anchor's gradient is small beside a batch's.
        """
        q = STREAM_PERIOD if self.anchor is None else self.cost / (2 * self.size)
        if self.signal is not None and self.noise is not None and q * self.signal > SIGNAL * self.noise:
            return False
        if self.change is None or self.noise is None or self.first is None:
            return True  # at the beginning of a trial
        return q * self.change <= self.noise or (self.count <= q and self.change <= self.first)

    def stalled(self) -> bool:
        """Return whether the losses no longer fall, and a trial is due."""
        wait = LOOK * AGAIN**self.failures
        return self.failures < TRIALS and self.count >= wait and self.relative(self.slow, self.fast) < STALLED

    def relative(self, before: list[float] | None, now: list[float] | None) -> float:
        """Return the mean over s of (before_s - now_s) / l_s, over the losses that were seen."""
        if before is None or now is None or self.level is None:
            return 0.0
        terms = [
            (old - new) / level if level else 0.0
            for old, new, level in zip(before, now, self.level, strict=True)
            if math.isfinite(level)
        ]
        return sum(terms) / len(terms) if terms else 0.0

    def learn(self, observation: Observation) -> None:
        """Update the running means."""
        self.count += 1
        if observation.anchored:
            self.cost, self.spent = observation.gradients, 0
            return
        self.spent += observation.gradients
        self.size = observation.samples
        losses: Sequence[float] = observation.losses.tolist()
        self.fast = running_means(self.fast, losses, FAST)
        self.slow = running_means(self.slow, losses, SLOW)
        self.level = running_means(self.level, [abs(loss) for loss in losses], SLOW)
        if observation.change is not None:
            (self.change,) = running_means(
                None if self.change is None else [self.change], [observation.change**2], SHORT
            )
            if self.first is None and self.count > FIRST:
                self.first = self.change

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Update the mean square of a batch's gradient, or note the anchor's."""
        super().record(sq_norm, anchored=anchored)
        if anchored:
            self.signal = sq_norm if self.signal is None else SIGNAL * sq_norm
        if not self.recursive:
            (self.noise,) = running_means(None if self.noise is None else [self.noise], [sq_norm], FAST)

    def _change(self, *, recursive: bool) -> None:
        self.recursive, self.count, self.spent = recursive, 0, 0
        self.change = self.first = self.signal = None
        self.entry = self.fast if recursive else None
