"""x_{t-1} in the parameters of a large model: by exchanging memory, or numbers where somebody else sees the memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import MultiGradient, Storm
from stimulus_moo._engine.replay import SMALL, ParameterSwap
from tests.harness import differing, everything

ROWS = SMALL // 1024 + 1  # of 1024 entries: more than is copied aside


def pair(seed: int = 0) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Parameters of more than 2^20 entries, and other values."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(ROWS, 1024), (7,), ()]
    x, y = ([torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2))
    return [nn.Parameter(value) for value in x], y


#: somebody else who sees the memory of a parameter
ALIASES: dict[str, Any] = {
    "none": lambda p: None,
    "view": lambda p: p.detach()[3:5],
    "data": lambda p: p.data,
    "numpy": lambda p: p.detach().numpy(),
    "storage": lambda p: p.untyped_storage(),
}


def seen(alias: Any) -> Any:
    if isinstance(alias, torch.UntypedStorage):
        return torch.tensor([], dtype=torch.float32).set_(alias, 0, (5000,)).clone()
    return None if alias is None else torch.as_tensor(alias).clone()


@pytest.mark.parametrize("kind", ALIASES)
def test_values_are_exchanged_and_brought_back(kind: str) -> None:
    parameters, others = pair()
    x, y = [p.detach().clone() for p in parameters], [other.clone() for other in others]
    alias = ALIASES[kind](parameters[0])
    before = seen(alias)
    swap = ParameterSwap(parameters, others)
    for _ in range(2):
        with swap:
            assert all(map(torch.equal, parameters, y))
            if kind not in ("none", "storage"):  # who sees the memory sees what the model sees
                assert torch.equal(seen(alias), torch.as_tensor(ALIASES[kind](parameters[0])))
        assert all(map(torch.equal, parameters, x))
        assert all(map(torch.equal, others, y))
        if alias is not None:
            assert torch.equal(seen(alias), before)
    swap.back()  # idempotent
    assert all(map(torch.equal, parameters, x))
    if alias is not None and kind != "storage":
        with torch.no_grad():
            parameters[0] += 1.0  # the alias still sees the parameter
        assert torch.equal(seen(alias), before + 1.0)


def test_a_view_made_while_the_values_are_exchanged_sees_the_parameter() -> None:
    parameters, others = pair()
    x = [p.detach().clone() for p in parameters]
    with ParameterSwap(parameters, others):
        view = parameters[0].detach()[:2]
    assert all(map(torch.equal, parameters, x))
    assert torch.equal(view, x[0][:2])


def test_gradients_are_those_of_the_values_inside() -> None:
    parameters, others = pair()
    with ParameterSwap(parameters, others):
        (inside,) = torch.autograd.grad(parameters[0].square().sum(), [parameters[0]])
    (outside,) = torch.autograd.grad(parameters[0].square().sum(), [parameters[0]])
    torch.testing.assert_close(inside, 2 * others[0], rtol=0, atol=0)
    torch.testing.assert_close(outside, 2 * parameters[0].detach(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["none", "view"])
def test_values_are_brought_back_after_an_exception(kind: str) -> None:
    parameters, others = pair()
    x = [p.detach().clone() for p in parameters]
    alias = ALIASES[kind](parameters[0])
    with pytest.raises(KeyboardInterrupt), ParameterSwap(parameters, others):
        raise KeyboardInterrupt
    assert all(map(torch.equal, parameters, x))
    assert alias is None or torch.equal(alias, x[0][3:5])


def test_parameters_that_share_memory() -> None:
    """Two parameters that are views of one piece of memory, as in flattened models."""
    flat, others = torch.randn(2 * SMALL, generator=torch.Generator().manual_seed(0)), None
    parameters = [nn.Parameter(part) for part in flat.split(SMALL)]
    others = [torch.ones(SMALL), torch.full((SMALL,), 2.0)]
    before = flat.clone()
    with ParameterSwap(parameters, others):
        assert float(flat[0]) == 1.0
        assert float(flat[-1]) == 2.0
    assert torch.equal(flat, before)
    assert float(others[0][0]) == 1.0


def test_a_parameter_with_gaps_in_its_memory() -> None:
    memory = torch.randn(ROWS, 1100, generator=torch.Generator().manual_seed(0))
    parameters = [nn.Parameter(torch.ones(5)), nn.Parameter(memory[:, :1024])]
    x = [p.detach().clone() for p in parameters]
    others = [torch.zeros(5), torch.zeros(ROWS, 1024)]
    with ParameterSwap(parameters, others):
        assert float(memory[:, :1024].abs().max()) == 0.0
    assert all(map(torch.equal, parameters, x))


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return torch.stack([out.square().mean(), (out - 1.0).square().mean()])


def gradients(model: nn.Linear, x: Tensor) -> Tensor:
    rows = [torch.autograd.grad(value, [model.weight], retain_graph=True)[0] for value in losses(model, x)]
    return torch.stack(rows)


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("reweigh", [1, 3])
def test_a_large_model_takes_the_path_of_two_points(reweigh: int, hold: bool) -> None:
    """d_1 = lambda . g(x_1) + (1 - beta)(r_0 - lambda . g(x_0)), also while a view of the parameter is held."""
    torch.manual_seed(0)
    model = nn.Linear(1024, ROWS, bias=False)
    view = model.weight.detach()[:2] if hold else None
    x = torch.randn(2, 1024)
    mg = MultiGradient(model, losses, Storm(0.3), reweigh=reweigh)
    first = mg.backward(x).weights
    r, earlier = model.weight.grad.clone(), gradients(model, x)
    with torch.no_grad():
        model.weight -= 0.5 * model.weight.grad
    x_1 = model.weight.detach().clone()
    second = mg.backward(x).weights
    assert torch.equal(model.weight, x_1)
    assert view is None or torch.equal(view, x_1[:2])
    now = gradients(model, x)
    if reweigh == 1:
        expected = torch.einsum("s,spq->pq", second, now)  # y_0 is the gradient at x_0, so the correction is 0
    else:
        assert torch.equal(first, second)
        expected = torch.einsum("s,spq->pq", second, now - 0.7 * earlier) + 0.7 * r
    assert float((model.weight.grad - expected).norm() / expected.norm()) < 1e-5  # float32
    wrong = torch.einsum("s,spq->pq", second, 0.3 * now) + 0.7 * r  # x_1 in place of x_0
    assert float((model.weight.grad - wrong).norm() / expected.norm()) > 1e-3


def test_an_exception_at_the_last_point_leaves_a_large_model() -> None:
    torch.manual_seed(0)
    model, calls = nn.Linear(1024, ROWS, bias=False), [0]

    def faulty(model: nn.Module, x: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] in (2, 4):  # at x_{t-1}, then at x_t
            raise OSError("disk")
        return losses(model, x)

    mg, x = MultiGradient(model, faulty, Storm(0.3), reweigh=5), torch.randn(2, 1024)
    mg.backward(x)
    with torch.no_grad():
        model.weight -= 0.1 * model.weight.grad
    before = everything(mg)
    for _ in range(2):
        with pytest.raises(OSError, match="disk"):
            mg.backward(x)
        assert differing(before, everything(mg)) == []
    assert not mg.backward(x).reweighed
