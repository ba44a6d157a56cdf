from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from stimulus_moo.errors import InvalidOption, MissingDependency
from stimulus_moo.lab.models import LeNet, ResNet18, load_torchvision_weights

State = dict[str, Tensor]


def norm_shapes(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    vectors = {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {**vectors, f"{name}.num_batches_tracked": ()}


def torchvision_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's resnet18, written down from its naming scheme, not from our model."""
    shapes = {"conv1.weight": (64, 3, 7, 7), **norm_shapes("bn1", 64)}
    channels = 64
    for stage, outputs in ((1, 64), (2, 128), (3, 256), (4, 512)):
        for block in (0, 1):
            prefix = f"layer{stage}.{block}"
            shapes[f"{prefix}.conv1.weight"] = (outputs, channels, 3, 3)
            shapes |= norm_shapes(f"{prefix}.bn1", outputs)
            shapes[f"{prefix}.conv2.weight"] = (outputs, outputs, 3, 3)
            shapes |= norm_shapes(f"{prefix}.bn2", outputs)
            if stage > 1 and block == 0:
                shapes[f"{prefix}.downsample.0.weight"] = (outputs, channels, 1, 1)
                shapes |= norm_shapes(f"{prefix}.downsample.1", outputs)
            channels = outputs
    return {**shapes, "fc.weight": (1000, 512), "fc.bias": (1000,)}


@pytest.fixture(scope="module")
def source() -> State:
    generator = torch.Generator().manual_seed(3)
    shapes = torchvision_shapes()
    return {
        name: torch.tensor(5) if name.endswith("tracked") else torch.rand(shape, generator=generator)
        for name, shape in shapes.items()
    }


@pytest.fixture(scope="module")
def model() -> ResNet18:
    return ResNet18(2, norm="batch")


def snapshot(model: torch.nn.Module) -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal_states(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_trunk_has_the_names_and_shapes_of_torchvision_in_its_order(model: ResNet18) -> None:
    ours = [(name, tuple(value.shape)) for name, value in model.trunk.state_dict().items()]
    theirs = [item for item in torchvision_shapes().items() if not item[0].startswith("fc.")]
    assert len(theirs) == 120
    assert ours == theirs


def test_loads_the_trunk_and_leaves_the_heads(source: State) -> None:
    model = ResNet18(2, norm="batch")
    heads = snapshot(model.heads)
    load_torchvision_weights(model, source)
    trunk = {name: value for name, value in source.items() if not name.startswith("fc.")}
    assert_equal_states(model.trunk.state_dict(), trunk)
    assert_equal_states(model.heads.state_dict(), heads)


def test_old_files_without_batch_counters_load(source: State) -> None:
    model = ResNet18(2, norm="batch")
    load_torchvision_weights(model, {n: v for n, v in source.items() if not n.endswith("num_batches_tracked")})
    assert torch.equal(model.trunk.bn1.running_mean, source["bn1.running_mean"])
    assert model.trunk.bn1.num_batches_tracked == 0


def test_source_is_copied_not_aliased(source: State) -> None:
    model = ResNet18(2, norm="batch")
    load_torchvision_weights(model, source)
    before = source["conv1.weight"].clone()
    with torch.no_grad():
        model.trunk.conv1.weight.zero_()
    assert torch.equal(source["conv1.weight"], before)


def without_a_name(state: State) -> State:
    return {name: value for name, value in state.items() if name != "layer4.1.bn2.running_var"}


REFUSED: dict[str, tuple[Callable[[State], object], str]] = {
    "missing": (without_a_name, r"unchanged: layer4\.1\.bn2\.running_var is missing\. "),
    "unknown": (lambda s: {**s, "layer5.weight": torch.zeros(1)}, r"unchanged: layer5\.weight is unknown\. "),
    "shape": (
        lambda s: {**s, "layer4.0.conv1.weight": torch.zeros(2, 3)},
        r"layer4\.0\.conv1\.weight has shape \[2, 3\] where \[512, 256, 3, 3\] is needed",
    ),
    "not a tensor": (lambda s: {**s, "bn1.bias": [0.0] * 64}, r"bn1\.bias is a list, not a tensor"),
    "prefixed": (lambda s: {f"module.{n}": v for n, v in s.items()}, r"conv1\.weight is missing; .* more\. "),
    "not a mapping": (list, "state_dict must map names to tensors, found list"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named_and_changes_nothing(case: str, model: ResNet18, source: State) -> None:
    spoil, message = REFUSED[case]
    before = snapshot(model)
    with pytest.raises(InvalidOption, match=message):
        load_torchvision_weights(model, spoil(source))
    assert_equal_states(model.state_dict(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "group"}, r"bn1\.running_mean is unknown"),
        (
            {"norm": "batch", "small_images": True},
            r"conv1\.weight has shape \[64, 3, 7, 7\] where \[64, 3, 3, 3\]",
        ),
        ({"norm": "batch", "width": 16}, r"conv1\.weight has shape \[64, 3, 7, 7\] where \[16, 3, 7, 7\]"),
    ],
)
def test_a_model_of_another_shape_is_refused_with_the_one_that_fits(
    options: dict[str, object], message: str, source: State
) -> None:
    model = ResNet18(2, **options)
    before = snapshot(model)
    with pytest.raises(InvalidOption, match=message + r".*resnet18 fits ResNet18\(heads, norm='batch'\)"):
        load_torchvision_weights(model, source)
    assert_equal_states(model.state_dict(), before)


def test_another_model_is_refused(source: State) -> None:
    with pytest.raises(InvalidOption, match="model must be a ResNet18, found LeNet"):
        load_torchvision_weights(LeNet(), source)


def test_without_torchvision_the_error_says_what_to_do(model: ResNet18, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    before = snapshot(model)
    with pytest.raises(MissingDependency, match="install torchvision or pass a state_dict"):
        load_torchvision_weights(model)
    assert_equal_states(model.state_dict(), before)


def test_with_torchvision_its_imagenet_weights_are_taken(source: State, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Pretrained:
        def state_dict(self) -> State:
            return source

    def resnet18(*, weights: str) -> Pretrained:
        asked.append(weights)
        return Pretrained()

    library, submodule = ModuleType("torchvision"), ModuleType("torchvision.models")
    submodule.resnet18 = resnet18  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", library)
    monkeypatch.setitem(sys.modules, "torchvision.models", submodule)
    model = ResNet18(2, norm="batch")
    load_torchvision_weights(model)
    assert asked == ["IMAGENET1K_V1"]
    assert torch.equal(model.trunk.conv1.weight, source["conv1.weight"])
