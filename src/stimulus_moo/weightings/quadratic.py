"""A small convex quadratic program over weights, for the rules that use losses; solved by an active-set method."""

import numpy as np

from stimulus_moo.weightings.solver import FloatArray

RIDGE = 1e-12  # added to the diagonal, relative to its largest entry: makes every support solvable
NOISE = 1e-12  # relative size below which a multiplier counts as zero


def minimise_quadratic(gramian: FloatArray, gains: FloatArray, shared: FloatArray) -> FloatArray:
    """Return argmin of x^T G x / 2 - q^T x over x >= 0 with ``shared @ x == 1``.

    ``gains`` is q, and ``shared`` has 1 for the entries that sum to one and 0 for the others; some entry must be 1.
    A primal active-set method: solve on the support, step to the first entry that becomes negative, and let an entry in
    whose multiplier is negative. Every iterate is feasible and the value never rises.
    """
    size = len(gains)
    largest = float(gramian.diagonal().max())
    scale = largest if largest > 0.0 else 1.0
    matrix, right = gramian / scale + RIDGE * np.eye(size), gains / scale
    x = np.zeros(size)
    start = int(np.argmax(np.where(shared > 0.0, right, -np.inf)))
    x[start] = 1.0
    support = x > 0.0
    for _ in range(20 * size + 20):
        target, price = _on_support(matrix, right, shared, support)
        step = target - x
        falling = support & (step < 0.0) & (target < 0.0)
        if falling.any():
            ratios = np.where(falling, x / np.where(falling, -step, 1.0), np.inf)
            first = int(ratios.argmin())
            x = np.maximum(x + ratios[first] * step, 0.0)
            x[first], support[first] = 0.0, False
            continue
        x = target
        slopes = matrix @ x - right + price * shared
        slopes[support] = 0.0
        worst = int(slopes.argmin())
        if slopes[worst] >= -NOISE * (1.0 + float(np.abs(right).max())):
            break
        support[worst] = True
    return x


def _on_support(
    matrix: FloatArray, right: FloatArray, shared: FloatArray, support: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[FloatArray, float]:
    """Return the minimum with zeros off the support, and the multiplier of the sum."""
    indices = np.flatnonzero(support)
    count = len(indices)
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = matrix[np.ix_(indices, indices)]
    system[count, :count] = system[:count, count] = shared[indices]
    solution = np.linalg.lstsq(system, np.append(right[indices], 1.0), rcond=None)[0]
    x = np.zeros(len(right))
    x[indices] = solution[:count]
    return x, float(solution[count])
