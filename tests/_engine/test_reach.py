"""Which parameters a loss reaches is read off the graph."""

from __future__ import annotations

import torch
from torch import nn

from stimulus_moo._engine.reach import reached
from tests.harness import data, two_heads, two_losses


def test_heads_are_reached_by_their_own_loss_only() -> None:
    model = two_heads()
    names = [name for name, _ in model.named_parameters()]
    members = reached(two_losses(model, data()), list(model.parameters()))
    trunk = {"trunk.weight", "trunk.bias"}
    assert [{names[i] for i in reach} for reach in members] == [
        trunk | {"left.weight", "left.bias"},
        trunk | {"right.weight", "right.bias"},
    ]
    assert all(reach == sorted(reach) for reach in members)


def test_a_loss_that_is_a_parameter_reaches_itself() -> None:
    a, b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
    assert reached([b, a * b, a.detach(), torch.tensor(1.0)], [a, b]) == [[1], [0, 1], [], []]


def test_a_parameter_used_twice_and_one_outside_the_list() -> None:
    a, b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
    assert reached([a * a + a, a * b], [a]) == [[0], [0]]


def test_a_deep_graph_needs_no_recursion() -> None:
    a = nn.Parameter(torch.tensor(1.0))
    loss = a
    for _ in range(5000):
        loss = loss + 1.0
    assert reached([loss], [a]) == [[0]]
