"""Finite-sum test problems in plain numpy: mean losses and hand-derived gradients of every objective.

A problem has `n` samples, `objectives` (S) and `dimension` (P). `losses(x, indices)` and
`gradients(x, indices)` are means over the indices given (repeats count), of shape (S,) and (S, P);
`full_losses(x)` and `full_gradients(x)` are means over all n samples. The raw arrays are attributes, so
that the same per-sample losses can be written in another framework.
"""

import numpy as np


class Problem:
    """The means over all samples, for problems that define the means over some."""

    n: int
    objectives: int
    dimension: int

    def losses(self, x, indices):
        raise NotImplementedError

    def gradients(self, x, indices):
        raise NotImplementedError

    def full_losses(self, x):
        return self.losses(x, np.arange(self.n))

    def full_gradients(self, x):
        return self.gradients(x, np.arange(self.n))


class NonconvexSum(Problem):
    """Three conflicting tanh regressions with a nonconvex regulariser.

    f_sj(x) = 0.5 (tanh(a_sj . x) - y_sj)^2 + r sum_k x_k^2 / (1 + x_k^2)

    a_sj = `features[s, j]` (array (3, n, P)), y_sj = `targets[s, j]` (array (3, n)), r = `regularisation`.
    Each objective's targets come from its own hidden x, so no point suits all three.
    """

    objectives = 3
    regularisation = 0.05

    def __init__(self, seed=0, n=60, dimension=5):
        rng = np.random.default_rng(seed)
        self.n = n
        self.dimension = dimension
        self.features = rng.normal(size=(self.objectives, n, dimension))
        hidden = rng.normal(size=(self.objectives, dimension))
        noise = 0.1 * rng.normal(size=(self.objectives, n))
        self.targets = np.tanh(np.einsum("sjp,sp->sj", self.features, hidden)) + noise

    def losses(self, x, indices):
        residuals = np.tanh(self.features[:, indices] @ x) - self.targets[:, indices]
        regulariser = self.regularisation * np.sum(x**2 / (1 + x**2))
        return np.mean(0.5 * residuals**2, axis=1) + regulariser

    def gradients(self, x, indices):
        features = self.features[:, indices]
        outputs = np.tanh(features @ x)
        # d/dz 0.5 (tanh z - y)^2 = (tanh z - y)(1 - tanh^2 z)
        slopes = (outputs - self.targets[:, indices]) * (1 - outputs**2)
        # d/dx x^2 / (1 + x^2) = 2x / (1 + x^2)^2
        regulariser = self.regularisation * 2 * x / (1 + x**2) ** 2
        return np.mean(slopes[:, :, None] * features, axis=1) + regulariser


class Counterexample(Problem):
    """The biased-direction counterexample of FACTS.md: mini-batch min-norm weights have the wrong limit.

    f_sj(x) = a_sj x + h x^2 / 2,  h = 1,  a_1 = (-1, 4, 0.1),  a_2 = (-1, 0.1, 4)

    Both means agree, so the only Pareto point is `pareto` = -3.1/3 = -1.0333. With one sample the min-norm
    direction is x - 1 (sample 0) or x + 0.1 (samples 1 and 2, for x >= -0.1), whose mean vanishes at
    `biased` = 0.8/3 = 0.2667. `start` is x_0 = 3.
    """

    n = 3
    objectives = 2
    dimension = 1
    pareto = -3.1 / 3
    biased = 0.8 / 3

    def __init__(self):
        self.slopes = np.array([[-1.0, 4.0, 0.1], [-1.0, 0.1, 4.0]])  # a_sj
        self.curvature = 1.0  # h
        self.start = np.array([3.0])

    def losses(self, x, indices):
        return np.mean(self.slopes[:, indices], axis=1) * x[0] + self.curvature * x[0] ** 2 / 2

    def gradients(self, x, indices):
        return np.mean(self.slopes[:, indices] + self.curvature * x[0], axis=1)[:, None]


class QuadraticSum(Problem):
    """Strongly convex quadratics with known curvature.

    f_sj(x) = 0.5 (x - c_sj)^T H_sj (x - c_sj)

    H_sj = `hessians[s, j]` (array (S, n, P, P), symmetric, eigenvalues in [0.5, 2]), c_sj = `centres[s, j]`
    (array (S, n, P), scattered round one centre per objective). `L` and `mu` are the largest and the smallest
    eigenvalue over all H_sj.
    """

    def __init__(self, seed, n, dimension, objectives):
        rng = np.random.default_rng(seed)
        self.n = n
        self.objectives = objectives
        self.dimension = dimension
        rotations, _ = np.linalg.qr(rng.normal(size=(objectives, n, dimension, dimension)))
        eigenvalues = rng.uniform(0.5, 2.0, size=(objectives, n, dimension))
        self.hessians = np.einsum("sjpk,sjk,sjqk->sjpq", rotations, eigenvalues, rotations)
        self.hessians = (self.hessians + self.hessians.swapaxes(2, 3)) / 2
        middles = 2 * rng.normal(size=(objectives, 1, dimension))
        self.centres = middles + 0.5 * rng.normal(size=(objectives, n, dimension))
        self.L = float(eigenvalues.max())
        self.mu = float(eigenvalues.min())

    def losses(self, x, indices):
        offsets = x - self.centres[:, indices]
        forms = np.einsum("sjp,sjpq,sjq->sj", offsets, self.hessians[:, indices], offsets)
        return np.mean(0.5 * forms, axis=1)

    def gradients(self, x, indices):
        offsets = x - self.centres[:, indices]
        return np.mean(np.einsum("sjpq,sjq->sjp", self.hessians[:, indices], offsets), axis=1)
