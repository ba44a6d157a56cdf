"""Model of a ranker: a linear or multi-layer scorer, and its smoothness constant for a data set."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from stimulus_moo.ranking.lists import QueryDataset
from stimulus_moo.ranking.segments import Segments

_SAMPLE = 1 << 21  # maximum number of feature entries used by smoothness


class Scorer(nn.Module):
    """Compute one score per row. The last layer has no bias, since it would not change the order.

    Args:
        features: number of inputs.
        hidden: widths of the hidden layers, each followed by tanh (smooth, as the theory requires). Without hidden
            layers, the scorer is linear and starts at 0; otherwise torch's global generator initializes it.

    >>> import torch
    >>> Scorer(4)(torch.ones(3, 4)).tolist()
    [0.0, 0.0, 0.0]
    >>> sum(p.numel() for p in Scorer(4, hidden=(8,)).parameters())
    48
    """

    def __init__(self, features: int, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        widths = [features, *hidden]
        layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.Tanh())]
        last = nn.Linear(widths[-1], 1, bias=False)
        if not hidden:
            nn.init.zeros_(last.weight)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.layers(features).squeeze(-1)
        return scores


def smoothness(data: QueryDataset) -> float:
    """Return the largest eigenvalue of the features' mean covariance within a list, on up to 2^21 entries of the data.

    For a linear scorer at 0 this is the smoothness constant L of the softmax losses, and twice that of RankNet. Power
    iteration approximates it from below, to a few percent.

    >>> import numpy as np
    >>> data = QueryDataset(np.array([[1.0, 0.0], [-1.0, 0.0], [5.0, 5.0]]), [1, 0, 1], ["a", "a", "b"])
    >>> round(smoothness(data), 6)  # a list of one document has no covariance
    0.5
    """
    width = max(1, data.features.shape[1])
    rows = np.cumsum(data.queries.lengths[data.chosen])
    share = min(1.0, _SAMPLE / (width * rows[-1]))
    count = max(1, int(share * len(data)))
    batch = data.__getitems__(np.linspace(0, len(data) - 1, count).astype(np.int64))
    segments = Segments(batch.lengths, len(batch.features))
    means = segments.sums(batch.features) / batch.lengths.clamp_min(1)[:, None]
    spread = (batch.features - means[segments.list]) / batch.lengths.sqrt()[segments.list, None]
    vector = torch.full((width,), width**-0.5) + torch.linspace(
        0.0, 0.1, width
    )  # unlikely to be orthogonal to the eigenvector
    largest = 0.0
    for _ in range(30):  # power iteration
        vector = spread.T @ (spread @ vector) / segments.count
        largest = float(vector.norm())
        if not largest:
            break
        vector = vector / largest
    return largest
