"""Loading of torchvision's resnet18 weights into the trunk of ``ResNet18``."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from stimulus_moo.errors import InvalidOption, MissingDependency
from stimulus_moo.lab.models.resnet import ResNet18

_SHOWN = 10  # mismatches named in an error; a wrong norm alone causes 60


def load_torchvision_weights(model: ResNet18, state_dict: Mapping[str, Tensor] | None = None) -> None:
    """Copy the weights of a torchvision resnet18 into ``model.trunk``; the heads are not changed.

    The classifier ``fc`` of the source is ignored. ``num_batches_tracked``, which old weight files lack, may be
    missing. Every other tensor must be present with the right shape.

    Args:
        model: the ``ResNet18`` to fill; torchvision's own weights need ``norm="batch"``, width 64 and the
            ImageNet stem.
        state_dict: the source, such as ``torch.load("resnet18.pth", weights_only=True)``; ``None`` takes the
            ImageNet weights from torchvision, which downloads them on first use.

    Raises:
        InvalidOption: an entry is missing, unknown, has another shape or is not a tensor. The model is unchanged.
        MissingDependency: ``state_dict`` is ``None`` and torchvision is not installed.

    Example:
        >>> source = ResNet18(heads=2, width=8, norm="batch")
        >>> target = ResNet18(heads=40, width=8, norm="batch")
        >>> load_torchvision_weights(target, source.trunk.state_dict())
        >>> bool((target.trunk.conv1.weight == source.trunk.conv1.weight).all())
        True
    """
    if not isinstance(model, ResNet18):
        raise InvalidOption(f"model must be a ResNet18, found {type(model).__name__}")
    given = _imagenet_weights() if state_dict is None else state_dict
    if not isinstance(given, Mapping):
        raise InvalidOption(
            f"state_dict must map names to tensors, found {type(given).__name__}; pass model.state_dict()"
        )
    source = {name: value for name, value in given.items() if name not in ("fc.weight", "fc.bias")}
    own: dict[str, Tensor] = model.trunk.state_dict()
    problems = _mismatches(source, own)
    if problems:
        raise InvalidOption(
            f"state_dict does not fit the model, which is unchanged: {_listed(problems)}. "
            "torchvision's resnet18 fits ResNet18(heads, norm='batch') with width 64 and small_images=False"
        )
    model.trunk.load_state_dict({**own, **source})


def _mismatches(source: Mapping[str, object], own: Mapping[str, Tensor]) -> list[str]:
    problems = []
    for name, value in own.items():
        if name not in source:
            if not name.endswith("num_batches_tracked"):
                problems.append(f"{name} is missing")
        elif not isinstance(tensor := source[name], Tensor):
            problems.append(f"{name} is a {type(tensor).__name__}, not a tensor")
        elif tensor.shape != value.shape:
            problems.append(f"{name} has shape {list(tensor.shape)} where {list(value.shape)} is needed")
    return problems + [f"{name} is unknown" for name in source if name not in own]


def _listed(problems: list[str]) -> str:
    rest = len(problems) - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")


def _imagenet_weights() -> Mapping[str, Tensor]:
    try:
        from torchvision.models import resnet18
    except ImportError as error:
        raise MissingDependency(
            "load_torchvision_weights needs torchvision to fetch the weights, and it is not installed; "
            "install torchvision or pass a state_dict"
        ) from error
    weights: Mapping[str, Tensor] = resnet18(weights="IMAGENET1K_V1").state_dict()
    return weights
