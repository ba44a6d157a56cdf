from __future__ import annotations

import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.models import TanhMLP


def test_default_is_the_river_flow_network() -> None:
    model = TanhMLP()
    trunk = (64 * 32 + 32) + (32 * 16 + 16) + (16 * 8 + 8)
    assert sum(p.numel() for p in model.shared_parameters()) == trunk == 2744
    assert sum(p.numel() for p in model.heads.parameters()) == 8 * 9


def test_computes_tanh_layers_and_linear_outputs() -> None:
    model, inputs = TanhMLP([3, 5, 4, 2]).double(), torch.randn(6, 3, dtype=torch.float64)
    first, second = model.trunk[0], model.trunk[2]
    features = torch.tanh(torch.tanh(inputs @ first.weight.T + first.bias) @ second.weight.T + second.bias)
    expected = features @ model.heads.weight.T + model.heads.bias
    torch.testing.assert_close(model(inputs), expected)


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ((), r"widths must name the inputs, .* found \(\); use LinearModel"),
        ((4, 2), r"found \(4, 2\); use LinearModel for no hidden layer"),
        (64, "widths must name .* found 64"),
        ((4, 0, 2), r"widths\[1\] must be a positive integer, found 0"),
        ((4, 3, 2.0), r"widths\[2\] must be a positive integer, found 2\.0"),
        ("abc", r"widths\[0\] must be a positive integer, found 'a'"),
    ],
)
def test_wrong_widths_are_refused(widths: object, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        TanhMLP(widths)
