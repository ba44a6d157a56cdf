"""The min-norm problem over the simplex, solved exactly in float64; takes and returns tensors or arrays."""

import math
from contextlib import suppress
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dposv, dpotrs
from scipy.optimize import nnls
from torch import Tensor

from stimulus_moo.errors import InvalidOption, InvalidWeights

FloatArray: TypeAlias = npt.NDArray[np.float64]
Array = TypeVar("Array", Tensor, FloatArray)

INDEPENDENT = 1e-8  # squared distance of a row to the span of the others, over the longest row's, that needs no ridge
RIDGE = 1e-11  # makes every support positive definite; its KKT residual is at most RIDGE before refinement
NOISE = 1e-13  # relative size below which a negative number counts as rounding, in w and in the slopes
TOLERANCE = 1e-11  # KKT residual above which the safe path is tried as well
PATIENCE = 4  # rounds of pivoting without progress that count as a cycle


def min_norm_weights(gramian: Array) -> Array:
    """Return argmin over the simplex of ``weights @ gramian @ weights``, exactly, for any number of objectives.

    Several solutions are possible if the rows are linearly dependent; the choice is deterministic. A zero row gets all
    the weight, the first one if there are several.

    Args:
        gramian: S x S, symmetric and positive semi-definite up to rounding; a tensor or an array.

    Raises:
        InvalidOption: it is not a square matrix.
        InvalidWeights: it has an entry that is not finite.

    >>> import torch
    >>> min_norm_weights(torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]))
    tensor([0.5000, 0.2500, 0.2500])
    """
    return _like(solve(_array(gramian)), gramian)


def project_simplex(vector: Array) -> Array:
    """Return the Euclidean projection of a vector on the probability simplex.

    Raises:
        InvalidOption: it is not one-dimensional, or is empty.
        InvalidWeights: it has an entry that is not finite.

    >>> import torch
    >>> project_simplex(torch.tensor([0.5, 0.9, -2.0]))
    tensor([0.3000, 0.7000, 0.0000])
    """
    values = _array(vector)
    if values.ndim != 1 or not values.size:
        raise InvalidOption(f"vector must be one-dimensional and not empty, found shape {values.shape}")
    _require_finite(values, "vector")
    # The projection ignores a common shift, and entries more than 1 below the largest are always projected to 0.
    shifted = np.maximum(values / 2 - values.max() / 2, -0.5) * 2
    descending = np.sort(shifted)[::-1]
    thresholds = (np.cumsum(descending) - 1.0) / np.arange(1, len(values) + 1)
    projected: FloatArray = np.maximum(shifted - thresholds[np.flatnonzero(descending > thresholds)[-1]], 0.0)
    return _like(projected / projected.sum(), vector)


def kkt_residual(gramian: Array, weights: Array) -> float:
    """Return how far weights are from optimal for the min-norm problem: 0 is optimal, the solver reaches 1e-10.

    With v = l^T G l and m = sum_s l_s sqrt(G_ss) it is the largest (v - (G l)_s) / (m sqrt(G_ss)) over s with G_ss > 0,
    and 0 if all the weight is on zero rows.

    >>> import torch
    >>> kkt_residual(torch.eye(2), torch.tensor([0.5, 0.5]))
    0.0
    >>> kkt_residual(torch.eye(2), torch.tensor([1.0, 0.0]))
    1.0
    """
    matrix, values = _square(_array(gramian)), _array(weights)
    _require_finite(matrix, "gramian")
    if values.shape != (len(matrix),):
        raise InvalidOption(f"weights must hold {len(matrix)} numbers, found shape {values.shape}")
    positive = matrix.diagonal() > 0.0
    matrix, values = matrix[np.ix_(positive, positive)], values[positive]
    if not values.any():
        return 0.0
    balanced, scales = _balance(matrix)
    norms = np.sqrt(balanced.diagonal())
    solution = values / scales
    total = solution.sum()
    solution /= total
    slopes = balanced @ solution
    violations = total * (solution @ slopes) * scales - slopes
    return float((violations / norms).max() / (solution @ norms))


