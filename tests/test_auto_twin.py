"""Auto as fit runs it, in Adam's metric, with weights solved for when due, against its literal twin."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from stimulus_moo import Adaptive, Balanced, MultiGradient, SecondMoment
from tests.database import ENGINES, TorchProblem, replaced
from tests.properties import TWIN_TOLERANCE, relative
from tests.reference.auto import auto

STEPS = 110
STALLED = 10.0  # whatever the losses do


@pytest.mark.parametrize("engine", ["rowwise", "batched"])
@pytest.mark.parametrize(
    ("lr", "look", "signal", "passed"),
    [
        pytest.param(0.05, 30, 4.0, "ad", id="differences last"),
        pytest.param(0.03, 10, 4.0, "aad", id="the first anchor's gradient is too large"),
        pytest.param(0.05, 12, 4.0, "adad", id="the second anchor's gradient is too large"),
        pytest.param(0.003, 10, math.inf, "adad", id="losses rise"),  # at short steps the batches' losses differ more
    ],
)
def test_auto_equals_its_twin_through_the_switch(lr: float, look: int, signal: float, passed: str, engine: str) -> None:
    problem = TorchProblem()
    twin, kinds = auto(
        problem.numpy,
        problem.start,
        steps=STEPS,
        lr=lr,
        batches=problem.batches,
        look=look,
        stalled=STALLED,
        signal=signal,
    )
    model = problem.model()
    adam = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.99))
    anchor = [tuple(column[k : k + 40] for column in problem.columns) for k in (0, 40)]
    path, steps, counts = [problem.start], [], []
    rule = "stimulus_moo.estimators.adaptive"
    constants = {f"{rule}.LOOK": look, f"{rule}.STALLED": STALLED, f"{rule}.SIGNAL": signal}
    with replaced(constants), ENGINES[engine].used() as option:
        mg = MultiGradient(
            model, problem.losses, Adaptive(anchor), Balanced(memory=0.9), metric=adam, reweigh="auto", engine=option
        )
        SecondMoment(adam, mg)
        for t in range(STEPS):
            steps.append(mg.backward(problem.batch(t)))
            adam.step()
            path.append(model.x.detach().numpy().copy())
            counts.append((mg.samples, mg.gradients, mg.passes))
    assert [step.anchored for step in steps] == [kind == "anchor" for kind in kinds]
    assert [step.reweighed for step in steps] == twin.reweighed.tolist()
    assert counts == list(zip(*map(np.ndarray.tolist, (twin.samples, twin.gradients, twin.passes)), strict=True))
    assert relative(np.array(path), twin.x) < TWIN_TOLERANCE
    assert relative(np.array([step.weights.numpy() for step in steps]), twin.weights) < TWIN_TOLERANCE
    assert relative(np.array([float(step.sq_norm) for step in steps]), (twin.d**2).sum(1)) < TWIN_TOLERANCE
    # what the twin went through
    assert kinds.index("anchor") == look
    assert kinds.count("difference") > 10
    assert phases(kinds) == passed
    assert 3 < twin.reweighed.sum() < STEPS / 4
    if passed == "ad":  # long enough for a solve at an anchor
        assert any(solved for solved, kind in zip(twin.reweighed, kinds, strict=True) if kind == "anchor")


def phases(kinds: list[str]) -> str:
    """Return a letter for each stretch between two trials: alone, and differences that were used."""
    found = ["a"]
    for before, now in itertools.pairwise(kinds):
        if now == "anchor" and before == "alone":
            found.append("trial")
        elif now == "alone" and before != "alone":
            found.append("a")
        elif now == "difference" and found[-1] == "trial":
            found[-1] = "d"
    return "".join(letter for letter in found if letter != "trial")
