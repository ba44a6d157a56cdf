"""How fast and how exact are min-norm weights, against TorchJD and quadprog, and how does the time grow with S?

Every size has three random Gramians of S rows in 2 S dimensions, regular enough for quadprog to need no ridge.
TorchJD's MGDAWeighting is compared with ``MinNorm``, tensor in and tensor out; quadprog, called bare with its
constraints made beforehand, with the solver below ``MinNorm``, array in and array out.

The relative excess of weights l is (l^T G l - best) / best, worst of the three Gramians, with the values summed in
extended precision (np.longdouble) and l clipped at 0 and scaled to sum to one. ``best`` is the least value over the
solutions of all sides and over the minimisers on their supports, refined in extended precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve

from benchmarks.timing import alternate
from stimulus_moo import MinNorm
from stimulus_moo.weightings.solver import FloatArray, kkt_residual, min_norm_weights

TITLE = "Min-norm weights: random Gramians, rows in 2 S dimensions"
COLUMNS = [
    "S",
    "MinNorm, microseconds",
    "bare solver, microseconds",
    "TorchJD / MinNorm",
    "quadprog / bare solver",
    "excess, ours",
    "excess, quadprog",
    "excess, TorchJD",
    "KKT residual, ours",
]
SIZES = (2, 3, 4, 8, 16, 40, 64, 128, 256, 512)


def rows() -> list[list[object]]:
    return [_row(size) for size in SIZES]


def _row(size: int) -> list[object]:
    from torchjd.aggregation import MGDAWeighting

    gramians = [_gramian(size, seed) for seed in range(3)]
    tensors = [torch.tensor(gramian) for gramian in gramians]
    ours, torchjd, quadprog = MinNorm(), MGDAWeighting(), _quadprog(size)
    tensor_sides = {"MinNorm": _each(ours, tensors), "TorchJD": _each(torchjd, tensors)}
    array_sides = {"solver": _each(min_norm_weights, gramians), "quadprog": _each(quadprog, gramians)}
    seconds = {
        **alternate(tensor_sides, blocks=25 if size <= 128 else 5, calls=3 if size <= 40 else 1),
        **alternate(array_sides, blocks=101 if size <= 40 else 15 if size <= 128 else 5, calls=10 if size <= 40 else 1),
    }
    solutions = [
        [ours(tensor).numpy(), quadprog(gramian), torchjd(tensor).numpy()]
        for gramian, tensor in zip(gramians, tensors, strict=True)
    ]
    excesses = np.max([_excesses(gramian, found) for gramian, found in zip(gramians, solutions, strict=True)], axis=0)
    residual = max(kkt_residual(gramian, found[0]) for gramian, found in zip(gramians, solutions, strict=True))
    return [
        size,
        f"{seconds['MinNorm'] / len(gramians) * 1e6:.0f}",
        f"{seconds['solver'] / len(gramians) * 1e6:.0f}",
        f"{seconds['TorchJD'] / seconds['MinNorm']:.0f}",
        f"{seconds['quadprog'] / seconds['solver']:.2f}",
        *(f"{excess:.1e}" for excess in excesses),
        f"{residual:.1e}",
    ]


def _gramian(size: int, seed: int) -> FloatArray:
    vectors = np.random.default_rng(seed).standard_normal((size, 2 * size)) + 0.3
    gramian: FloatArray = vectors @ vectors.T
    return gramian


def _quadprog(size: int) -> Callable[[FloatArray], FloatArray]:
    import quadprog

    linear, bounds = np.zeros(size), np.eye(1, size + 1)[0]  # sum l = 1 first, then l >= 0
    constraints = np.column_stack([np.ones(size), np.eye(size)])

    def solve(gramian: FloatArray) -> FloatArray:
        weights: FloatArray = quadprog.solve_qp(gramian, linear, constraints, bounds, 1)[0]
        return weights

    return solve


def _each(function: Callable[[Any], object], inputs: Iterable[Any]) -> Callable[[], None]:
    def run() -> None:
        for value in inputs:
            function(value)

    return run


def _excesses(gramian: FloatArray, solutions: list[FloatArray]) -> list[float]:
    """Return the relative excess of every solution over the best value known."""
    extended = gramian.astype(np.longdouble)
    values = [_value(extended, solution) for solution in solutions]
    polished = [_polished(gramian, extended, np.flatnonzero(solution > 1e-9)) for solution in solutions]
    best = min(values + [_value(extended, point) for point in polished if point.min() >= 0.0])
    return [float((value - best) / best) for value in values]


def _value(extended: Any, weights: Any) -> Any:
    weights = np.maximum(weights.astype(np.longdouble), 0.0)
    weights /= weights.sum()
    return weights @ (extended @ weights)


def _polished(gramian: FloatArray, extended: Any, support: Any) -> Any:
    """Return the minimiser on a support, up to a factor: G w = 1 there, refined in extended precision."""
    block = np.ix_(support, support)
    factor = cho_factor(gramian[block])
    solution = np.zeros(len(support), dtype=np.longdouble)
    for _ in range(6):
        solution += cho_solve(factor, (1.0 - extended[block] @ solution).astype(np.float64))
    weights = np.zeros(len(gramian), dtype=np.longdouble)
    weights[support] = solution
    return weights
