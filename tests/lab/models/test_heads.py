from __future__ import annotations

import pytest
import torch
from torch import nn

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.models import TupleHeads


def test_tuple_heads_keep_their_order() -> None:
    heads = TupleHeads([nn.Identity(), nn.Flatten(0)])
    features = torch.arange(6.0).reshape(2, 3)
    assert [tuple(output.shape) for output in heads(features)] == [(2, 3), (6,)]


def test_tuple_heads_refuse_an_empty_list() -> None:
    with pytest.raises(InvalidOption, match="heads must hold at least one module, found none"):
        TupleHeads([])
