from __future__ import annotations

import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.models import LinearModel


def test_shares_every_parameter() -> None:
    model = LinearModel(4, 3)
    assert [tuple(p.shape) for p in model.shared_parameters()] == [(3, 4), (3,)]
    assert [tuple(p.shape) for p in LinearModel(4, bias=False).shared_parameters()] == [(1, 4)]


def test_a_single_output_is_one_weight_vector() -> None:
    model, inputs = LinearModel(4).double(), torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(model(inputs)[:, 0], inputs @ model.weight[0] + model.bias)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "features must be a positive integer, found 0"),
        ((3, 0), "outputs must be a positive integer, found 0"),
    ],
)
def test_wrong_sizes_are_refused(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        LinearModel(*arguments)
