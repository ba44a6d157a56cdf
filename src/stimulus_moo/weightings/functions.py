"""The exact solver as plain public functions: tensors in, tensors out, or arrays in, arrays out."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption
from stimulus_moo.weightings import solver
from stimulus_moo.weightings.solver import FloatArray

Array = TypeVar("Array", Tensor, FloatArray)


def min_norm_weights(gramian: Array) -> Array:
    """Return argmin over the simplex of ``weights @ gramian @ weights``, exactly, for any number of objectives.

    Args:
        gramian: S x S, symmetric and positive semi-definite up to rounding; a tensor or an array.

    Raises:
        InvalidOption: it is not a square matrix.
        InvalidWeights: it has an entry that is not finite.

    >>> import torch
    >>> min_norm_weights(torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]))
    tensor([0.5000, 0.2500, 0.2500])
    """
    return _like(solver.min_norm_weights(_plain(gramian)), gramian)


def project_simplex(vector: Array) -> Array:
    """Return the Euclidean projection of a vector on the probability simplex.

    Raises:
        InvalidOption: it is not one-dimensional.
        InvalidWeights: it has an entry that is not finite.

    >>> import torch
    >>> project_simplex(torch.tensor([0.5, 0.9, -2.0]))
    tensor([0.3000, 0.7000, 0.0000])
    """
    return _like(solver.project_simplex(_plain(vector)), vector)


def kkt_residual(gramian: Array, weights: Array) -> float:
    """Return how far weights are from optimal for the min-norm problem: 0 is optimal, 1e-10 is our bar.

    With v = l^T G l and m = sum_s l_s sqrt(G_ss) it is the largest (v - (G l)_s) / (m sqrt(G_ss)) over s with G_ss > 0.

    >>> import torch
    >>> kkt_residual(torch.eye(2), torch.tensor([0.5, 0.5]))
    0.0
    >>> kkt_residual(torch.eye(2), torch.tensor([1.0, 0.0]))
    1.0
    """
    return solver.kkt_residual(_plain(gramian), _plain(weights))


def _plain(value: Tensor | FloatArray) -> FloatArray:
    try:
        found = value.detach().double().cpu().numpy() if isinstance(value, Tensor) else value
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"expected a tensor or an array of numbers, found {value!r}") from error


def _like(result: FloatArray, given: Array) -> Array:
    if not isinstance(given, Tensor):
        return result
    tensor = torch.from_numpy(result)
    return tensor.to(given) if given.dtype.is_floating_point else tensor
