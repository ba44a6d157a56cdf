"""Literal twins with kept weights: lambda is solved for at some steps, in between one row follows lambda . F.

As in twins.py, plain float64 numpy that shares no code with src. r is the one remembered row, the estimate of the
gradient of lambda . F. A solve of a rule without memory uses the S rows of the step itself; of a rule with memory, the
S plain gradients of its batch at x_t, before the step. ``sketch`` counts one more pass where the weights come from a
projection of the rows: the step is then made by a pass of its own.
"""

from dataclasses import dataclass

import numpy as np

from tests.reference.twins import adaptive_anchor, at, descend_weights, min_norm


@dataclass(frozen=True)
class KeptTrajectory:
    """What a run of T steps went through; the counters are those after each step."""

    x: np.ndarray  # (T + 1, P)
    weights: np.ndarray  # (T, S): lambda_t, kept or new
    d: np.ndarray  # (T, P)
    reweighed: np.ndarray  # (T,): was lambda solved for?
    samples: np.ndarray  # (T,)
    gradients: np.ndarray  # (T,): per-sample evaluations of the objectives at a point
    passes: np.ndarray  # (T,): per-sample derivatives of one scalar


class KeptRecord:
    """Collects a trajectory step by step."""

    def __init__(self, x0):
        self.x = [np.array(x0, dtype=np.float64)]
        self.weights, self.d, self.reweighed, self.costs = [], [], [], []

    def add(self, weights, d, x_next, reweighed, *, samples, gradients, passes):
        self.weights.append(weights)
        self.d.append(d)
        self.x.append(x_next)
        self.reweighed.append(reweighed)
        self.costs.append((samples, gradients, passes))

    def trajectory(self):
        counts = np.cumsum(self.costs, axis=0).T
        return KeptTrajectory(*map(np.array, (self.x, self.weights, self.d, self.reweighed)), *counts)


class MinNormWeights:
    """The min-norm weights of the S rows."""

    def __call__(self, u):
        return min_norm(u)


class SmoothedWeights:
    """lambda_k = alpha_k lambda_{k-1} + (1 - alpha_k) lambda_hat_k, lambda_0 = lambda_hat_0; k counts the solves."""

    def __init__(self, alpha):
        self.alpha, self.k, self.last = alpha, 0, None

    def __call__(self, u):
        newest = min_norm(u)
        share = at(self.alpha, self.k)
        self.last = newest if self.last is None else share * self.last + (1 - share) * newest
        self.k += 1
        return self.last


class DescendedWeights:
    """lambda_k by `descend_weights` from lambda_{k-1}, lambda_{-1} = 1/S; k counts the solves."""

    def __init__(self, gamma, rho):
        self.gamma, self.rho, self.k, self.last = gamma, rho, 0, None

    def __call__(self, u):
        last = np.full(len(u), 1 / len(u)) if self.last is None else self.last
        self.last = descend_weights(last, u, gamma=at(self.gamma, self.k), rho=self.rho)
        self.k += 1
        return self.last


def batch_gradient(problem, x0, *, steps, lr, indices, weigh, every, sketch):
    """SMGD, MGD and CR-MOGM: at t mod R = 0 d = lambda^T U, else d = grad(lambda . F_A)(x_t)."""
    record = KeptRecord(x0)
    x = record.x[0]
    for t in range(steps):
        A = indices(t)
        n, S = len(A), problem.objectives
        due = t % every == 0
        u = problem.gradients(x, A)
        if due:
            weights = weigh(u)
            gradients, passes = (2 * n, (S + 1) * n) if sketch else (n, S * n)
        else:
            gradients, passes = n, n
        d = weights @ u
        x = x - at(lr, t) * d
        record.add(weights, d, x, due, samples=n, gradients=gradients, passes=passes)
    return record.trajectory()


def smgd(problem, x0, *, steps, lr, batches, every, sketch=False):
    """SMGD with weights of every R-th step."""
    return batch_gradient(
        problem,
        x0,
        steps=steps,
        lr=lr,
        indices=lambda t: batches[t],
        weigh=MinNormWeights(),
        every=every,
        sketch=sketch,
    )


def mgd(problem, x0, *, steps, lr, batches, every, sketch=False):
    """MGD with weights of every R-th step."""
    everything = np.arange(problem.n)
    return batch_gradient(
        problem,
        x0,
        steps=steps,
        lr=lr,
        indices=lambda t: everything,
        weigh=MinNormWeights(),
        every=every,
        sketch=sketch,
    )


def cr_mogm(problem, x0, *, steps, lr, batches, every, alpha, sketch=False):
    """CR-MOGM with weights of every R-th step, smoothed over these."""
    weigh = SmoothedWeights(alpha)
    return batch_gradient(
        problem, x0, steps=steps, lr=lr, indices=lambda t: batches[t], weigh=weigh, every=every, sketch=sketch
    )


