"""Literal twin of auto: Adam on balanced weights in its metric, solved for when due, and differences in the end.

As in twins.py, plain float64 numpy that shares no code with src; the constants are those of the docstrings.
"""

import numpy as np

from tests.reference.kept import KeptRecord
from tests.reference.twins import min_norm


def running(old, new, memory):
    """A running mean that begins with its first value."""
    return new if old is None else memory * old + (1 - memory) * new


class BalancedInMetric:
    """lambda_s = g lambda'_s / n_s from running means of log n and of the cosines of the rows u / sqrt(D)."""

    def __init__(self, memory=0.9):
        self.memory, self.logs, self.cosines = memory, None, None

    def __call__(self, u, scale):
        rows = u / np.sqrt(scale)
        n = np.sqrt(np.sum(rows**2, axis=1))
        unit = rows / n[:, None]
        self.logs = running(self.logs, np.log(n), self.memory)
        self.cosines = running(self.cosines, unit @ unit.T, self.memory)
        values, vectors = np.linalg.eigh(self.cosines)
        root = vectors * np.sqrt(np.maximum(values, 0.0))  # rows with these cosines
        return np.exp(self.logs.mean() - self.logs) * min_norm(root)


class Rising:
    """Due where a loss has risen by 3 standard errors and a solve has paid for itself, or after 9 times its passes."""

    def __init__(self):
        self.spent, self.cost, self.level, self.changes = 0, {}, None, []

    def due(self, kind):
        if kind not in self.cost:  # the first anchor keeps the weights
            return False
        cost = self.cost[kind]
        if self.spent >= 9 * cost:
            return True
        y = np.array(self.changes)
        if self.spent < cost or len(y) < 5:
            return False
        return bool(np.any(y.mean(0) > 3 * y.std(0, ddof=1) / np.sqrt(len(y))))

    def learn(self, losses, before, passes, *, solved, kind):
        self.level = running(self.level, losses, 0.9)
        if solved or kind == "anchor":
            self.cost[kind] = passes if solved else len(losses) * passes
        if solved:
            self.spent, self.reference, self.changes = 0, self.level, []
            return
        self.spent += passes
        if kind != "anchor":
            self.changes.append(losses - (self.reference if before is None else before))


class Stalls:
    """Whether differences are used: once losses stall, in two trials at most."""

    def __init__(self, look, stalled, signal):
        self.look, self.limit, self.most, self.ended = look, stalled, signal, 0
        self.fast = self.slow = self.level = self.noise = None
        self.switch(recursive=False)

    def switch(self, *, recursive):
        self.recursive, self.count, self.spent = recursive, 0, 0
        self.changes, self.begin, self.signal = [], self.fast, None

    def ends(self):
        if self.begin is not None and np.mean((self.fast - self.begin) / self.level) >= 0.2:
            return True
        q = self.cost / (2 * self.size)
        if self.signal is not None and q * self.signal > self.most * self.noise:
            return True
        if len(self.changes) < 5:
            return False
        return q * self.changes[-1] > self.noise and (self.count > q or self.changes[-1] > self.changes[4])

    def due(self):
        return self.ended < 2 and self.count >= self.look * 4**self.ended

    def kind(self, t):
        if self.recursive and self.ends():
            self.ended += 1
            self.switch(recursive=False)
        elif not self.recursive and t and self.due() and np.mean((self.slow - self.fast) / self.level) < self.limit:
            self.switch(recursive=True)
            return "anchor"
        if not self.recursive:
            return "alone"
        return "anchor" if self.spent >= self.cost else "difference"

    def learn(self, kind, losses, gradients, difference, d):
        self.count += 1
        if kind == "anchor":
            self.cost, self.spent = gradients, 0
            self.signal = d @ d if self.signal is None else self.most * (d @ d)
        else:
            self.spent += gradients
            self.size = gradients // (2 if kind == "difference" else 1)
            self.fast, self.slow = running(self.fast, losses, 0.98), running(self.slow, losses, 0.995)
            self.level = running(self.level, np.abs(losses), 0.995)
        if kind == "difference":
            old = self.changes[-1] if self.changes else None
            self.changes.append(running(old, difference @ difference, 0.9))
        if not self.recursive:
            self.noise = running(self.noise, d @ d, 0.98)


def auto(problem, x0, *, steps, lr, batches, look, stalled=0.03, signal=4.0, beta1=0.9, eps=1e-8):
    """Adam's beta2 is 0.99, and 0.995 while differences are used.

    Returns the trajectory and the kind of every step: alone, anchor or difference.
    """
    record, kinds, everything = KeptRecord(x0), [], np.arange(problem.n)
    x = record.x[0]
    beta2, last, r, weights, m, v = 0.99, None, None, None, np.zeros_like(x), np.zeros_like(x)
    weigh, rising, stalls = BalancedInMetric(), Rising(), Stalls(look, stalled, signal)
    for t in range(steps):
        kind = stalls.kind(t)
        A = everything if kind == "anchor" else batches[t]
        points = 2 if kind == "difference" else 1
        solved = kind != "difference" and (weights is None or rising.due(kind))
        u, losses = problem.gradients(x, A), problem.losses(x, A)
        before = problem.losses(last, A) if points == 2 else None
        if solved:
            weights = weigh(u, np.sqrt(v / (1 - beta2**t)) + eps if t else np.ones_like(x))
        difference = weights @ (u - problem.gradients(last, A)) if points == 2 else None
        d = weights @ u if points == 1 else r + difference
        gradients = points * len(A)
        passes = problem.objectives * gradients if solved else gradients
        stalls.learn(kind, losses, gradients, difference, d)
        rising.learn(losses, before, passes, solved=solved, kind=kind)
        last, r, beta2 = x, d, 0.995 if stalls.recursive else 0.99
        m, v = beta1 * m + (1 - beta1) * d, beta2 * v + (1 - beta2) * d**2
        x = x - lr * (m / (1 - beta1 ** (t + 1))) / (np.sqrt(v / (1 - beta2 ** (t + 1))) + eps)
        record.add(weights, d, x, solved, samples=len(A), gradients=gradients, passes=passes)
        kinds.append(kind)
    return record.trajectory(), kinds
