"""Literal twins: every method in plain float64 numpy, from the pseudo-code, sharing no code with src.

All methods are called alike, `method(problem, x0, *, steps, lr, batches, ...) -> Trajectory`: `problem` is
one of problems.py, `batches[t]` the integer indices of step t's mini-batch A, and lr (eta), alpha, beta,
gamma and momentum are numbers or callables of t. t runs over 0..steps-1. The weights' subproblems are solved
in rational arithmetic, so they are exact for the rows given.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np


@dataclass(frozen=True)
class Trajectory:
    """What a run of T steps went through; `samples` and `gradients` are the counters after each step."""

    x: np.ndarray  # (T + 1, P): x_0 .. x_T
    weights: np.ndarray  # (T, S): lambda_t
    d: np.ndarray  # (T, P): d_t = sum_s lambda_t^s u_t^s
    u: np.ndarray  # (T, S, P): the estimates u_t^s (y_t^s in MoCo)
    samples: np.ndarray  # (T,): samples drawn
    gradients: np.ndarray  # (T,): per-sample multi-gradient evaluations


class Record:
    """Collects a trajectory step by step."""

    def __init__(self, x0):
        self.x = [np.array(x0, dtype=np.float64)]
        self.weights, self.d, self.u = [], [], []
        self.samples, self.gradients = [], []

    def add(self, u, weights, d, x_next, *, samples, gradients):
        self.u.append(u)
        self.weights.append(weights)
        self.d.append(d)
        self.x.append(x_next)
        self.samples.append(samples)
        self.gradients.append(gradients)

    def trajectory(self):
        return Trajectory(
            x=np.array(self.x),
            weights=np.array(self.weights),
            d=np.array(self.d),
            u=np.array(self.u),
            samples=np.cumsum(self.samples),
            gradients=np.cumsum(self.gradients),
        )


def at(value, t):
    """The value of a schedule, a number or a callable of t, at step t."""
    return value(t) if callable(value) else value


# Subproblems over the simplex


def supports(count):
    """All non-empty subsets of range(count), the smallest first."""
    for size in range(1, count + 1):
        yield from combinations(range(count), size)


def solve(matrix, right):
    """Gaussian elimination on Fractions for a positive semidefinite matrix; None if it is singular."""
    size = len(right)
    rows = [[*map(Fraction, row), Fraction(value)] for row, value in zip(matrix, right, strict=True)]
    for k in range(size):
        if rows[k][k] == 0:
            return None
        for i in range(k + 1, size):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    solution = [Fraction(0)] * size
    for k in reversed(range(size)):
        known = sum(rows[k][i] * solution[i] for i in range(k + 1, size))
        solution[k] = (rows[k][size] - known) / rows[k][k]
    return solution


def min_norm(u):
    """Eq. (mgda): argmin over the simplex of ||sum_s lambda^s u^s||^2 for the S rows of u.

    Exact by enumeration: on each support, lambda = (1 - sum z, z) with z the unconstrained minimiser of
    ||u_0 + sum_i z_i (u_i - u_0)||^2; of the feasible ones the best is kept (the smallest support if several
    tie). Affinely dependent supports are skipped: a smaller one is as good. Costs 2^S: for small S.
    """
    count = len(u)
    exact = [[Fraction(float(value)) for value in row] for row in u]
    scale = max(value.denominator for row in exact for value in row)  # powers of two: all values become ints
    rows = [[int(value * scale) for value in row] for row in exact]
    gram = [[sum(a * b for a, b in zip(p, q, strict=True)) for q in rows] for p in rows]

    best, best_value = None, None
    for support in supports(count):
        base, *others = support
        matrix = [[gram[i][j] - gram[i][base] - gram[base][j] + gram[base][base] for j in others] for i in others]
        right = [gram[base][base] - gram[i][base] for i in others]
        z = solve(matrix, right)
        if z is None:
            continue
        weights = dict(zip(support, [1 - sum(z), *z], strict=True))
        if min(weights.values()) < 0:
            continue
        # At the minimiser, ||v||^2 = v . u_0 because v is orthogonal to every difference u_i - u_0.
        value = sum(weight * gram[i][base] for i, weight in weights.items())
        if best is None or value < best_value:
            best, best_value = weights, value
    return np.array([float(best.get(s, 0)) for s in range(count)])


def project_simplex(v):
    """The point of the simplex nearest to v, exact by enumeration of the supports."""
    exact = [Fraction(float(value)) for value in v]
    best, best_distance = None, None
    for support in supports(len(exact)):
        threshold = (sum(exact[s] for s in support) - 1) / len(support)
        point = [value - threshold if s in support else Fraction(0) for s, value in enumerate(exact)]
        if min(point) < 0:
            continue
        distance = sum((a - b) ** 2 for a, b in zip(point, exact, strict=True))
        if best is None or distance < best_distance:
            best, best_distance = point, distance
    return np.array([float(value) for value in best])


# Baselines (DESIGN.md, sections 1 and 3)


def mgd(problem, x0, *, steps, lr, batches=None):
    """MGD: u_t^s = grad f_s(x_t) over all n samples, min-norm weights, x_{t+1} = x_t - eta d_t."""
    record = Record(x0)
    x = record.x[0]
    for t in range(steps):
        u = problem.full_gradients(x)
        weights = min_norm(u)
        d = weights @ u
        x = x - at(lr, t) * d
        record.add(u, weights, d, x, samples=problem.n, gradients=problem.n)
    return record.trajectory()


def smgd(problem, x0, *, steps, lr, batches):
    """SMGD: MGD with u_t^s = grad f_A^s(x_t), the mean over the mini-batch A."""
    record = Record(x0)
    x = record.x[0]
    for t in range(steps):
        u = problem.gradients(x, batches[t])
        weights = min_norm(u)
        d = weights @ u
        x = x - at(lr, t) * d
        record.add(u, weights, d, x, samples=len(batches[t]), gradients=len(batches[t]))
    return record.trajectory()


def cr_mogm(problem, x0, *, steps, lr, batches, alpha):
    """CR-MOGM: SMGD with smoothed weights.

    lambda_t = alpha_t lambda_{t-1} + (1 - alpha_t) lambda_hat_t, lambda_hat_t the min-norm weights of the
    mini-batch gradients; lambda_0 = lambda_hat_0, so alpha_0 is not used.
    """
    record = Record(x0)
    x = record.x[0]
    weights = None
    for t in range(steps):
        u = problem.gradients(x, batches[t])
        newest = min_norm(u)
        weights = newest if t == 0 else at(alpha, t) * weights + (1 - at(alpha, t)) * newest
        d = weights @ u
        x = x - at(lr, t) * d
        record.add(u, weights, d, x, samples=len(batches[t]), gradients=len(batches[t]))
    return record.trajectory()


def descend_weights(weights, y, *, gamma, rho):
    """lambda_t = Proj_simplex(lambda_{t-1} - gamma_t (Y Y^T + rho I) lambda_{t-1})."""
    return project_simplex(weights - gamma * ((y @ y.T + rho * np.eye(len(y))) @ weights))


def moco(problem, x0, *, steps, lr, batches, beta, gamma, rho=0.0):
    """MoCo, in this order: y, lambda, d, x.

    y_t = y_{t-1} - beta_t (y_{t-1} - g_t), y_{-1} = 0; lambda_t by `descend_weights`, lambda_{-1} = 1/S;
    d_t = lambda_t^T Y_t.
    """
    record = Record(x0)
    x = record.x[0]
    y = np.zeros((problem.objectives, problem.dimension))
    weights = np.full(problem.objectives, 1 / problem.objectives)
    for t in range(steps):
        y = y - at(beta, t) * (y - problem.gradients(x, batches[t]))
        weights = descend_weights(weights, y, gamma=at(gamma, t), rho=rho)
        d = weights @ y
        x = x - at(lr, t) * d
        record.add(y, weights, d, x, samples=len(batches[t]), gradients=len(batches[t]))
    return record.trajectory()


def moco_plus(problem, x0, *, steps, lr, batches, beta, gamma, rho=0.0):
    """MoCo+ : MoCo with the Storm estimator, the same batch at both points.

    y_t = g_t(x_t) + (1 - beta_t)(y_{t-1} - g_t(x_{t-1})), y_0 = g_0(x_0).
    """
    record = Record(x0)
    x = record.x[0]
    x_before, y = None, None
    weights = np.full(problem.objectives, 1 / problem.objectives)
    for t in range(steps):
        size = len(batches[t])
        if t == 0:
            y = problem.gradients(x, batches[t])
            evaluations = size
        else:
            correction = y - problem.gradients(x_before, batches[t])
            y = problem.gradients(x, batches[t]) + (1 - at(beta, t)) * correction
            evaluations = 2 * size
        weights = descend_weights(weights, y, gamma=at(gamma, t), rho=rho)
        d = weights @ y
        x_before, x = x, x - at(lr, t) * d
        record.add(y, weights, d, x, samples=size, gradients=evaluations)
    return record.trajectory()


# The STIMULUS family (paper, Algorithm 1)


def algorithm_1(problem, x0, *, steps, lr, batches, period, anchor, momentum, weigh=min_norm):
    """Algorithm 1 for all four variants, which differ in `anchor(t, directions) -> indices` and momentum.

    mod(t, q) = 0:  u_t^s = mean of grad f_sj(x_t) over the anchor            (lines 5 and 8)
    else:           u_t^s = u_{t-1}^s + grad f_A^s(x_t) - grad f_A^s(x_{t-1})   (line 11, Eq. (vr))
    then lambda_t by Eq. (mgda), d_t, and x_{t+1} = x_t + alpha (x_t - x_{t-1}) - eta d_t with x_{-1} = x_0.
    Another rule than Eq. (mgda) is given as `weigh`.
    """
    record = Record(x0)
    x = record.x[0]
    x_before, u = x, None
    for t in range(steps):
        if t % period == 0:
            indices = anchor(t, record.d)
            u = problem.gradients(x, indices)
            samples = evaluations = len(indices)
        else:
            u = u + problem.gradients(x, batches[t]) - problem.gradients(x_before, batches[t])
            samples, evaluations = len(batches[t]), 2 * len(batches[t])
        weights = weigh(u)
        d = weights @ u
        x_before, x = x, x + at(momentum, t) * (x - x_before) - at(lr, t) * d
        record.add(u, weights, d, x, samples=samples, gradients=evaluations)
    return record.trajectory()


def window_gamma(directions, period, alpha):
    """gamma_t at an anchor step t: (1/q) sum over the last q directions of ||alpha^(t-1-i) d_i||^2.

    `directions` is d_0..d_{t-1}; the window starts with the last anchor step. alpha = 1 is STIMULUS+, which
    has no such factor.
    """
    t = len(directions)
    return sum(np.sum((alpha ** (t - 1 - i) * directions[i]) ** 2) for i in range(t - period, t)) / period


def adaptive_size(n, gamma, *, sigma2, epsilon, c_gamma, c_epsilon):
    """Eq. (STIMULUSP2): |N| = ceil(min{c_gamma sigma^2 / gamma_t, c_epsilon sigma^2 / epsilon, n}).

    At least one. A term whose denominator is missing (gamma None, at t = 0) or zero drops out.
    """
    terms = [n]
    if gamma:
        terms.append(c_gamma * sigma2 / gamma)
    if epsilon:
        terms.append(c_epsilon * sigma2 / epsilon)
    return max(1, math.ceil(min(terms)))


def adaptive_anchor(problem, period, draw, alpha, **constants):
    """The anchor of the + variants: `draw(size)` gives the indices of an epsilon-adaptive batch."""

    def anchor(t, directions):
        gamma = None if t == 0 else window_gamma(directions, period, alpha)
        return draw(adaptive_size(problem.n, gamma, **constants))

    return anchor


def stimulus(problem, x0, *, steps, lr, batches, period):
    """STIMULUS: full anchor, no momentum."""
    return stimulus_m(problem, x0, steps=steps, lr=lr, batches=batches, period=period, momentum=0.0)


def stimulus_m(problem, x0, *, steps, lr, batches, period, momentum):
    """STIMULUS-M: full anchor, heavy-ball momentum."""
    return algorithm_1(
        problem,
        x0,
        steps=steps,
        lr=lr,
        batches=batches,
        period=period,
        anchor=lambda t, directions: np.arange(problem.n),
        momentum=momentum,
    )


def stimulus_plus(problem, x0, *, steps, lr, batches, period, draw, sigma2, epsilon, c_gamma=8.0, c_epsilon=1.0):
    """STIMULUS+: adaptive anchor, no momentum; gamma_{t+1} = sum ||d_i||^2 / q."""
    constants = {"sigma2": sigma2, "epsilon": epsilon, "c_gamma": c_gamma, "c_epsilon": c_epsilon}
    return algorithm_1(
        problem,
        x0,
        steps=steps,
        lr=lr,
        batches=batches,
        period=period,
        anchor=adaptive_anchor(problem, period, draw, 1.0, **constants),
        momentum=0.0,
    )


def stimulus_m_plus(
    problem, x0, *, steps, lr, batches, period, momentum, draw, sigma2, epsilon, c_gamma=8.0, c_epsilon=1.0
):
    """STIMULUS-M+: adaptive anchor, heavy-ball momentum; gamma_{t+1} = sum ||alpha^(t-i) d_i||^2 / q.

    Here momentum (alpha) is a number, as its powers weigh the window. alpha = 0 keeps d_t alone (0^0 = 1).
    """
    constants = {"sigma2": sigma2, "epsilon": epsilon, "c_gamma": c_gamma, "c_epsilon": c_epsilon}
    return algorithm_1(
        problem,
        x0,
        steps=steps,
        lr=lr,
        batches=batches,
        period=period,
        anchor=adaptive_anchor(problem, period, draw, momentum, **constants),
        momentum=momentum,
    )


# Beyond the paper (DESIGN.md, section 1; the boxes in the docstrings of Page and Filtered)


def page_moo(problem, x0, *, steps, lr, batches, probability, coin):
    """PAGE-MOO without momentum."""
    return page_moo_m(
        problem, x0, steps=steps, lr=lr, batches=batches, probability=probability, coin=coin, momentum=0.0
    )


def page_moo_m(problem, x0, *, steps, lr, batches, probability, coin, momentum):
    """PAGE-MOO with heavy-ball momentum; `coin()` is uniform on [0, 1) and is not asked at t = 0.

    t = 0 or coin() < p:  u_t^s = grad f_s(x_t) over all n samples
    else:                 u_t^s = u_{t-1}^s + grad f_A^s(x_t) - grad f_A^s(x_{t-1})
    """
    record = Record(x0)
    x = record.x[0]
    x_before, u = x, None
    for t in range(steps):
        if t == 0 or coin() < at(probability, t):
            u = problem.full_gradients(x)
            samples = evaluations = problem.n
        else:
            u = u + problem.gradients(x, batches[t]) - problem.gradients(x_before, batches[t])
            samples, evaluations = len(batches[t]), 2 * len(batches[t])
        weights = min_norm(u)
        d = weights @ u
        x_before, x = x, x + at(momentum, t) * (x - x_before) - at(lr, t) * d
        record.add(u, weights, d, x, samples=samples, gradients=evaluations)
    return record.trajectory()


def spread(halves, sizes, weights):
    """The variance of the mean over a batch that its two halves show, for the lambda-weighted sum of the rows.

    The means a and b over n_1 and n_2 samples differ by (1/n_1 + 1/n_2) sigma^2 in the mean square, and the mean over
    n = n_1 + n_2 has the variance sigma^2 / n: so it is (n_1 n_2 / n^2) ||a - b||^2.
    """
    a, b = (weights @ rows for rows in halves)
    return sizes[0] * sizes[1] / sum(sizes) ** 2 * np.sum((a - b) ** 2)


def filtered(problem, x0, *, steps, lr, batches, probe=8, memory=0.9):
    """Filtered STIMULUS without momentum."""
    return filtered_m(problem, x0, steps=steps, lr=lr, batches=batches, momentum=0.0, probe=probe, memory=memory)


def filtered_m(problem, x0, *, steps, lr, batches, momentum, probe=8, memory=0.9):
    """Filtered STIMULUS with heavy-ball momentum: the gain b of a scalar Kalman filter mixes difference and gradient.

    u_t = (1 - b)(u_{t-1} + D) + b g       D = grad f_A(x_t) - grad f_A(x_{t-1}),  g = grad f_A(x_t)
    b   = clip((E + v/2) / (E + R), 0, 1)
    E   = (1 - b)^2 (E + v) + b^2 R + b (1 - b) v

    E, v and R are the variances of the error of u, of D and of g under lambda_{t-1} (1/S at t = 0), the last two from
    `spread`. v goes with ||x_t - x_{t-1}||^2, and is at most 4 R; `slope` is the ratio. R, `slope` and the squared
    length of d are running means with the share `memory` of the old value. While a second point does not pay
    (b = 1, E = R, and the batch is not cut), it is evaluated at every probe-th step only. Until `slope` is known, v is
    taken as 2 R and b as 1/2. At t = 0, u = g.
    """

    def mean(old, new):
        return new if old is None else memory * old + (1 - memory) * new

    record = Record(x0)
    x = record.x[0]
    x_before, u = x, None
    weights = np.full(problem.objectives, 1 / problem.objectives)
    E, R, slope, signal, since = None, None, None, None, 0
    for t in range(steps):
        A = batches[t]
        first, second = A[: math.ceil(len(A) / 2)], A[math.ceil(len(A) / 2) :]
        sizes = len(first), len(second)
        g, distance2 = problem.gradients(x, A), np.sum((x - x_before) ** 2)
        since += 1
        points, cut = 2, True
        if t == 0:
            u, points, since = g, 1, 0
        else:
            v = None if slope is None else min(slope * distance2, 4 * R)
            if v is not None:
                settled = min(v / 2 + math.sqrt(max(v * R - v**2 / 4, 0)), R)  # E* of the docstring, at most R
                pays = max(signal - E, 0) + 2 * settled < R
                if since < probe and not pays:
                    u, E, points, cut = g, R, 1, False
        if points == 2:
            since = 0
            b, v = (0.5, 2 * R) if v is None else (min((E + v / 2) / (E + R), 1), v)
            u = (1 - b) * (u + g - problem.gradients(x_before, A)) + b * g
            E = (1 - b) ** 2 * (E + v) + b**2 * R + b * (1 - b) * v
        if cut:
            now = [problem.gradients(x, half) for half in (first, second)]
            variance = spread(now, sizes, weights)
            E = variance if R is None else E
            R = mean(R, variance)
        if points == 2 and distance2 > 0:
            changes = [a - problem.gradients(x_before, half) for a, half in zip(now, (first, second), strict=True)]
            slope = mean(slope, spread(changes, sizes, weights) / distance2)
        weights = min_norm(u)
        d = weights @ u
        signal = mean(signal, np.sum(d**2))
        x_before, x = x, x + at(momentum, t) * (x - x_before) - at(lr, t) * d
        record.add(u, weights, d, x, samples=len(A), gradients=points * len(A))
    return record.trajectory()


def vr_scalarisation(problem, x0, *, steps, lr, batches, period, weights):
    """STIMULUS with the same weights at every step."""
    return algorithm_1(
        problem,
        x0,
        steps=steps,
        lr=lr,
        batches=batches,
        period=period,
        anchor=lambda t, directions: np.arange(problem.n),
        momentum=0.0,
        weigh=lambda u: np.array(weights),
    )


def scalarisation(problem, x0, *, steps, lr, batches, weights):
    """SGD on the weighted sum of the losses: x_{t+1} = x_t - eta sum_s lambda^s grad f_A^s(x_t)."""
    record = Record(x0)
    x = record.x[0]
    weights = np.array(weights)
    for t in range(steps):
        u = problem.gradients(x, batches[t])
        d = weights @ u
        x = x - at(lr, t) * d
        record.add(u, weights, d, x, samples=len(batches[t]), gradients=len(batches[t]))
    return record.trajectory()


def scalarisation_adam(problem, x0, *, steps, lr, batches, weights, beta1=0.9, beta2=0.999, eps=1e-8):
    """Adam (Kingma and Ba 2015, Algorithm 1) on the weighted sum of the losses.

    m_t = beta_1 m_{t-1} + (1 - beta_1) d_t,   v_t = beta_2 v_{t-1} + (1 - beta_2) d_t^2,   from zero,
    x_{t+1} = x_t - eta (m_t / (1 - beta_1^{t+1})) / (sqrt(v_t / (1 - beta_2^{t+1})) + eps)
    """
    record = Record(x0)
    x = record.x[0]
    weights = np.array(weights)
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t in range(steps):
        u = problem.gradients(x, batches[t])
        d = weights @ u
        m = beta1 * m + (1 - beta1) * d
        v = beta2 * v + (1 - beta2) * d**2
        x = x - at(lr, t) * (m / (1 - beta1 ** (t + 1))) / (np.sqrt(v / (1 - beta2 ** (t + 1))) + eps)
        record.add(u, weights, d, x, samples=len(batches[t]), gradients=len(batches[t]))
    return record.trajectory()


def stimulus_adam(problem, x0, *, steps, lr, batches, period, beta1=0.9, beta2=0.95, eps=1e-8):
    """STIMULUS's rows and weights, the latter in the Euclidean metric, with Adam on d."""
    record = Record(x0)
    x = record.x[0]
    x_before, u, m, v = x, None, np.zeros_like(x), np.zeros_like(x)
    for t in range(steps):
        if t % period == 0:
            u = problem.gradients(x, np.arange(problem.n))
            samples = evaluations = problem.n
        else:
            u = u + problem.gradients(x, batches[t]) - problem.gradients(x_before, batches[t])
            samples, evaluations = len(batches[t]), 2 * len(batches[t])
        weights = min_norm(u)
        d = weights @ u
        m = beta1 * m + (1 - beta1) * d
        v = beta2 * v + (1 - beta2) * d**2
        step = (m / (1 - beta1 ** (t + 1))) / (np.sqrt(v / (1 - beta2 ** (t + 1))) + eps)
        x_before, x = x, x - at(lr, t) * step
        record.add(u, weights, d, x, samples=samples, gradients=evaluations)
    return record.trajectory()


