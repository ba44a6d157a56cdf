"""The model of a ranker: one score per document, linear or a perceptron; and a step size from its data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from stimulus_moo.ranking.lists import QueryDataset
from stimulus_moo.ranking.segments import Segments

_SAMPLE = 1 << 21  # entries of the features that smoothness looks at


class Scorer(nn.Module):
    """One score per row, without a last bias: it would change no order.

    Args:
        features: the number of inputs.
        hidden: the widths of the hidden layers, tanh after each (smooth, as the theory asks); none: a linear scorer,
            which starts at 0. A perceptron starts from torch's global generator.

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
    iteration finds it from below, to a few per cent.

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
    vector = torch.full((width,), width**-0.5) + torch.linspace(0.0, 0.1, width)  # not orthogonal to much
    largest = 0.0
    for _ in range(30):  # power iteration
        vector = spread.T @ (spread @ vector) / segments.count
        largest = float(vector.norm())
        if not largest:
            break
        vector = vector / largest
    return largest
