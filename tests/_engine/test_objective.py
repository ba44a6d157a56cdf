"""The user's losses: checked, cut, evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import InvalidBatch, InvalidLosses, InvalidOption, NonFiniteError
from stimulus_moo._engine.objective import Objective
from tests.harness import data, jacobian, two_heads, two_losses


def linear(**options: Any) -> Objective:
    torch.manual_seed(0)
    return Objective(nn.Linear(3, 2), lambda model, x: model(x).square().mean(0), **options)


def returning(value: Any) -> Objective:
    """An objective whose losses return ``value(model(x))``."""
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 2.0)
    nn.init.constant_(model.bias, 0.0)
    return Objective(model, lambda model, x: value(model(x).mean()))


X = torch.ones(3, 1)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("tuple", lambda y: (y, y * 3)),
        ("list", lambda y: [y, y * 3]),
        ("1-D tensor", lambda y: torch.stack([y, y * 3])),
        ("different dtypes", lambda y: (y, y.double() * 3)),
    ],
)
def test_losses_come_in_several_forms(kind: str, value: Any) -> None:
    objective = returning(value)
    evaluated = objective.evaluate(X, step=0)
    assert evaluated.losses.tolist() == [2.0, 6.0]
    assert not evaluated.losses.requires_grad
    rows = [torch.autograd.grad(loss, objective.parameters, retain_graph=True) for loss in evaluated.graphs]
    assert [[float(gradient) for gradient in row] for row in rows] == [[1, 1], [3, 3]]


def test_a_tensor_of_losses_is_cut_only_where_single_ones_are_needed() -> None:
    evaluated = linear().evaluate(torch.ones(4, 3), step=0)
    assert evaluated.single is None
    with torch.no_grad():  # as in a step
        graphs = evaluated.graphs
    assert [loss.requires_grad for loss in graphs] == [True, True]
    assert evaluated.graphs is graphs


def test_a_tensor_of_losses_without_a_graph_names_the_first_loss_that_counts() -> None:
    objective = Objective(nn.Linear(1, 1), lambda model, x: torch.ones(2))
    with pytest.raises(InvalidLosses, match="the loss of objective 1 depends on no trainable parameter"):
        objective.evaluate(X, step=0, counts=[0.0, 3.0])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda y: y, r"tuple or a 1-D tensor, found a tensor of shape \[\]; for one objective return \(loss,\)"),
        (lambda y: y.expand(2, 2), r"tuple or a 1-D tensor, found a tensor of shape \[2, 2\]"),
        (lambda y: None, "tuple or a 1-D tensor, found NoneType"),
        (lambda y: {"a": "b"}, "loss 'a' must be a real 0-d tensor"),
        (lambda y: np.array([1.0, 2.0]), "tuple or a 1-D tensor, found ndarray"),
        (lambda y: (value for value in (y, y)), "tuple or a 1-D tensor, found generator"),
        (lambda y: (), "at least one loss, found none"),
        (lambda y: y.expand(0), "at least one loss, found none"),
        (lambda y: (y, y.expand(2)), r"loss 1 must be a real 0-d tensor, .* found shape \[2\] of torch.float32"),
        (lambda y: (y, 1.0), "loss 1 must be a real 0-d tensor, .* found 1.0"),
        (lambda y: (y, None), "loss 1 must be a real 0-d tensor, .* found None"),
        (lambda y: (y * 1j, y), r"loss 0 must be a real 0-d tensor, .* found shape \[\] of torch.complex64"),
        (lambda y: (y, torch.tensor(3)), r"loss 1 must be .* found shape \[\] of torch.int64"),
        (lambda y: (y, y.detach()), "objective 1 depends on no trainable parameter; .*detach"),
        (lambda y: torch.stack([y, y]).detach(), "objective 0 depends on no trainable parameter"),
    ],
)
def test_anything_else_is_refused_with_what_was_found(value: Any, message: str) -> None:
    with pytest.raises(InvalidLosses, match=message):
        returning(value).evaluate(X, step=0)


def test_another_number_of_losses_than_before_is_refused() -> None:
    objective = returning(lambda y: (y, y))
    objective.count = 3
    with pytest.raises(InvalidLosses, match="losses returned 3 losses before and 2 now"):
        objective.evaluate(X, step=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_non_finite_loss_names_objective_and_step(value: float) -> None:
    with pytest.raises(NonFiniteError, match=f"loss of objective 1 is {value} at step 7") as caught:
        returning(lambda y: (y, y * value)).evaluate(X, step=7)
    assert (caught.value.objective, caught.value.step) == (1, 7)


def test_losses_of_low_precision_are_reported_in_float32() -> None:
    evaluated = returning(lambda y: (y.bfloat16(), y.half())).evaluate(X, step=0)
    assert evaluated.losses.dtype == torch.float32


def test_evaluation_works_where_gradients_are_switched_off() -> None:
    model = two_heads()
    expected = jacobian(model, two_losses, data())
    with torch.no_grad():
        left, _ = Objective(model, two_losses).evaluate(data(), step=0).graphs
    row = torch.autograd.grad(left, list(model.parameters()), allow_unused=True)
    found = torch.cat([gradient.flatten() for gradient in row if gradient is not None])
    assert torch.equal(found, expected[0][expected[0] != 0])


def test_pieces_have_their_sizes() -> None:
    x = torch.zeros(7, 3)
    assert [size for _, size in linear().pieces(x)] == [7]
    assert [size for _, size in linear(micro_batch=3).pieces(x)] == [3, 3, 1]
    assert [size for _, size in linear(micro_batch=3, batch_size=lambda b: 10 * len(b)).pieces(x)] == [30, 30, 10]
    assert [size for _, size in linear(batch_size=lambda batch: np.int64(5)).pieces("anything")] == [5]


@pytest.mark.parametrize("size", [0, -1, 2.5, None, True, "3"])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(InvalidBatch, match=f"at least one sample, found size {size!r}"):
        linear(batch_size=lambda batch: size).size(torch.zeros(2, 3))


def test_an_empty_batch_is_refused() -> None:
    for options in ({}, {"micro_batch": 2}):
        with pytest.raises(InvalidBatch, match="at least one sample, found size 0"):
            list(linear(**options).pieces(torch.zeros(0, 3)))


def test_changes_of_the_model_are_seen() -> None:
    model = two_heads()
    objective = Objective(model, two_losses)
    assert objective.unchanged()
    with torch.no_grad():
        model.trunk.weight.mul_(2)  # another value is no change
    assert objective.unchanged()
    model.left.bias.requires_grad_(False)
    assert not objective.unchanged()
    objective.adopt()
    assert objective.unchanged()
    assert "left.bias" not in objective.names
    model.extra = nn.Linear(1, 1)
    assert not objective.unchanged()
    objective.adopt()
    model.float()
    assert not objective.unchanged()
    objective.adopt()
    model.left = nn.Linear(5, 1)
    assert not objective.unchanged()


def test_tied_parameters_are_one() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    objective = Objective(model, lambda model, x: (model(x).mean(),))
    assert objective.names == ["0.weight", "0.bias", "1.bias"]


def test_batch_norms_that_use_batch_statistics_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    objective = Objective(model, lambda model, x: (model(x).mean(),))
    assert objective.batch_norms() == ["1", "2"]
    model.eval()
    assert objective.batch_norms() == ["2"]  # without running statistics it always uses the batch's
    norm = nn.BatchNorm1d(2)
    assert Objective(norm, lambda model, x: (model(x).mean(),)).batch_norms() == ["BatchNorm1d"]
    assert Objective(nn.InstanceNorm1d(2, affine=True), lambda m, x: (m(x).mean(),)).batch_norms() == []


def frozen() -> nn.Module:
    return nn.Linear(1, 1).requires_grad_(False)


def other_parameters() -> list[Tensor]:
    return list(nn.Linear(1, 1).parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "model"}, "model must be a torch.nn.Module, found str"),
        ({"losses": 3}, r"losses must be a function of \(model, batch\), found 3"),
        ({"batch_size": 32}, "batch_size must be a function from a batch to its size, found 32"),
        ({"micro_batch": 0}, "micro_batch must be a positive integer, found 0"),
        ({"micro_batch": 2.0}, "micro_batch must be a positive integer, found 2.0"),
        ({"model": frozen()}, "at least one parameter with requires_grad=True, found none"),
        ({"model": nn.Linear(1, 1, dtype=torch.complex64)}, "real floating point, found weight of torch.complex64"),
        ({"shared": nn.Linear(1, 1)}, "shared must be an iterable of parameters, .* found Linear"),
        ({"shared": 3}, "shared must be an iterable of parameters, .* found int"),
        ({"shared": other_parameters()}, "parameters of the model, found Parameter at position 0 that is not one"),
        ({"shared": ["weight"]}, "parameters of the model, found str at position 0 that is not one"),
        ({"shared": []}, "at least one trainable parameter of the model, found none"),
    ],
)
def test_arguments_that_cannot_work(options: dict[str, Any], message: str) -> None:
    arguments = {"model": nn.Linear(1, 1), "losses": two_losses} | options
    with pytest.raises(InvalidOption, match=message):
        Objective(**arguments)


def test_a_refused_adoption_changes_nothing() -> None:
    model = two_heads()
    objective = Objective(model, two_losses, shared=model.trunk.parameters())
    names, decisive = objective.names, objective.decisive
    model.trunk.requires_grad_(False)
    with pytest.raises(InvalidOption, match="at least one trainable"):
        objective.adopt()
    assert (objective.names, objective.decisive) == (names, decisive)
    assert decisive == [True, True, False, False, False, False]


def test_lazy_parameters_are_refused_until_a_forward_pass() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.Linear(3, 2))
    with pytest.raises(InvalidOption, match=r"parameters must be initialized, found 0\.weight .* run one forward pass"):
        Objective(model, two_losses)
    model(torch.ones(2, 4))
    assert Objective(model, two_losses).dimension == 4 * 3 + 3 + 3 * 2 + 2
