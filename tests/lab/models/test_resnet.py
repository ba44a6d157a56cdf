from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.models import ResNet18, ResNet18Trunk


def parameter_count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_full_trunk_has_the_parameters_of_torchvision() -> None:
    trunk = ResNet18Trunk(norm="batch")
    classifier = 512 * 1000 + 1000
    assert parameter_count(trunk) == 11_689_512 - classifier == 11_176_512


def test_group_norm_has_as_many_parameters_as_batch_norm() -> None:
    counts = {norm: parameter_count(ResNet18Trunk(width=16, norm=norm)) for norm in ("group", "batch")}
    assert counts["group"] == counts["batch"]


def test_each_head_is_a_linear_map_of_eight_widths() -> None:
    model = ResNet18(40, width=16, small_images=True)
    assert parameter_count(model.heads) == 40 * (8 * 16 + 1)


@pytest.mark.parametrize(("small_images", "sides"), [(True, [32, 16, 8, 4]), (False, [8, 4, 2, 1])])
def test_stages_halve_the_image_from_the_side_the_stem_leaves(small_images: bool, sides: list[int]) -> None:
    trunk = ResNet18Trunk(width=8, small_images=small_images)
    found: list[tuple[int, ...]] = []
    for stage in (trunk.layer1, trunk.layer2, trunk.layer3, trunk.layer4):
        stage.register_forward_hook(lambda _module, _inputs, maps: found.append(tuple(maps.shape)))
    trunk(torch.zeros(1, 3, 32, 32))
    channels = [8, 16, 32, 64]
    assert found == [(1, c, side, side) for c, side in zip(channels, sides, strict=True)]


def test_block_adds_its_shortcut_before_the_last_relu() -> None:
    block = ResNet18Trunk(width=8, small_images=True).layer2[0].double()
    maps = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    inner = block.bn1(block.conv1(maps)).clamp(min=0)
    expected = (block.downsample(maps) + block.bn2(block.conv2(inner))).clamp(min=0)
    torch.testing.assert_close(block(maps), expected)


def test_a_block_strides_in_its_first_convolution() -> None:
    """Where torchvision's does; its weights would fit the other way round too, and give other features."""
    block = ResNet18Trunk(width=8).layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.downsample[0].stride) == ((2, 2), (1, 1), (2, 2))


def test_default_layers_keep_no_statistics() -> None:
    assert list(ResNet18(2, width=8).buffers()) == []


def test_batch_norm_couples_samples_in_training_and_not_in_evaluation() -> None:
    model, images = ResNet18(2, width=4, norm="batch"), torch.randn(4, 3, 32, 32)

    def change_of_first_sample() -> Tensor:
        return (model(images)[:2] - model(images[:2])).abs().max()

    assert change_of_first_sample() > 1e-2
    model.eval()
    assert change_of_first_sample() < 1e-5  # float32 rounding


def test_convolutions_start_with_the_fan_out_variance() -> None:
    torch.manual_seed(0)
    weight = ResNet18Trunk().layer4[1].conv2.weight
    expected = (2 / (512 * 9)) ** 0.5
    assert abs(weight.std().item() / expected - 1) < 0.01  # 2.4 million draws: standard error 0.0005


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "heads must be a positive integer, found 0"),
        ({"width": 0}, "width must be a positive integer, found 0"),
        ({"width": 12}, "width must be a multiple of 8 with norm='group', found 12; choose another width"),
        ({"norm": "layer"}, "norm must be 'group' or 'batch', found 'layer'"),
        ({"norm": None}, "norm must be 'group' or 'batch', found None"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        ResNet18(**{"heads": 2, "small_images": True, **options})
