"""What holds for every model of the lab."""

from __future__ import annotations

import copy
import doctest
import importlib
import pkgutil

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo.lab import models
from tests.lab.models.catalogue import EVERY_MODEL, MULTI_HEAD, Entry, per_objective

every_model = pytest.mark.parametrize("entry", EVERY_MODEL, ids=lambda entry: entry.name)
multi_head = pytest.mark.parametrize("entry", MULTI_HEAD, ids=lambda entry: entry.name)
MODULES = [module.name for module in pkgutil.iter_modules(models.__path__, models.__name__ + ".")]


@every_model
def test_outputs_have_the_documented_shapes(entry: Entry) -> None:
    outputs = entry.build()(entry.inputs(4))
    if isinstance(outputs, Tensor):
        assert outputs.shape == (4, *entry.outputs)
    else:
        assert tuple(tuple(output.shape) for output in outputs) == tuple((4, *s) for s in entry.outputs)


@every_model
def test_equal_seeds_give_equal_models_and_others_do_not(entry: Entry) -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(torch.cat([p.detach().flatten() for p in entry.build().parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@every_model
def test_a_sample_does_not_see_the_rest_of_its_batch(entry: Entry) -> None:
    """The losses are finite sums. In float64 the only difference is the order of summation."""
    model, inputs = entry.build().double(), entry.inputs(4).double()
    for whole, alone in zip(per_objective(model(inputs)), per_objective(model(inputs[:1])), strict=True):
        torch.testing.assert_close(whole[:1], alone, rtol=1e-10, atol=1e-12)


def heads_with_gradient(heads: nn.Module) -> list[int]:
    """Out of reach is no gradient at all for a module of ``TupleHeads``, zero for a row of a linear layer."""
    if isinstance(heads, models.TupleHeads):
        return [s for s, head in enumerate(heads) if any(p.grad is not None for p in head.parameters())]
    return torch.nonzero(torch.column_stack([heads.weight.grad, heads.bias.grad]).any(dim=1))[:, 0].tolist()


@multi_head
def test_a_head_reaches_the_trunk_and_no_other_head(entry: Entry) -> None:
    model = entry.build()
    for objective, output in enumerate(per_objective(model(entry.inputs()))):
        model.zero_grad()
        output.square().mean().backward(retain_graph=True)
        assert any(p.grad.abs().max() > 0 for p in model.shared_parameters())
        assert heads_with_gradient(model.heads) == [objective]


@multi_head
def test_trunk_and_heads_part_the_parameters(entry: Entry) -> None:
    model = entry.build()
    shared = {id(p) for p in model.shared_parameters()}
    heads = {id(p) for p in model.heads.parameters()}
    assert not shared & heads
    assert shared | heads == {id(p) for p in model.parameters()}


@every_model
def test_a_copy_and_a_reloaded_state_predict_the_same(entry: Entry) -> None:
    model, inputs = entry.build(), entry.inputs()
    reloaded = entry.build()
    reloaded.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), reloaded):
        for expected, found in zip(per_objective(model(inputs)), per_objective(twin(inputs)), strict=True):
            assert torch.equal(expected, found)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", models.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>>" in (getattr(models, name).__doc__ or "")
