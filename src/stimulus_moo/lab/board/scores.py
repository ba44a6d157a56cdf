"""Test metrics of the scoreboard, one number per task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_PIECE = 256  # samples per batch of an evaluation; larger ones leave the cache


def outputs(model: nn.Module, inputs: Tensor) -> Any:
    """Return the model's outputs for all inputs, evaluated in pieces: a tensor, or a tuple of tensors."""
    with torch.no_grad():
        found = [model(piece) for piece in inputs.split(_PIECE)]
    if isinstance(found[0], Tensor):
        return torch.cat(found)
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def roc_aucs(scores: Tensor, labels: Tensor, known: Tensor | None = None) -> list[float]:
    """Return the area under the ROC curve of every column, over the known labels; 0.5 where one class is missing.

    >>> roc_aucs(torch.tensor([[0.1], [0.4], [0.3]]), torch.tensor([[0.0], [1.0], [0.0]]))
    [1.0]
    """
    from sklearn.metrics import roc_auc_score

    found = []
    for s in range(labels.shape[1]):
        rows = slice(None) if known is None else known[:, s].bool()
        truth = labels[rows, s].numpy()
        both = len(np.unique(truth)) == 2
        found.append(float(roc_auc_score(truth, scores[rows, s].numpy())) if both else 0.5)
    return found


def accuracies(logits: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> list[float]:
    """Return the share of right answers of every task."""
    return [float((own.argmax(1) == label).double().mean()) for own, label in zip(logits, labels, strict=True)]


def relative_errors(predictions: Tensor, targets: Tensor, means: Tensor) -> list[float]:
    """Return the relative root mean squared error of every target; aRRMSE is their mean.

    1 is the error of predicting the means of the training targets.

    >>> relative_errors(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0], [4.0]]), torch.tensor([2.0]))
    [1.118033988749895]
    """
    error = (predictions - targets).double().square().sum(0)
    variation = (targets - means).double().square().sum(0)
    ratios: list[float] = (error / variation).sqrt().tolist()
    return ratios


def fairness_scores(logits: Tensor, label: Tensor, group: Tensor) -> list[float]:
    """Return accuracy, cross-entropy and DEO, the difference of the two groups' true positive rates."""
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, label)
    right = logits > 0
    rates = [float(right[(label == 1) & (group == one)].double().mean()) for one in (0, 1)]
    accuracy = float((right == (label == 1)).double().mean())
    return [accuracy, float(entropy), abs(rates[0] - rates[1])]


def balanced_accuracies(logits: Tensor, labels: Tensor) -> list[float]:
    """Return the mean of sensitivity and specificity of every column."""
    answers, truth = logits > 0, labels > 0.5
    yes = (answers & truth).sum(0) / truth.sum(0).clamp(min=1)
    no = (~answers & ~truth).sum(0) / (~truth).sum(0).clamp(min=1)
    found: list[float] = ((yes + no) / 2).tolist()
    return found


def batches(tensors: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Yield a split in batches for an evaluation of its losses."""
    return zip(*(tensor.split(_PIECE) for tensor in tensors), strict=True)


def mean_losses(model: nn.Module, losses: Any, tensors: tuple[Tensor, ...]) -> list[float]:
    """Return the mean losses over a split."""
    total: NDArray[np.float64] | float = 0.0
    with torch.no_grad():
        for batch in batches(tensors):
            found = losses(model, batch)
            values = torch.stack(list(found)) if not isinstance(found, Tensor) else found
            total = total + values.double().numpy() * len(batch[0])
    return [float(value) / len(tensors[0]) for value in np.atleast_1d(total)]
