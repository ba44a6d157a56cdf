"""The list of modules and parameters follows every change of the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from stimulus_moo import MiniBatch, ModelChanged, MultiGradient, Storm
from stimulus_moo._engine.module_tree import ModuleTree
from tests.harness import cut, data, two_heads, two_losses

BATCHES = cut(data(24), 6)


class Net(nn.Module):
    """Modules in modules, one of them used twice, and a parameter that is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2)))
        self.twice = self.inner[0]
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.inner[0].weight
        self.own = nn.Parameter(torch.ones(1))


def replace_inner(net: Net) -> None:
    net.inner[1] = nn.Tanh()


def replace_deep(net: Net) -> None:
    net.inner[2][0] = nn.Linear(2, 3)


def add_deep(net: Net) -> None:
    net.inner[2].append(nn.Linear(2, 2))


def remove(net: Net) -> None:
    del net.inner[1]


def none(net: Net) -> None:
    net.tied = None


def add_parameter(net: Net) -> None:
    net.inner[1].extra = nn.Parameter(torch.zeros(3))


def replace_parameter(net: Net) -> None:
    net.inner[0].weight = nn.Parameter(torch.zeros(2, 2))


def delete_parameter(net: Net) -> None:
    net.tied.bias = None


def swap(net: Net) -> None:
    first, last = net.inner[0], net.inner[2]
    net.inner[0], net.inner[2] = last, first


def parametrize(net: Net) -> None:
    weight_norm(net.inner[2][0])


CHANGES: list[Callable[[Net], None]] = [
    replace_inner, replace_deep, add_deep, remove, none, add_parameter, replace_parameter, delete_parameter, swap,
    parametrize,
]  # fmt: skip


def is_current(tree: ModuleTree, net: nn.Module) -> None:
    assert [id(module) for module in tree.modules] == [id(module) for module in net.modules()]
    assert [id(parameter) for parameter in tree.parameters] == [id(parameter) for parameter in net.parameters()]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed(change: Callable[[Net], None]) -> None:
    net = Net()
    tree = ModuleTree(net)
    is_current(tree, net)
    change(net)
    tree.update()
    is_current(tree, net)
    replace_inner(net) if len(net.inner) > 2 else add_deep_again(net)
    tree.update()
    is_current(tree, net)


def add_deep_again(net: Net) -> None:
    net.inner.append(nn.Linear(1, 1))


def test_a_model_without_changes_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, walks = Net(), []
    modules = Net.modules
    monkeypatch.setattr(Net, "modules", lambda self, **options: walks.append(self) or modules(self, **options))
    tree = ModuleTree(net)
    for _ in range(3):
        tree.update()
    assert walks == [net]


def test_steps_notice_a_replaced_module_and_an_added_parameter() -> None:
    """Rules with memory refuse it, the others adopt it, under kept weights as well."""
    for reweigh in (1, 3):
        model = two_heads()
        mg = MultiGradient(model, two_losses, Storm(0.3), reweigh=reweigh)
        mg.backward(BATCHES[0])
        model.left = nn.Linear(5, 1, dtype=torch.float64)
        with pytest.raises(ModelChanged):
            mg.backward(BATCHES[1])
        mg.reset()
        mg.backward(BATCHES[1])
        assert model.left.weight.grad is not None
        model = two_heads()
        mg = MultiGradient(model, two_losses, MiniBatch(), reweigh=reweigh)
        mg.backward(BATCHES[0])
        model.middle = nn.PReLU(dtype=torch.float64)
        step = mg.backward(BATCHES[1])
        assert step.reweighed == (reweigh == 1)
        assert model.middle.weight.grad is not None
        rows = torch.stack(two_losses(model, BATCHES[1])) @ step.weights
        (expected,) = torch.autograd.grad(rows, [model.middle.weight])
        torch.testing.assert_close(model.middle.weight.grad, expected, rtol=1e-12, atol=0)


def test_tied_parameters_have_the_sum_of_their_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 4, dtype=torch.float64))
    model[2].weight = model[0].weight
    x = BATCHES[0][0]
    mg = MultiGradient(model, lambda m, x: m(x).square().mean(0)[:2], MiniBatch(), reweigh=2)
    for _ in range(2):
        step = mg.backward(x)
    (expected,) = torch.autograd.grad(model(x).square().mean(0)[:2] @ step.weights, [model[0].weight])
    torch.testing.assert_close(model[0].weight.grad, expected, rtol=1e-12, atol=0)
