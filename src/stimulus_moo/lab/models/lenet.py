"""LeNet with S classification heads, the model of the MultiMNIST experiments."""

from __future__ import annotations

from torch import Tensor, nn

from stimulus_moo.errors import InvalidBatch, InvalidOption
from stimulus_moo.lab.models.heads import MultiHead, TupleHeads
from stimulus_moo.options import positive_integer

_SMALLEST_IMAGE = 16  # leaves one pixel after two 5x5 convolutions, each followed by 2x2 pooling
_FEATURES = 50


class LeNet(MultiHead):
    """Two-convolution LeNet on one-channel square images; returns a tuple of S logit tensors [n, classes].

    The usual MultiMNIST network of the multi-task literature, from Sener and Koltun, "Multi-Task Learning as
    Multi-Objective Optimization" (2018)::

        trunk   conv 1 -> 10, 5x5; max-pool 2; ReLU; conv 10 -> 20, 5x5; max-pool 2; ReLU; linear -> 50; ReLU
        head    linear 50 -> 50; ReLU; linear 50 -> classes

    Departures from their code: no dropout, so that the training loss is a plain finite sum; the heads return
    logits, for ``cross_entropy``, not log-probabilities; images may have any size, theirs are 28x28. With the
    36x36 canvas of the lab's MultiMNIST the trunk has 41,330 parameters and each head 3,060.

    Args:
        heads: S, the number of objectives.
        classes: outputs of each head.
        image_size: height and width of the images, at least 16.

    Raises:
        InvalidOption: an argument is not a positive integer, or the images are too small.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> model = LeNet(heads=2)
        >>> left, right = model(torch.zeros(5, 1, 36, 36))
        >>> left.shape, right.shape
        (torch.Size([5, 10]), torch.Size([5, 10]))
        >>> cross_entropy(left, torch.zeros(5, dtype=torch.long)).shape
        torch.Size([])
    """

    def __init__(self, heads: int = 2, *, classes: int = 10, image_size: int = 36) -> None:
        positive_integer("heads", heads)
        positive_integer("classes", classes)
        positive_integer("image_size", image_size)
        if image_size < _SMALLEST_IMAGE:
            raise InvalidOption(
                f"image_size must be at least {_SMALLEST_IMAGE}, found {image_size}; "
                "pad or enlarge the images, or use TanhMLP on the flattened ones"
            )
        super().__init__(_trunk(image_size), TupleHeads(_head(classes) for _ in range(heads)))
        self.image_size = image_size

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Logits of every head for images [n, 1, image_size, image_size].

        Raises:
            InvalidBatch: the images have another shape.
        """
        size = self.image_size
        if inputs.shape[1:] != (1, size, size):
            raise InvalidBatch(
                f"LeNet needs images of shape [n, 1, {size}, {size}], found {list(inputs.shape)}; "
                "reshape the images or build the model with their image_size"
            )
        return super().forward(inputs)


def _trunk(image_size: int) -> nn.Sequential:
    side = ((image_size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * side * side, _FEATURES),
        nn.ReLU(),
    )


def _head(classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(_FEATURES, _FEATURES), nn.ReLU(), nn.Linear(_FEATURES, classes))