def solve(gramian: FloatArray) -> FloatArray:
    """Return the min-norm weights of an array.

    S = 2 has a closed form. Otherwise block principal pivoting finds the w >= 0 that minimises w^T G w / 2 - 1^T w, to
    which the weights are proportional: guess a support, solve on it, exchange every index with the wrong sign, repeat.
    A few Cholesky factorisations are enough for any S. Cholesky's backward error is a few roundings relative to the
    norms of the rows, so a support with the right signs is accepted without a further check.

    If the rows of a support are nearly dependent or of very different lengths, the problem is regularised: the rows are
    scaled by powers of two to norms in (1/2, 1], which is exact and keeps the information in small rows; a ridge of
    1e-11 makes w unique; one step of iterative refinement removes its bias. If pivoting cycles, the Gramian is
    indefinite by rounding, or the KKT residual is too large, negative eigenvalues are clipped and the Lawson-Hanson
    method is used.
    """
    gramian = _square(gramian)
    size = len(gramian)
    if size == 2:
        return _two_weights(gramian)
    _require_finite(gramian, "gramian")
    diagonal = gramian.diagonal()
    smallest = diagonal.argmin()
    if size == 1 or diagonal[smallest] <= 0.0:
        return _unit_vector(size, smallest)
    everywhere, ones = np.full(size, True), np.ones(size)
    found = _pivot(gramian, ones, everywhere, INDEPENDENT * diagonal[diagonal.argmax()], 0.0)
    if found is not None and (total := float(found[0].dot(ones))) < math.inf:
        return found[0] / total
    return _regularised_weights(gramian, everywhere)


def _array(value: Tensor | FloatArray) -> FloatArray:
    try:
        found = value.detach().double().cpu().numpy() if isinstance(value, Tensor) else value
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"expected a tensor or an array of numbers, found {value!r}") from error


def _like(result: FloatArray, given: Array) -> Array:
    if not isinstance(given, Tensor):
        return result
    tensor = torch.from_numpy(result)
    return tensor.to(given) if given.dtype.is_floating_point else tensor


def _square(gramian: FloatArray) -> FloatArray:
    if gramian.ndim != 2 or gramian.shape[0] != gramian.shape[1] or not gramian.size:
        raise InvalidOption(f"gramian must be a square matrix with at least one row, found shape {gramian.shape}")
    return gramian


def _require_finite(values: FloatArray, name: str) -> None:
    finite = np.isfinite(values)
    first = finite.argmin()  # the first False, if there is one; several times faster than all()
    if not finite.item(first):
        entry = tuple(int(index) for index in np.unravel_index(first, values.shape))
        raise InvalidWeights(f"{name} must be finite, found {values[entry]} at {entry}; check the gradients")


def _unit_vector(size: int, index: np.intp) -> FloatArray:
    vector = np.zeros(size)
    vector[index] = 1.0
    return vector


def _two_weights(gramian: FloatArray) -> FloatArray:
    """Solve S = 2 in closed form; the differences are accurate, and halving them first avoids overflow."""
    (first, inner), (other, second) = gramian.tolist()
    if not math.isfinite(first + inner + other + second):  # an overflow of the sum is not an error
        _require_finite(gramian, "gramian")
    to_first = 0.5 * second - 0.5 * inner  # proportional to the first weight if both are positive
    to_second = 0.5 * first - 0.5 * inner
    if to_first <= 0.0 or to_second <= 0.0:
        return np.array([1.0, 0.0] if first <= second else [0.0, 1.0])
    ratio = min(to_first, to_second) / max(to_first, to_second)
    smaller, larger = ratio / (1.0 + ratio), 1.0 / (1.0 + ratio)
    return np.array([smaller, larger] if to_first < to_second else [larger, smaller])


