"""A resumed run must be the run that was saved: everything that decides its path is compared by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import MinNorm, Smoothed, StateMismatch, StimulusWarning, fit
from stimulus_moo.training import description
from stimulus_moo.training.description import describe, same

X = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([[1.0, -1.0], [0.5, 0.0], [0.0, 2.0]])
RATE = 0.5


def losses(model: nn.Module, batch: Any) -> Tensor:
    """Two squares."""
    return (model(batch[0]) - batch[1]).square().mean(0)


def other_losses(model: nn.Module, batch: Any) -> Tensor:
    """Two squares, of which one is scaled."""
    return (model(batch[0]) - batch[1]).square().mean(0) * torch.tensor([1.0, 2.0])


def sgd(**options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, **{"lr": 0.05, **options})


def halving(factor: float) -> Callable[[Any], Any]:
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: factor**t)


def run(folder: Path, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    options = {"losses": losses, "dataset": (X, Y), "method": "smgd", "lr": 0.05, "steps": 4, "shared": None, **changes}
    if options["shared"] is not None:
        options["shared"] = list(model[options["shared"]].parameters())
    return fit(model, checkpoint=folder, resume=True, progress=False, **options)


#: by the entry that is named: how the run was made, and how it is resumed
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weights": ({"method": "scalarisation", "weights": [0.5, 0.5]}, {"method": "scalarisation", "weights": [0.9, 0.1]}),
    "weighting": ({"weighting": MinNorm()}, {"weighting": MinNorm(preference=[1.0, 2.0])}),
    "shared": ({}, {"shared": 0}),
    "scheduler": ({"scheduler": halving(0.5)}, {"scheduler": halving(0.9)}),
    "optimizer": ({"optimizer": sgd()}, {"optimizer": sgd(lr=0.01)}),
    "data": ({}, {"dataset": (X, Y + 1.0)}),
    "beta": (
        {"method": "moco", "beta": lambda t: 1.0 / (t + 1)},
        {"method": "moco", "beta": lambda t: 1.0 / (t + 2)},
    ),
    "mu": ({"mu": 0.1}, {"mu": 0.2}),
    "reweigh": ({"reweigh": 2}, {"reweigh": "auto"}),
    "gramian": ({"reweigh": 2}, {"reweigh": 2, "gramian": "sketch"}),
}


@pytest.mark.parametrize("entry", CHANGES)
def test_a_run_with_anything_else_is_refused_by_name(entry: str, tmp_path: Path) -> None:
    first, second = CHANGES[entry]
    end = run(tmp_path, **first)
    with pytest.raises(StateMismatch, match=f"the checkpoint was made with {entry}="):
        run(tmp_path, steps=8, **second)
    assert run(tmp_path, **first).steps == end.steps  # the same arguments go on


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, partial(torch.optim.SGD, momentum=0.9)])
def test_an_optimizer_of_another_kind_is_refused(optimizer: Any, tmp_path: Path) -> None:
    run(tmp_path, optimizer=sgd())
    with pytest.raises(StateMismatch, match=r"the checkpoint was made with optimizer=.SGD"):
        run(tmp_path, optimizer=lambda parameters: optimizer(parameters, lr=0.05), steps=8)


def test_other_losses_are_told(tmp_path: Path) -> None:
    """Not refused: a loss that was mended is a reason to resume."""
    run(tmp_path)
    with pytest.warns(StimulusWarning, match=r"made with losses='losses .*, this run has 'other_losses"):
        assert run(tmp_path, losses=other_losses, steps=8).steps == 8


def test_what_only_rounds_or_ends_a_run_may_change(tmp_path: Path) -> None:
    run(tmp_path)
    result = run(tmp_path, steps=8, micro_batch=2, engine="rowwise", on_nonfinite="skip", evaluate_every=2)
    assert result.steps == 8


@pytest.mark.parametrize("method", ["smgd", "stimulus-m"])
def test_a_run_that_ended_by_tolerance_has_ended(method: str, tmp_path: Path) -> None:
    options = {"method": method, "steps": 400, "tolerance": 0.05, "evaluate_every": 5}
    first = run(tmp_path, **options)
    assert (first.stopped, first.steps < 400) == ("tolerance", True)
    again = run(tmp_path, **options)
    assert (again.stopped, again.steps) == ("tolerance", first.steps)
    assert again.stationarity == first.stationarity
    further = run(tmp_path, **{**options, "tolerance": 1e-3})
    assert further.steps > first.steps


def test_functions_are_told_apart_by_what_they_do() -> None:
    def scaled(factor: float) -> Callable[[int], float]:
        return lambda t: factor * t

    def counting() -> Callable[[int], float]:
        calls = 0

        def counted(t: int) -> float:
            nonlocal calls
            calls += 1
            return RATE * t

        counted(1)
        return counted

    assert describe(scaled(2.0)) == describe(scaled(2.0)) != describe(scaled(3.0))
    first = counting()
    before = describe(first)
    first(1)
    assert describe(first) == before  # its counter is of no account
    assert describe(partial(scaled, 2.0)) != describe(partial(scaled, 3.0))
    assert describe(Smoothed(MinNorm(), 0.9)) != describe(Smoothed(MinNorm(preference=[1.0, 2.0]), 0.9))
    assert describe(Smoothed(MinNorm(), 0.9)) != describe(Smoothed(MinNorm(), 0.8))
    assert describe(MinNorm(preference=[1.0, 2.0])) != describe(MinNorm(preference=[2.0, 1.0]))


def test_global_constants_and_functions_of_the_module_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(t: int) -> float:
        return RATE**t

    def calls(t: int) -> Any:
        return losses(nn.Identity(), t)

    before = describe(rate), describe(calls)
    monkeypatch.setitem(globals(), "RATE", 0.25)
    monkeypatch.setitem(globals(), "losses", other_losses)
    assert (describe(rate) == before[0], describe(calls) == before[1]) == (False, False)


def test_a_description_is_the_same_in_every_process() -> None:
    code = (
        "from tests.training.test_description import *\n"
        "print(describe(losses), describe(halving(0.5)), describe(MinNorm(preference=[1.0, 2.0])), "
        "describe(frozenset('abcdef')))"
    )
    here = f"{describe(losses)} {describe(halving(0.5))} {describe(MinNorm(preference=[1.0, 2.0]))}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout.strip() == f"{here} {describe(frozenset('abcdef'))}"


def test_code_compiled_by_another_python_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    now = describe(losses)
    monkeypatch.setattr(description, "_VERSION", "python 2.7")
    assert same(now, describe(losses))
    assert not same(now, describe(3))
