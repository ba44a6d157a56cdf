"""A checkpoint with a right checksum and one field of a wrong type, shape, dtype or sign: refused, and nothing changes.

Every field of real checkpoints is replaced by every wrong value that can be known to be wrong. A wrong value of the
right type, such as another loss in the history, cannot be known.
"""

from __future__ import annotations

import copy
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler

from stimulus_moo import MinNorm, Smoothed, StateMismatch, fit
from stimulus_moo.training.run import Run, take_over
from tests.harness import same

Path_ = tuple[Any, ...]

#: Fields that may also be None or empty, as in a state before the first step.
OPTIONAL = re.compile(
    r"multigradient\.(rows|previous|weights|sq_norm|objectives)|.*\.(variance|origin|smoothness|level|drift|signal)"
    r"|.*weighting\.previous|optimizer\.state(\.\d+)?|history\.columns|random\.others|measured|stopped"
)
#: Numbers that may be negative.
SIGNED = re.compile(r"guard\.drift\.fall|measured\.losses\.\d+")

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "lr='auto'": {"lr": "auto"},
    "scheduler and mu": {
        "lr": 0.05,
        "mu": 0.1,
        "scheduler": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 20),
    },
    "Adam and a weighting with state": {
        "method": "stimulus",
        "lr": 0.05,
        "period": "auto",
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        "scheduler": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 9]),
        "weighting": lambda: Smoothed(MinNorm(), 0.5),
    },
}

#: The parts in which a configuration differs from the others.
PARTS = {
    "scheduler and mu": {"optimizer", "scheduler", "clock"},
    "Adam and a weighting with state": {"optimizer", "scheduler", "multigradient"},
}


def losses(model: Any, batch: Any) -> Any:
    return (model(batch[0]) - batch[1]).square().mean(0)


def interrupted(folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Run, dict[str, Any]]:
    """Return a fresh run, and the state of its checkpoint after 12 steps."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    data = (x, x[:, :2])
    found: list[tuple[Run, dict[str, Any]]] = []
    arguments: dict[str, Any] = {"method": "stimulus-m+", "momentum": 0.5, "sigma2": "auto", **options}
    if arguments["method"] == "stimulus":
        del arguments["momentum"], arguments["sigma2"]

    def train(**more: Any) -> Any:
        torch.manual_seed(1)
        if "weighting" in options:
            more["weighting"] = options["weighting"]()
        model = torch.nn.Linear(3, 2)
        model.register_buffer("version", torch.tensor(3))
        chosen = {**arguments, "guard": True, "evaluate_every": 4, "progress": False, "checkpoint": folder, **more}
        return fit(model, losses, data, batch_size=8, steps=12, **chosen)

    train()

    def capture(run: Run, state: dict[str, Any]) -> None:
        found.append((run, state))
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["stimulus_moo.fit"], "take_over", capture)
    with pytest.raises(KeyboardInterrupt):
        train(resume=True)
    return found[0]


def fields(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield every entry below ``value``, also those that hold others."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from fields(item, (*path, key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from fields(item, (*path, i))


def wrong_values(name: str, value: Any) -> list[Any]:
    """Return replacements of an entry that are known to be wrong."""
    wrong: list[Any] = ["x", {"unknown": 1}]
    if value is not None and not OPTIONAL.fullmatch(name):
        wrong.append(None)
    if isinstance(value, Tensor):
        other = torch.float16 if value.is_floating_point() else torch.float32
        wrong += [1, 1.5, True, [], value.unsqueeze(0), value[..., None].expand(*value.shape, 2), value.to(other)]
        wrong += [torch.cat([value, value[-1:]])] if value.dim() and len(value) else []
    elif isinstance(value, bool):
        wrong += [7, 1.5, torch.tensor(True)]
    elif isinstance(value, int):
        wrong += [True, torch.tensor(value), *([] if SIGNED.fullmatch(name) else [-7])]
        wrong += [] if name.startswith("optimizer.param_groups") else [1.5, math.nan]  # an int there may become a float
    elif isinstance(value, float):
        wrong += [True, torch.tensor(value), *([] if SIGNED.fullmatch(name) else [-1.5])]
    elif isinstance(value, dict | list | tuple):
        wrong += [3, 1.5, True, torch.zeros(2), *([] if OPTIONAL.fullmatch(name) else [type(value)()] if value else [])]
    elif isinstance(value, str):
        wrong += [3, True]
    return wrong


def replaced(state: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """Return the state with one entry replaced; everything else is shared."""

    def put(node: Any, rest: Path_) -> Any:
        if not rest:
            return value
        if isinstance(node, dict):
            return {**node, rest[0]: put(node[rest[0]], rest[1:])}
        made = list(node)
        made[rest[0]] = put(node[rest[0]], rest[1:])
        return type(node)(made)

    made: dict[str, Any] = put(state, path)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_field_of_a_wrong_type_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, state = interrupted(tmp_path, CONFIGURATIONS[name], monkeypatch)
    before = copy.deepcopy(run.state_dict())
    take_over(run, state)  # the checkpoint itself fits
    run.load_state_dict(before)
    accepted, tried = [], 0
    parts = PARTS.get(name, set(state) - {"kind", "version"})  # ``checkpoint.read`` checks these two
    for path, value in fields({key: value for key, value in state.items() if key in parts}):
        where = ".".join(map(str, path))
        for wrong in wrong_values(where, value):
            tried += 1
            try:
                take_over(run, replaced(state, path, wrong))
            except StateMismatch:
                pass
            else:
                accepted.append(f"{where} = {wrong!r}")
                run.load_state_dict(before)
        assert same(run.state_dict(), before), where
    assert accepted == []
    assert tried > 250


class Ramp:
    """A schedule with attributes of its own, which LambdaLR saves."""

    last: float | None = None

    def __call__(self, t: int) -> float:
        self.last = 1.0 / (1 + t)
        return self.last


SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, Ramp()),
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=False),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False),
    "warm restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], [2]
    ),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer), lr_scheduler.LinearLR(optimizer)]
    ),
}
OPTIMIZERS = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [*OPTIMIZERS, "Adafactor", *SCHEDULERS])
def test_checkpoints_of_optimizers_and_schedulers_of_torch_are_accepted(name: str, tmp_path: Path) -> None:
    kind = getattr(torch.optim, name, torch.optim.SGD)
    momentum = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))

    def train(steps: int, folder: Path) -> list[Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        options: dict[str, Any] = {"scheduler": SCHEDULERS.get(name), "checkpoint": folder, "resume": True}
        make = lambda parameters: kind(parameters, lr=0.05, **momentum)  # noqa: E731
        fit(
            model, losses, (x, x[:, :2]), method="smgd", steps=steps, lr=0.05, optimizer=make, progress=False, **options
        )
        return [parameter.detach() for parameter in model.parameters()]

    train(3, tmp_path / "cut")
    assert same(train(6, tmp_path / "cut"), train(6, tmp_path / "whole"))
