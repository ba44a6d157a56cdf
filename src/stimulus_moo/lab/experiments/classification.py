"""Losses and test metrics of the classification experiments, multi-class and binary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from stimulus_moo.lab.data import TaskData
from stimulus_moo.lab.problem import Problem

Test = Callable[[nn.Module], dict[str, list[float]]]
_PIECE = 512  # test samples per batch


def class_losses(model: Any, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the mean cross-entropy of every task; the batch is (images, labels of task 0, labels of task 1, ...)."""
    images, *labels = batch
    return tuple(cross_entropy(scores, label) for scores, label in zip(model(images), labels, strict=True))


def attribute_losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean binary cross-entropy of every attribute; the batch is (images, labels of shape n x S)."""
    images, labels = batch
    return binary_cross_entropy_with_logits(model(images), labels, reduction="none").mean(0)


def class_problem(model: nn.Module, data: TaskData) -> Problem:
    """Return a problem with one class to predict per task."""
    return Problem(
        model=model,
        losses=class_losses,
        data=data.train,
        tasks=data.tasks,
        test=class_test(data.test),
        source=data.source,
        synthetic=data.synthetic,
    )


def class_test(data: tuple[Tensor, ...]) -> Test:
    """Return the test accuracy per task."""

    def test(model: nn.Module) -> dict[str, list[float]]:
        images, *labels = data
        right = torch.zeros(len(labels))
        with torch.no_grad():
            for start, piece in _pieces(images):
                for s, scores in enumerate(model(piece)):
                    right[s] += (scores.argmax(1) == labels[s][start : start + len(piece)]).sum()
        return {"accuracy": (right / len(images)).tolist()}

    return test


def attribute_test(data: tuple[Tensor, ...]) -> Test:
    """Return the balanced test accuracy per attribute: the mean of sensitivity and specificity.

    Many attributes are rare or frequent, so plain accuracy would reward a constant prediction.
    """

    def test(model: nn.Module) -> dict[str, list[float]]:
        images, labels = data
        with torch.no_grad():
            answers = torch.cat([model(piece) > 0 for _, piece in _pieces(images)])
        truth = labels > 0.5
        yes = (answers & truth).sum(0) / truth.sum(0).clamp(min=1)
        no = (~answers & ~truth).sum(0) / (~truth).sum(0).clamp(min=1)
        return {"balanced accuracy": ((yes + no) / 2).tolist()}

    return test


def _pieces(images: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(images), _PIECE):
        yield start, images[start : start + _PIECE]
