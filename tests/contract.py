"""The contract of MultiGradient as a literal model, in numpy: what every rule of tests/state_machine.py must lead to.

Nothing here uses the library. Gradients are written out by hand, the estimators are their formulas in DESIGN.md, the
min-norm weights of two objectives have a closed form, and torch serves only for the random numbers, which must be its.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

FEATURES, HIDDEN = 3, 3
NAMES = ("w", "b", "v")  # tanh(x w^T + b) v^T
PERIOD, PROBABILITY, STORM, TRACKING, SMOOTHING = 3, 0.4, 0.25, 0.5, 0.5
FIXED = (0.5, 0.25, 0.25)
MOST_SKIPS = 10
REMEMBERS = ("recursive", "page", "storm", "tracking")
TWO_POINT = ("recursive", "page", "storm")
ANCHORED = ("recursive", "page")

Point = dict[str, Any]
Batch = tuple[Any, Any]


@dataclass(frozen=True)
class Setting:
    """What is drawn at the start of a run of the machine."""

    estimator: str
    objectives: int
    weighting: str
    engine: str
    staged: bool
    skips: bool
    momentum: float
    dropout: float
    seed: int
    reweigh: int | str = 1  # solve at every step, at every R-th one, or at anchors


@dataclass(frozen=True)
class Fault:
    """What happens in the k-th evaluation of the losses, counted from 1: "nan", or a kind of exception."""

    at: int
    kind: str


@dataclass
class Rule:
    """U_t = keep U_{t-1} + now grad F(x_t) + before grad F(x_{t-1}); with ``anchor`` over the anchor's batches."""

    keep: float
    now: float
    before: float = 0.0
    anchor: bool = False


@dataclass
class Outcome:
    """What a call leads to: "ready" to be committed, "nan", "changed" (ModelChanged) or the kind of an exception."""

    kind: str
    adopts: bool = False
    rule: Rule | None = None
    lost: bool = False  # are the rows dropped if it is undone?
    rows: list[Point] = field(default_factory=list)  # U_t, or one row, that of lambda . F
    weights: Any = None  # lambda, where only lambda . F is differentiated
    smoothed: Any = None  # the last weights of the weighting, where it was asked before the step
    solved: bool = False  # are the weights new?
    losses: Any = None
    samples: int = 0
    gradients: int = 0
    passes: int = 0
    coin: Any = None
    random: Any = None  # the global random state after the evaluations


def forward(x: Point, batch: Batch, mask: Any) -> tuple[Any, Any, Any]:
    inputs, targets = batch
    hidden = np.tanh(inputs @ x["w"].T + x["b"])
    return hidden, hidden * mask, (hidden * mask) @ x["v"].T - targets


def gradients(x: Point, batch: Batch, mask: Any) -> tuple[Any, list[Point]]:
    """The S mean squared errors and their gradients, written out."""
    hidden, dropped, error = forward(x, batch, mask)
    rows = []
    for s in range(error.shape[1]):
        out = 2.0 * error[:, s] / len(error)
        inner = np.outer(out, x["v"][s]) * mask * (1.0 - hidden**2)
        v = np.zeros_like(x["v"])
        v[s] = out @ dropped
        rows.append({"w": inner.T @ batch[0], "b": inner.sum(0), "v": v})
    return (error**2).mean(0), rows


def combined(weights: Any, rows: list[Point]) -> Point:
    """sum_s lambda^s u^s over the parameters that all rows have."""
    return {name: sum(weight * row[name] for weight, row in zip(weights, rows, strict=True)) for name in rows[0]}


