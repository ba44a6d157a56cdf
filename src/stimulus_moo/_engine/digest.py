"""Short digests of content, for comparing what two runs or two processes have."""

import hashlib
from typing import Any

import torch
from torch import Tensor


def digest(content: Any) -> str:
    """Return a digest of bytes, or of an object with a buffer."""
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def digest_of(tensor: Tensor) -> str:
    """Return a digest of the values of a tensor of any layout.

    >>> import torch
    >>> digest_of(torch.tensor([1.0, 2.0])) == digest_of(torch.tensor([1.0, 3.0]))
    False
    """
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    return digest(dense.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
