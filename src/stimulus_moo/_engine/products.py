"""Products with the rows of a matrix: M M^T in float64, and weighted sums of rows."""

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 17  # entries converted at a time, on the CPU: they stay in its cache


def gramian_of(matrix: Tensor, roots: Tensor | None = None) -> Tensor:
    """Return M M^T in float64; entries are converted before they are multiplied, since float32 products may underflow.

    With ``roots``, one number per column by which the entries are multiplied, it is M diag(roots)^2 M^T.

    On the CPU, NumPy converts the chunks. Torch would do it in threads, which slow down those of the matrix product.
    """
    rows, columns = matrix.shape
    if rows * columns <= CHUNK:
        whole = matrix.double() if roots is None else matrix.double() * roots
        return whole @ whole.T
    width = _width(matrix)
    if matrix.device.type != "cpu":
        scales = [1.0] * columns if roots is None else roots.split(width)
        parts = (part.double() * scale for part, scale in zip(matrix.split(width, dim=1), scales, strict=False))
        return torch.stack([part @ part.T for part in parts]).sum(0)
    total, buffer = np.zeros((rows, rows)), np.empty((rows, width))
    with np.errstate(over="ignore", invalid="ignore"):
        for start, part in zip(range(0, columns, width), matrix.split(width, dim=1), strict=True):
            chunk = buffer[:, : part.shape[1]]
            np.copyto(chunk, (part.float() if part.dtype is torch.bfloat16 else part).numpy())
            if roots is not None:
                chunk *= roots[start : start + width].numpy()
            total += chunk @ chunk.T
    return torch.from_numpy(total)


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
    return max(1, (CHUNK if matrix.device.type == "cpu" else 32 * CHUNK) // len(matrix))