def _balance(gramian: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Scale the rows by powers of two to norms in (1/2, 1]; return their Gramian and the powers."""
    scales: FloatArray = np.exp2(np.floor(-0.5 * np.log2(gramian.diagonal())))
    return gramian * scales[:, None] * scales, scales


def _pivot(
    matrix: FloatArray, right: FloatArray, support: npt.NDArray[np.bool_], least: float, noise: float
) -> tuple[FloatArray, npt.NDArray[np.intp], FloatArray] | None:
    """Minimise w^T M w / 2 - r^T w over w >= 0 by block principal pivoting (Júdice and Pires 1994).

    Returns w, the indices of its support, and the Cholesky factor of M on it (lower triangle). Returns None on a cycle,
    or if a pivot of the factor is at most ``least``. Negative numbers up to ``noise`` times the norm of w count as 0.
    """
    size = len(right)
    fewest, patience = size + 1, PATIENCE
    while patience:
        indices = support.nonzero()[0]
        if len(indices) == size:
            factor, solution, failed = dposv(matrix.T, right, lower=1)
            signs = values = solution
        else:
            block = matrix.take(indices, 0).take(indices, 1)
            factor, values, failed = dposv(block.T, right[indices], lower=1, overwrite_a=1)
            solution = np.zeros(size)
            solution[indices] = values
            signs = matrix.dot(solution) - right  # the slopes; on the support w itself counts
            signs[indices] = values
        pivots = factor.diagonal()
        if failed or pivots[pivots.argmin()] ** 2 <= least:
            return None
        floor = -noise * math.sqrt(values.dot(values)) if noise else 0.0
        if signs[signs.argmin()] >= floor:
            return solution, indices, factor
        wrong = signs < floor
        count = int(np.count_nonzero(wrong))
        fewest, patience = (count, PATIENCE) if count < fewest else (fewest, patience - 1)
        support = support ^ wrong
    return None


def _regularised_weights(gramian: FloatArray, support: npt.NDArray[np.bool_]) -> FloatArray:
    """Solve with balanced rows and a ridge, for Gramians that are singular or badly scaled.

    With a the scales and C the Gramian of the scaled rows, the weights are proportional to a * w, where w >= 0
    minimises w^T C w / 2 - a^T w.
    """
    balanced, scales = _balance(gramian)
    scales /= scales.max()
    solution = _ridge_solution(balanced, scales, support)
    if solution is None or not _residual(balanced, scales, solution) <= TOLERANCE:
        solution = _safe_solution(balanced, scales, solution)
    return solution * scales / float(solution.dot(scales))


def _ridge_solution(balanced: FloatArray, scales: FloatArray, support: npt.NDArray[np.bool_]) -> FloatArray | None:
    """Return the w of :func:`_regularised_weights`, or None if pivoting fails."""
    ridged = balanced.copy()
    ridged.ravel()[:: len(scales) + 1] += RIDGE
    found = _pivot(ridged, scales, support, 0.0, NOISE)
    if found is None:
        return None
    solution, indices, factor = found
    solution[indices] += dpotrs(factor, RIDGE * solution[indices], lower=1)[0]
    return np.maximum(solution, 0.0)


def _residual(balanced: FloatArray, scales: FloatArray, solution: FloatArray) -> float:
    """Estimate the KKT residual with every balanced row's norm set to 1; the exact one is at most 4 times larger."""
    slopes = balanced.dot(solution)
    violations = scales * (solution.dot(slopes) / solution.dot(scales)) - slopes
    return float(violations.max() / math.sqrt(solution.dot(solution)))


def _safe_solution(balanced: FloatArray, scales: FloatArray, candidate: FloatArray | None) -> FloatArray:
    """Return the best of ``candidate``, the Lawson-Hanson solution, and pivoting from the latter's support."""
    size = len(scales)
    balanced = np.clip(balanced, -1.0, 1.0)  # inner products of rows with norms in (1/2, 1]
    values, vectors = np.linalg.eigh(balanced)
    ridged = (vectors * np.maximum(values, 0.0)) @ vectors.T + RIDGE * np.eye(size)
    factor = np.linalg.cholesky(ridged)
    candidates = [_unit_vector(size, scales.argmax())]
    if candidate is not None and np.isfinite(candidate).all():
        candidates.append(candidate)
    with suppress(RuntimeError):  # too many iterations
        candidates.append(nnls(factor.T, solve_triangular(factor, scales, lower=True), maxiter=10 * size)[0])
    polished = _ridge_solution(balanced, scales, candidates[-1] > 0.0)
    if polished is not None:
        candidates.append(polished)
    return min(candidates, key=lambda solution: _residual(balanced, scales, solution))