def auto(problem, x0, *, steps, lr, batches, beta1=0.9, beta2=0.99, eps=1e-8, memory=0.9):
    """Auto with weights at every step, in the Euclidean metric, before the losses stall: Adam on balanced weights.

    n_s = |u^s|, and N the matrix of cosines; log n and N are running means over the steps with the share `memory` of
    the old value. lambda = g / n times the min-norm weights of N, g the geometric mean of n; d = lambda^T U; Adam on d.
    """
    record = Record(x0)
    x = record.x[0]
    logs, cosines, m, v = None, None, np.zeros_like(x), np.zeros_like(x)
    for t in range(steps):
        u = problem.gradients(x, batches[t])
        n = np.sqrt(np.sum(u**2, axis=1))
        unit = u / n[:, None]
        logs = np.log(n) if t == 0 else memory * logs + (1 - memory) * np.log(n)
        cosines = unit @ unit.T if t == 0 else memory * cosines + (1 - memory) * unit @ unit.T
        values, vectors = np.linalg.eigh(cosines)
        root = vectors * np.sqrt(np.maximum(values, 0.0))  # rows with these cosines
        weights = np.exp(logs.mean() - logs) * min_norm(root)
        d = weights @ u
        m = beta1 * m + (1 - beta1) * d
        v = beta2 * v + (1 - beta2) * d**2
        x = x - at(lr, t) * (m / (1 - beta1 ** (t + 1))) / (np.sqrt(v / (1 - beta2 ** (t + 1))) + eps)
        record.add(u, weights, d, x, samples=len(batches[t]), gradients=len(batches[t]))
    return record.trajectory()
