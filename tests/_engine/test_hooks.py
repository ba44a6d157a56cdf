"""Python code in a backward pass gets plain tensors from every engine, whenever it is added."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stimulus_moo import MiniBatch, MultiGradient, StimulusWarning
from stimulus_moo._engine.hooks import find_python, hooks_of, registered
from tests._engine.hooked_models import MODELS, Model, Reversal, losses

X = torch.ones(6, 4, dtype=torch.float64)

#: not run by any engine: gradients are not accumulated
UNUSED = "post-accumulate hook"

#: hooks that see no gradient, or do not keep it
SILENT = (UNUSED, "autograd function", "checkpoint", "saved-tensor hooks")


def reports(*engines: str) -> list[Any]:
    command = [sys.executable, "-m", "tests._engine.hooked_models", *engines]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, f"ended with {done.returncode} after {done.stdout} {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_models_with_python_code_in_the_backward_pass_go_by_rows() -> None:
    engines = ("auto", "batched", "compiled")  # in one process: most of the time is its start
    found = reports(*engines)
    assert [(report["asked"], report["model"]) for report in found] == list(product(engines, MODELS))
    for report in found:
        name, engine = report["model"], report["asked"]
        assert report["distance"] < 1e-12, name
        assert (report["kept"] > 0) == (name not in SILENT), name
        assert report["unreadable"] == 0, name
        if name == UNUSED:
            assert (report["engine"], report["warnings"]) == ("batched" if engine == "auto" else engine, [])
        else:
            assert report["engine"] == "rowwise", name
            assert len(report["warnings"]) == (engine != "auto"), name


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "rowwise", "batched"])
def test_reentrant_checkpoints_are_refused_by_torch_itself(engine: str) -> None:
    model = Model(lambda h: checkpoint(torch.exp, h, use_reentrant=True))
    mg = MultiGradient(model, losses, MiniBatch(), engine=engine)
    expectation = pytest.warns(StimulusWarning) if engine == "batched" else pytest.MonkeyPatch.context()
    with expectation, pytest.raises(RuntimeError, match="use_reentrant=True"):
        mg.backward(X)


def test_a_hook_that_stores_its_gradient_finds_plain_tensors(caplog: pytest.LogCaptureFixture) -> None:
    stored: list[Tensor] = []

    def between(h: Tensor) -> Tensor:
        h.register_hook(stored.append)
        return h

    mg = MultiGradient(Model(between), losses, MiniBatch())
    with caplog.at_level(logging.INFO, "stimulus_moo"):
        mg.backward(X)
    assert mg.engine == "rowwise"
    assert [tensor.shape for tensor in stored] == [(6, 5)] * 3
    assert "hooks are registered while its losses are evaluated" in caplog.text


def test_a_node_in_python_is_named() -> None:
    mg = MultiGradient(Model(Reversal.apply), losses, MiniBatch(), engine="batched")
    with pytest.warns(StimulusWarning, match="its graph has the node ReversalBackward"):
        mg.backward(X)
    assert mg.engine == "rowwise"


def test_a_plain_graph_has_no_python_code() -> None:
    model, before = Model(), registered()
    parameters = list(model.parameters())
    assert find_python(list(losses(model, X)), parameters, saved=True) is None
    assert registered() == before
    handle = parameters[0].register_hook(torch.neg)
    assert find_python(list(losses(model, X)), parameters) == "a parameter has a hook"
    handle.remove()
    assert find_python(list(losses(model, X)), parameters) is None


def test_hooks_of_a_model_are_told_apart() -> None:
    model = Model()
    assert hooks_of(list(model.modules()), list(model.parameters())) == []
    handles = [
        model.first.register_forward_hook(print),
        model.last.register_full_backward_hook(print),
        model.last.weight.register_hook(print),
        nn.modules.module.register_module_forward_pre_hook(print),
    ]
    assert hooks_of(list(model.modules()), list(model.parameters())) == [handle.id for handle in handles]
    for handle in handles:
        handle.remove()
    assert hooks_of(list(model.modules()), list(model.parameters())) == []


def test_removed_hooks_leave_the_batched_engine_alone() -> None:
    model = Model()
    model.first.weight.register_hook(torch.neg).remove()
    model.first.register_full_backward_hook(print).remove()
    mg = MultiGradient(model, losses, MiniBatch())
    mg.backward(X)
    assert mg.engine == "batched"


@pytest.mark.parametrize("engine", ["auto", "batched"])
@pytest.mark.filterwarnings("ignore:engine 'batched' does not work")
def test_a_gradient_that_is_retained_is_a_plain_tensor(engine: str) -> None:
    """Read through ``.data``, one that the batched engine left behind would end the process."""
    kept: list[Tensor] = []

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        h = model(x)
        h.retain_grad()
        kept.append(h)
        return h.square().mean(0)

    mg = MultiGradient(nn.Linear(4, 3), losses, MiniBatch(), engine=engine)
    for _ in range(3):
        mg.backward(torch.randn(8, 4))
    assert mg.engine == "rowwise"
    assert not any(torch._C._functorch.is_batchedtensor(h.grad) for h in kept if h.grad is not None)
    assert "retain_grad" not in vars(torch.Tensor)
