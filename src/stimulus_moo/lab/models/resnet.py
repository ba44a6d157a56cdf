"""ResNet-18 with S scalar heads, the model of CelebA and, with fewer channels, of its synthetic substitute."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import relu

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.models.heads import MultiHead
from stimulus_moo.options import positive_integer

Norm = Literal["group", "batch"]

_CHANNELS_PER_GROUP = 8


class ResNet18(MultiHead):
    """ResNet-18 on three-channel images, one linear head per objective; returns an [n, S] tensor of logits.

    Column s is one logit, for ``binary_cross_entropy_with_logits``. The full trunk has 11,176,512 parameters
    and its 512 features feed S heads of 513 parameters each, the rows of one linear layer.

    Warning:
        ``norm="batch"`` couples the samples of a batch in training mode. The loss is then not a finite sum, which the
        variance-reduced estimators require, and ``MultiGradient`` warns. Use it for torchvision's weights; after
        loading them, ``model.eval()`` fixes the statistics, so that the model can be fine-tuned as a finite sum.

    Args:
        heads: S, the number of objectives.
        width: channels of the first stage; the stages have width, 2 width, 4 width, 8 width. 64 is ResNet-18;
            16 has about a sixteenth of its parameters and work.
        small_images: use the 3x3 stem without max-pooling, for images of about 32x32, in place of the
            ImageNet stem (7x7, stride 2, max-pooling).
        norm: ``"group"`` normalises each sample by itself, in groups of 8 channels; ``"batch"`` is
            torchvision's layer.

    Raises:
        InvalidOption: ``heads`` or ``width`` is not a positive integer, ``width`` is no multiple of 8 with
            ``norm="group"``, or ``norm`` is unknown.

    Example:
        >>> import torch
        >>> model = ResNet18(heads=40, width=16, small_images=True)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 40])
        >>> sum(p.numel() for p in model.shared_parameters())
        700176
    """

    trunk: ResNet18Trunk

    def __init__(self, heads: int, *, width: int = 64, small_images: bool = False, norm: Norm = "group") -> None:
        positive_integer("heads", heads)
        trunk = ResNet18Trunk(width=width, small_images=small_images, norm=norm)
        super().__init__(trunk, nn.Linear(trunk.features, heads))


class ResNet18Trunk(nn.Module):
    """ResNet-18 (He et al., 2016) up to its global average pooling: images to [n, 8 width] features.

    Module names and initialisation are those of ``torchvision.models.resnet18``: with ``width=64``,
    ``norm="batch"`` and the ImageNet stem its state dict is torchvision's without ``fc``. Group
    normalisation layers are also called ``bn``. Arguments as in ``ResNet18``.

    Attributes:
        features: how many features a sample gets, 8 width.

    Example:
        >>> import torch
        >>> trunk = ResNet18Trunk(width=8, small_images=True)
        >>> trunk(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
        >>> list(trunk.state_dict())[:4]
        ['conv1.weight', 'bn1.weight', 'bn1.bias', 'layer1.0.conv1.weight']
    """

    def __init__(self, *, width: int = 64, small_images: bool = False, norm: Norm = "group") -> None:
        _check_width_and_norm(width, norm)
        super().__init__()
        self.features = 8 * width
        self.conv1 = _convolution(3, width, 3, stride=1) if small_images else _convolution(3, width, 7, stride=2)
        self.bn1 = _normalisation(norm, width)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(width, width, stride=1, norm=norm)
        self.layer2 = _stage(width, 2 * width, stride=2, norm=norm)
        self.layer3 = _stage(2 * width, 4 * width, stride=2, norm=norm)
        self.layer4 = _stage(4 * width, 8 * width, stride=2, norm=norm)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Features [n, 8 width] of images [n, 3, height, width]."""
        maps: Tensor = self.maxpool(relu(self.bn1(self.conv1(images))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            maps = stage(maps)
        return maps.mean(dim=(-2, -1))


class _BasicBlock(nn.Module):
    """relu(x' + bn2(conv2(relu(bn1(conv1(x)))))), where x' is x, brought to the new shape if it changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, 3, stride=stride)
        self.bn1 = _normalisation(norm, outputs)
        self.conv2 = _convolution(outputs, outputs, 3, stride=1)
        self.bn2 = _normalisation(norm, outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                _convolution(inputs, outputs, 1, stride=stride), _normalisation(norm, outputs)
            )

    def forward(self, maps: Tensor) -> Tensor:
        shortcut = maps if self.downsample is None else self.downsample(maps)
        return relu(shortcut + self.bn2(self.conv2(relu(self.bn1(self.conv1(maps))))))


def _stage(inputs: int, outputs: int, *, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(
        _BasicBlock(inputs, outputs, stride=stride, norm=norm),
        _BasicBlock(outputs, outputs, stride=1, norm=norm),
    )


def _convolution(inputs: int, outputs: int, kernel: int, *, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def _normalisation(norm: Norm, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(channels // _CHANNELS_PER_GROUP, channels)


def _check_width_and_norm(width: int, norm: str) -> None:
    positive_integer("width", width)
    if norm not in ("group", "batch"):
        raise InvalidOption(f"norm must be 'group' or 'batch', found {norm!r}")
    if norm == "group" and width % _CHANNELS_PER_GROUP:
        raise InvalidOption(
            f"width must be a multiple of {_CHANNELS_PER_GROUP} with norm='group', found {width}; "
            "choose another width or norm='batch'"
        )
