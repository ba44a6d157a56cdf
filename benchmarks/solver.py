"""Speed and accuracy of min-norm weights, compared with TorchJD and quadprog, and the growth of the time with S.

Every size has three random Gramians of S rows in 2 S dimensions, which are regular enough for quadprog without a ridge.
TorchJD's MGDAWeighting is compared with ``MinNorm``; both take and return tensors. quadprog, called directly with
constraints built beforehand, is compared with the solver that ``MinNorm`` uses; both take and return arrays.

The relative excess of weights l is (l^T G l - best) / best, the largest of the three Gramians. The values are summed in
extended precision (np.longdouble), and l is clipped at 0 and scaled to sum to one. ``best`` is the smallest value over
the solutions of all sides and over the minimisers on their supports, refined in extended precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve

from benchmarks.sides import verdict
from benchmarks.timing import alternate
from stimulus_moo import MinNorm
from stimulus_moo.weightings.solver import FloatArray, kkt_residual, solve

TITLE = "Min-norm weights: random Gramians, rows in 2 S dimensions"
TEXT = """\
Three random Gramians of each size. `MinNorm` and TorchJD's `MGDAWeighting` take and return tensors. quadprog, called
directly with constraints built beforehand, and the solver that `MinNorm` uses take and return arrays. The excess of
weights is the relative difference between lambda^T G lambda and the best known value, in extended precision; the
largest of the three Gramians is shown. The ratios are the time of the peer divided by ours; larger is better. Targets
(column bar): excess at most 1e-10 for S = 2, 8, 40, 128, 512; TorchJD at least 25 times as slow at S = 8 and 40; the
quadprog ratio at least 1/3 up to S = 40, and above 1 from S = 128.
"""
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
    "bar",
    "met",
]
SIZES = (2, 3, 4, 8, 16, 40, 64, 128, 256, 512)


def rows(quick: bool = False) -> list[list[object]]:
    return [_row(size, quick=quick) for size in ((2, 8) if quick else SIZES)]


def _row(size: int, *, quick: bool = False) -> list[object]:
    from torchjd.aggregation import MGDAWeighting

    gramians = [_gramian(size, seed) for seed in range(3)]
    tensors = [torch.tensor(gramian) for gramian in gramians]
    ours, torchjd, quadprog = MinNorm(), MGDAWeighting(), _quadprog(size)
    tensor_sides = {"MinNorm": _each(ours, tensors), "TorchJD": _each(torchjd, tensors)}
    array_sides = {"solver": _each(solve, gramians), "quadprog": _each(quadprog, gramians)}
    blocks, array_blocks = 25 if size <= 128 else 5, 101 if size <= 40 else 15 if size <= 128 else 5
    if quick:
        blocks = array_blocks = 2
    seconds = {
        **alternate(tensor_sides, blocks=blocks, calls=3 if size <= 40 else 1),
        **alternate(array_sides, blocks=array_blocks, calls=10 if size <= 40 else 1),
    }
    solutions = [
        [ours(tensor).numpy(), quadprog(gramian), torchjd(tensor).numpy()]
        for gramian, tensor in zip(gramians, tensors, strict=True)
    ]
    excesses = np.max([_excesses(gramian, found) for gramian, found in zip(gramians, solutions, strict=True)], axis=0)
    residual = max(kkt_residual(gramian, found[0]) for gramian, found in zip(gramians, solutions, strict=True))
    to_torchjd, to_quadprog = seconds["TorchJD"] / seconds["MinNorm"], seconds["quadprog"] / seconds["solver"]
    return [
        size,
        f"{seconds['MinNorm'] / len(gramians) * 1e6:.0f}",
        f"{seconds['solver'] / len(gramians) * 1e6:.0f}",
        f"{to_torchjd:.0f}",
        f"{to_quadprog:.2f}",
        *(f"{excess:.1e}" for excess in excesses),
        f"{residual:.1e}",
        *_bar(size, float(excesses[0]), to_torchjd, to_quadprog),
    ]


def _bar(size: int, excess: float, to_torchjd: float, to_quadprog: float) -> tuple[str, str]:
    """Return the targets of a size and whether they are met."""
    bars = []
    if size in (2, 8, 40, 128, 512):
        bars.append(("excess at most 1e-10", excess <= 1e-10, f"{excess:.1e}"))
    if size in (8, 40):
        bars.append(("TorchJD at least 25", to_torchjd >= 25, f"{to_torchjd:.0f}"))
    if size <= 40:
        bars.append(("quadprog at least 0.33", to_quadprog >= 1 / 3, f"{to_quadprog:.2f}"))
    if size >= 128:
        bars.append(("quadprog above 1", to_quadprog > 1, f"{to_quadprog:.2f}"))
    names, met, figures = zip(*bars, strict=True) if bars else ((), (), ())
    return ", ".join(names), verdict(all(met), ", ".join(figures)) if bars else ""


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
    """Return the relative excess of every solution over the best known value."""
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
    """Return the minimiser on a support, up to a factor: G w = 1 on it, refined in extended precision."""
    block = np.ix_(support, support)
    factor = cho_factor(gramian[block])
    solution = np.zeros(len(support), dtype=np.longdouble)
    for _ in range(6):
        solution += cho_solve(factor, (1.0 - extended[block] @ solution).astype(np.float64))
    weights = np.zeros(len(gramian), dtype=np.longdouble)
    weights[support] = solution
    return weights