class Contract:
    """The state that the contract speaks about, and how each call changes it."""

    def __init__(self, setting: Setting, x: Point, anchor: list[Batch]) -> None:
        self.setting, self.anchor = setting, anchor
        self.x = {name: value.copy() for name, value in x.items()}
        self.trainable = dict.fromkeys(NAMES, True)
        self.training = True
        self.adopted = NAMES  # the trainable parameters as last seen by the library
        self.grad: dict[str, Any] = dict.fromkeys(NAMES)
        self.buffers: Point = {}  # of momentum
        self.rows: list[Point] | None = None
        self.previous: Point | None = None
        self.t = self.samples = self.gradients = self.passes = self.skipped = self.in_a_row = 0
        self.weights: Any = None
        self.sq_norm: float | None = None
        self.smoothed: Any = None
        self.coin = torch.Generator().manual_seed(setting.seed).get_state()
        self.random = torch.get_rng_state()

    def copy(self) -> Contract:
        other = copy.copy(self)
        other.__dict__.update({k: copy.deepcopy(v) for k, v in self.__dict__.items() if k not in ("setting", "anchor")})
        return other

    @property
    def remembers(self) -> bool:
        return self.setting.estimator in REMEMBERS

    @property
    def one_row(self) -> bool:
        """Whether weights are kept, or fixed, so that one row is remembered; it is never updated in place."""
        return self.setting.reweigh != 1 or self.setting.weighting == "fixed"

    @property
    def current(self) -> tuple[str, ...]:
        return tuple(name for name in NAMES if self.trainable[name])

    # A step

    def evaluate(self, batch: Batch, fault: Fault | None) -> Outcome:
        """What evaluating a step on a batch leads to; nothing is changed here."""
        adopts = self.current != self.adopted
        if adopts and self.t and self.remembers:
            return Outcome("changed")
        rows = None if adopts else self.rows
        rule, coin = self._rule(rows)
        found = Outcome("ready", adopts, rule, coin=coin, random=self.random, smoothed=self.smoothed)
        found.weights, found.solved = self._kept(rule)
        evaluations = [(one, self.x, "now") for one in self.anchor] if rule.anchor else [(batch, self.x, "now")]
        if rule.before:
            assert self.previous is not None
            evaluations.insert(0, (batch, {**self.x, **self.previous}, "before"))
        solves_first = found.solved and self.one_row and bool(rule.keep or rule.before)
        if solves_first:
            evaluations.insert(0, (batch, self.x, "solve"))
        count = 1 if solves_first or found.weights is not None else self.setting.objectives
        sums = [{name: np.zeros_like(self.x[name]) for name in self.current} for _ in range(count)]
        total = sum(len(one[0]) for one, _, _ in evaluations) if rule.anchor else 1
        losses = 0.0
        for i, (one, point, role) in enumerate(evaluations):
            in_place = rows is not None and not self.setting.staged and not self.one_row
            found.lost = in_place and (i > 0 or rule.keep != 0.0)
            if fault is not None and fault.at == i + 1:
                found.kind = fault.kind
                return found
            mask, after = self._mask(len(one[0]), found.random)
            if role == "now":  # the same draw at the other points
                found.random = after
            values, each = gradients(point, one, mask)
            if not np.isfinite(values).all():
                found.kind = "nan"
                return found
            if role == "solve":
                found.weights, found.smoothed = self._weigh(each)
                found.gradients, found.passes = len(one[0]), len(one[0]) * self.setting.objectives
                continue
            if found.weights is not None:
                each = [combined(found.weights, each)]
            share = len(one[0]) / total if rule.anchor else 1.0
            weight = rule.before if role == "before" else rule.now * share
            losses = losses if role == "before" else losses + share * values
            for row, gradient in zip(sums, each, strict=True):
                for name in row:
                    row[name] += weight * gradient[name]
        if rule.keep:
            assert rows is not None
            for row, old in zip(sums, rows, strict=True):
                for name in row:
                    row[name] += rule.keep * old[name]
        found.lost = rows is not None and not self.setting.staged and not self.one_row
        found.samples = total if rule.anchor else len(batch[0])
        points = found.samples * (2 if rule.before else 1)
        found.gradients, found.passes = found.gradients + points, found.passes + points * count
        found.rows, found.losses = sums, losses
        return found

    def open(self, found: Outcome) -> None:
        """The call has evaluated a step that is neither committed nor undone."""
        self._adopt_if(found)
        self.random = found.random

    def commit(self, found: Outcome) -> None:
        self._adopt_if(found)
        weights, rows, self.smoothed = found.weights, found.rows, found.smoothed
        if weights is None:
            weights, self.smoothed = self._weigh(rows)
            direction = combined(weights, rows)
            rows = [direction] if self.one_row else rows
        else:
            direction = rows[0]
        self.grad = {name: direction.get(name) for name in NAMES}
        self.weights, self.sq_norm = weights, sum(float((part**2).sum()) for part in direction.values())
        self.rows = rows if self.remembers else None
        if self.setting.estimator in TWO_POINT:
            self.previous = {name: self.x[name].copy() for name in self.adopted}
        self.t, self.in_a_row, self.coin, self.random = self.t + 1, 0, found.coin, found.random
        self.samples, self.gradients = self.samples + found.samples, self.gradients + found.gradients
        self.passes += found.passes

    def undo(self, found: Outcome) -> None:
        """The step failed or was discarded: nothing has changed, but rows that were being overwritten are gone."""
        self._adopt_if(found)
        if found.lost:
            self.rows = None

    def skips(self) -> bool:
        """Whether a step that met NaN is skipped; if not, it raises."""
        return self.setting.skips and self.in_a_row < MOST_SKIPS

    def skip(self) -> None:
        self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        self.grad = dict.fromkeys(NAMES)

    # Everything else

    def step(self, lr: float) -> None:
        for name, grad in self.grad.items():
            if grad is None:
                continue
            if self.setting.momentum:
                old = self.buffers.get(name)
                grad = grad.copy() if old is None else self.setting.momentum * old + grad
                self.buffers[name] = grad
            self.x[name] = self.x[name] - lr * grad

    def reset(self) -> None:
        self._adopt()
        self.t, self.weights, self.sq_norm = 0, None, None

    def fits(self, saved: Contract) -> bool:
        return saved.adopted == self.current

    def load(self, saved: Contract, *, whole: bool) -> None:
        """The state of the object; with ``whole`` also that of the model, the optimizer and the random generator."""
        names = "adopted rows previous t samples gradients passes skipped in_a_row weights sq_norm smoothed coin"
        for name in names.split() + (["x", "buffers", "random"] if whole else []):
            setattr(self, name, copy.deepcopy(getattr(saved, name)))

    def draw(self) -> float:
        """A random number that the user draws."""
        value, self.random = _drawn(self.random, lambda: float(torch.rand(())))
        return value

    # The estimators and weightings

    def _rule(self, rows: Any) -> tuple[Rule, Any]:
        """The rule of this step, and the coin after it; an estimator whose rows were lost restarts."""
        rule, coin = self._rule_at(self.t)
        if self.t and rule.keep and rows is None:
            rule, coin = self._rule_at(0)
        return rule, coin

    def _rule_at(self, t: int) -> tuple[Rule, Any]:
        kind, coin = self.setting.estimator, self.coin
        if kind == "mini-batch":
            return Rule(0.0, 1.0), coin
        if kind == "tracking":
            return Rule(1.0 - TRACKING if t else 0.0, TRACKING), coin
        if kind == "storm":
            return Rule(1.0 - STORM, 1.0, STORM - 1.0) if t else Rule(0.0, 1.0), coin
        anchors = t % PERIOD == 0
        if kind == "page" and t:
            generator = torch.Generator()
            generator.set_state(coin)
            anchors = float(torch.rand((), generator=generator)) < PROBABILITY
            coin = generator.get_state()
        return Rule(0.0, 1.0, anchor=True) if anchors else Rule(1.0, 1.0, -1.0), coin

    def _kept(self, rule: Rule) -> tuple[Any, bool]:
        """The weights that are kept or fixed, if there are any, and whether they are solved for."""
        every = self.setting.reweigh
        if self.setting.weighting == "fixed":
            return np.array(FIXED[: self.setting.objectives]), False
        due = every == 1 or (rule.anchor if every == "anchor" else self.t % int(every) == 0)
        return (None, True) if due or self.weights is None else (self.weights, False)

    def _weigh(self, rows: list[Point]) -> tuple[Any, Any]:
        """The min-norm weights of two rows, smoothed if need be, and the last smoothed ones."""
        a, b = (np.concatenate([row[name].ravel() for name in self.current]) for row in rows)
        first = float(np.clip((b @ b - a @ b) / ((a - b) @ (a - b)), 0.0, 1.0))
        weights = np.array([first, 1.0 - first])
        if self.setting.weighting != "smoothed":
            return weights, self.smoothed
        if self.smoothed is not None:
            weights = SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * weights
        return weights, weights

    def _mask(self, size: int, random: Any) -> tuple[Any, Any]:
        """The factors of dropout for a batch, and the random state after it."""
        if not self.setting.dropout or not self.training:
            return np.ones((size, HIDDEN)), random
        ones = torch.ones(size, HIDDEN, dtype=torch.float64)
        return _drawn(random, lambda: torch.nn.functional.dropout(ones, self.setting.dropout).numpy())

    def _adopt(self) -> None:
        self.adopted, self.rows, self.previous = self.current, None, None

    def _adopt_if(self, found: Outcome) -> None:
        if found.adopts:
            self._adopt()


def _drawn(random: Any, draw: Any) -> tuple[Any, Any]:
    """What is drawn from a state of the global generator, and its state afterwards; the generator is left alone."""
    kept = torch.get_rng_state()
    try:
        torch.set_rng_state(random)
        return draw(), torch.get_rng_state()
    finally:
        torch.set_rng_state(kept)
