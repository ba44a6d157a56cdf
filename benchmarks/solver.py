"""How fast and how exact are min-norm weights, against TorchJD's MGDAWeighting?"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from benchmarks.timing import alternate
from stimulus_moo import MinNorm, kkt_residual

TITLE = "Min-norm weights: random Gramians, rows in 2 S dimensions"
COLUMNS = ["S", "ours, microseconds", "TorchJD / ours", "KKT residual, ours", "KKT residual, TorchJD"]


def rows() -> list[list[object]]:
    from torchjd.aggregation import MGDAWeighting

    table: list[list[object]] = []
    for size in (2, 8, 40, 128):
        vectors = np.random.default_rng(0).standard_normal((size, 2 * size)) + 0.3
        gramian = torch.tensor(vectors @ vectors.T)
        ours, peer = MinNorm(), MGDAWeighting()
        medians = alternate({"ours": partial(ours, gramian), "peer": partial(peer, gramian)}, blocks=9, calls=10)
        table.append(
            [
                size,
                f"{medians['ours'] * 1e6:.0f}",
                f"{medians['peer'] / medians['ours']:.0f}",
                f"{kkt_residual(gramian, ours(gramian)):.1e}",
                f"{kkt_residual(gramian, peer(gramian)):.1e}",
            ]
        )
    return table
