"""Products with the rows of a matrix: M M^T in float64, and weighted sums of rows."""

import torch
from torch import Tensor

#: entries converted at a time on the CPU: they stay in its cache, and torch converts so few without its threads, which
#: would wait for those of the matrix product
CHUNK = 1 << 16

#: up to this many entries are converted at once
WHOLE = 2 * CHUNK


def gramian_of(matrix: Tensor, roots: Tensor | None = None) -> Tensor:
    """Return M M^T in float64; entries are converted before they are multiplied, since float32 products may underflow.

    With ``roots``, one number per column by which the entries are multiplied, it is M diag(roots)^2 M^T.
    """
    rows, columns = matrix.shape
    if rows * columns <= WHOLE:
        whole = matrix.double() if roots is None else matrix.double() * roots
        return whole @ whole.T
    width = _width(matrix)
    buffer = torch.empty(rows, width, dtype=torch.float64, device=matrix.device)
    total = torch.zeros(rows, rows, dtype=torch.float64, device=matrix.device)
    for start, part in zip(range(0, columns, width), matrix.split(width, dim=1), strict=True):
        chunk = buffer[:, : part.shape[1]].copy_(part)
        if roots is not None:
            chunk *= roots[start : start + width]
        total.addmm_(chunk, chunk.T)
    return total


def entries_converted(entries: int) -> int:
    """Return how many entries of a matrix are in float64 at a time, on the CPU.

    >>> entries_converted(1000), entries_converted(10**9) == CHUNK
    (1000, True)
    """
    return entries if entries <= WHOLE else CHUNK


def combination_of(matrix: Tensor, weights: Tensor) -> Tensor:
    """Return weights^T M, in float32 at the least."""
    if matrix.dtype in (torch.float32, torch.float64):
        return weights.to(matrix) @ matrix
    combined, width = torch.empty(matrix.shape[1], dtype=torch.float32, device=matrix.device), _width(matrix)
    weights = weights.to(combined)
    for target, part in zip(combined.split(width), matrix.split(width, dim=1), strict=True):
        torch.mv(part.float().T, weights, out=target)
    return combined


def _width(matrix: Tensor) -> int:
    """Return how many columns are converted at a time; large chunks keep an accelerator busy."""
    return max(1, (CHUNK if matrix.device.type == "cpu" else 128 * CHUNK) // len(matrix))
