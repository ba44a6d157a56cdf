"""Which parameters a loss reaches is read off the graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import InvalidLosses
from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.store import Store
from tests.harness import data, two_heads, two_losses


def reached(losses: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[list[int]]:
    """For each loss the indices of the parameters in its graph."""
    model = nn.ParameterList(parameters)
    store = Store(Objective(model, lambda m, b: losses), Engine("rowwise", model))
    masks = store.masks(losses)
    return [[i for i, mask in enumerate(masks) if mask >> s & 1] for s in range(len(losses))]


def test_heads_are_reached_by_their_own_loss_only() -> None:
    model = two_heads()
    names = [name for name, _ in model.named_parameters()]
    members = reached(two_losses(model, data()), list(model.parameters()))
    trunk = {"trunk.weight", "trunk.bias"}
    assert [{names[i] for i in reach} for reach in members] == [
        trunk | {"left.weight", "left.bias"},
        trunk | {"right.weight", "right.bias"},
    ]


def test_a_loss_that_is_a_parameter_reaches_itself() -> None:
    a, b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
    assert reached([b, a * b], [a, b]) == [[1], [0, 1]]


@pytest.mark.parametrize("detached", [True, False])
def test_a_loss_that_reaches_no_parameter_is_named(detached: bool) -> None:
    a, b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
    with pytest.raises(InvalidLosses, match="objective 1 depends on no trainable parameter"):
        reached([a, a.detach() if detached else b * 2], [a])


def test_a_parameter_used_twice_and_one_outside_the_list() -> None:
    a, b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
    assert reached([a * a + a, a * b], [a]) == [[0], [0]]


def test_a_deep_graph_needs_no_recursion() -> None:
    a = nn.Parameter(torch.tensor(1.0))
    loss = a
    for _ in range(5000):
        loss = loss + 1.0
    assert reached([loss], [a]) == [[0]]
