"""Who else uses the memory of a tensor."""

import torch
from torch import Tensor

_use_count = getattr(torch._C, "_storage_Use_Count", None)


def users_of(tensor: Tensor) -> int | None:
    """Return how many tensors, views and NumPy arrays included, use the memory of one; None where torch cannot tell.

    >>> import torch
    >>> tensor = torch.zeros(2)
    >>> view = tensor[:1]
    >>> users_of(tensor)
    2
    """
    if _use_count is None:
        return None
    return int(_use_count(tensor.untyped_storage()._cdata)) - 1  # the storage object in this line counts, too