def moco(problem, x0, *, steps, lr, batches, every, beta, gamma, rho=0.0, sketch=False):
    """MoCo: r_t = (1 - beta) r_{t-1} + beta grad(lambda . F_A)(x_t).

    t = 0: Y_0 = beta g_0 gives lambda_0, r_0 = lambda_0^T Y_0. Later solves use the S plain gradients g_t.
    """
    record = KeptRecord(x0)
    x, r = record.x[0], None
    weigh = DescendedWeights(gamma, rho)
    for t in range(steps):
        A = batches[t]
        n, S, b = len(A), problem.objectives, at(beta, t)
        g = problem.gradients(x, A)
        gradients, passes = n, n
        if t == 0:
            weights = weigh(b * g)
            r = weights @ (b * g)
            gradients, passes = (2 * n, (S + 1) * n) if sketch else (n, S * n)
        else:
            if t % every == 0:
                weights = weigh(g)
                gradients, passes = 2 * n, (S + 1) * n
            r = (1 - b) * r + b * (weights @ g)
        x = x - at(lr, t) * r
        record.add(weights, r, x, t % every == 0, samples=n, gradients=gradients, passes=passes)
    return record.trajectory()


def moco_plus(problem, x0, *, steps, lr, batches, every, beta, gamma, rho=0.0, sketch=False):
    """MoCo+: r_t = grad(lambda . F_A)(x_t) + (1 - beta)(r_{t-1} - grad(lambda . F_A)(x_{t-1})), both with lambda_t."""
    record = KeptRecord(x0)
    x, x_before, r = record.x[0], None, None
    weigh = DescendedWeights(gamma, rho)
    for t in range(steps):
        A = batches[t]
        n, S = len(A), problem.objectives
        g = problem.gradients(x, A)
        if t == 0:
            weights = weigh(g)
            r = weights @ g
            gradients, passes = (2 * n, (S + 1) * n) if sketch else (n, S * n)
        else:
            gradients, passes = 2 * n, 2 * n
            if t % every == 0:
                weights = weigh(g)
                gradients, passes = 3 * n, (S + 2) * n
            r = weights @ g + (1 - at(beta, t)) * (r - weights @ problem.gradients(x_before, A))
        x_before, x = x, x - at(lr, t) * r
        record.add(weights, r, x, t % every == 0, samples=n, gradients=gradients, passes=passes)
    return record.trajectory()


def recursive(problem, x0, *, steps, lr, batches, anchors, anchor, momentum=0.0, fixed=None, sketch=False):
    """Algorithm 1 of the paper and PAGE-MOO, with the weights of the anchors.

    else: r_t = r_{t-1} + grad(lambda . F_A)(x_t) - grad(lambda . F_A)(x_{t-1})

    ``anchors(t)`` says whether t is an anchor, ``anchor(t, directions)`` gives its samples. With ``fixed`` weights an
    anchor takes one pass.
    """
    record = KeptRecord(x0)
    x = record.x[0]
    x_before, r = x, None
    weights = fixed
    for t in range(steps):
        anchored = anchors(t)
        if anchored:
            indices = anchor(t, record.d)
            n, S = len(indices), problem.objectives
            u = problem.gradients(x, indices)
            gradients, passes = (2 * n, (S + 1) * n) if sketch else (n, S * n)
            if fixed is None:
                weights = min_norm(u)
            else:
                gradients = passes = n
            r = weights @ u
        else:
            A = batches[t]
            n = len(A)
            r = r + weights @ problem.gradients(x, A) - weights @ problem.gradients(x_before, A)
            gradients = passes = 2 * n
        x_before, x = x, x + at(momentum, t) * (x - x_before) - at(lr, t) * r
        record.add(weights, r, x, anchored and fixed is None, samples=n, gradients=gradients, passes=passes)
    return record.trajectory()


def stimulus(problem, x0, *, period, momentum=0.0, sketch=False, **run):
    """STIMULUS and STIMULUS-M with weights of the anchors."""
    return recursive(
        problem,
        x0,
        anchors=lambda t: t % period == 0,
        anchor=lambda t, directions: np.arange(problem.n),
        momentum=momentum,
        sketch=sketch,
        **run,
    )


def stimulus_plus(
    problem, x0, *, period, draw, sigma2, epsilon, c_gamma=8.0, c_epsilon=1.0, momentum=0.0, sketch=False, **run
):
    """STIMULUS+ and STIMULUS-M+ with weights of the anchors."""
    constants = {"sigma2": sigma2, "epsilon": epsilon, "c_gamma": c_gamma, "c_epsilon": c_epsilon}
    return recursive(
        problem,
        x0,
        anchors=lambda t: t % period == 0,
        anchor=adaptive_anchor(problem, period, draw, momentum or 1.0, **constants),
        momentum=momentum,
        sketch=sketch,
        **run,
    )


def page_moo(problem, x0, *, probability, coin, momentum=0.0, sketch=False, **run):
    """PAGE-MOO with weights of the anchors."""
    return recursive(
        problem,
        x0,
        anchors=lambda t: t == 0 or coin() < at(probability, t),
        anchor=lambda t, directions: np.arange(problem.n),
        momentum=momentum,
        sketch=sketch,
        **run,
    )


def vr_scalarisation(problem, x0, *, period, weights, **run):
    """STIMULUS with fixed weights: one pass at every point."""
    return recursive(
        problem,
        x0,
        anchors=lambda t: t % period == 0,
        anchor=lambda t, directions: np.arange(problem.n),
        fixed=np.array(weights),
        **run,
    )


def scalarisation(problem, x0, *, steps, lr, batches, weights):
    """SGD on the weighted sum of the losses: one pass."""
    record = KeptRecord(x0)
    x, weights = record.x[0], np.array(weights)
    for t in range(steps):
        d = weights @ problem.gradients(x, batches[t])
        x = x - at(lr, t) * d
        n = len(batches[t])
        record.add(weights, d, x, False, samples=n, gradients=n, passes=n)
    return record.trajectory()
