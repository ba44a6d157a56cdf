from __future__ import annotations

import pytest
import torch

from stimulus_moo.errors import InvalidBatch, InvalidOption
from stimulus_moo.lab.models import LeNet


def test_default_has_the_parameters_of_the_multimnist_network() -> None:
    model = LeNet()
    convolutions = (10 * 25 + 10) + (20 * 10 * 25 + 20)
    linear = 20 * 6 * 6 * 50 + 50  # 36 -> 32 -> 16 -> 12 -> 6
    head = (50 * 50 + 50) + (50 * 10 + 10)
    assert sum(p.numel() for p in model.shared_parameters()) == convolutions + linear == 41_330
    assert [sum(p.numel() for p in h.parameters()) for h in model.heads] == [head, head] == [3060, 3060]


@pytest.mark.parametrize("image_size", [16, 17, 28, 36, 37])
def test_takes_images_of_the_size_it_was_built_for(image_size: int) -> None:
    outputs = LeNet(1, image_size=image_size)(torch.zeros(2, 1, image_size, image_size))
    assert [tuple(output.shape) for output in outputs] == [(2, 10)]


def test_has_no_random_layer_in_training_mode() -> None:
    model, images = LeNet(), torch.randn(3, 1, 36, 36)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(model(images), model(images), strict=True))


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (2, 3, 36, 36), (1, 36, 36), (2, 36 * 36)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidBatch, match=r"needs images of shape \[n, 1, 36, 36\], found \[" + str(shape[0])):
        LeNet()(torch.zeros(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "heads must be a positive integer, found 0"),
        ({"classes": -2}, "classes must be a positive integer, found -2"),
        ({"image_size": 15}, "image_size must be at least 16, found 15; pad or enlarge"),
        ({"image_size": (36, 36)}, r"image_size must be a positive integer, found \(36, 36\)"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        LeNet(**options)
