"""Whether all entries of a tensor are finite, in one pass and without a copy in the usual case."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def finite(tensor: Tensor) -> bool:
    """Tell whether no entry is NaN or infinite.

    >>> import torch
    >>> finite(torch.tensor([1.0, 2.0])), finite(torch.tensor([3e38, 3e38])), finite(torch.tensor([1.0, torch.nan]))
    (True, True, False)
    """
    return math.isfinite(tensor.sum()) or bool(torch.isfinite(tensor).all())  # a sum may overflow: then look again
