"""Auto as fit runs it, in Adam's metric, with weights solved for when due, against its literal twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stimulus_moo import Adaptive, Balanced, MultiGradient
from tests.database import ENGINES, TorchProblem, replaced
from tests.properties import TWIN_TOLERANCE, relative
from tests.reference.auto import auto

LOOK, STEPS = 10, 80
STALLED = 10.0  # whatever the losses do


@pytest.mark.parametrize("engine", ["rowwise", "batched"])
@pytest.mark.parametrize("lr", [0.003, 0.5])  # differences last at short steps, and are given up at long ones
def test_auto_equals_its_twin_through_the_switch(lr: float, engine: str) -> None:
    problem = TorchProblem()
    twin, kinds = auto(
        problem.numpy, problem.start, steps=STEPS, lr=lr, batches=problem.batches, look=LOOK, stalled=STALLED
    )
    model = problem.model()
    adam = torch.optim.Adam(model.parameters(), lr=lr)
    anchor = [tuple(column[k : k + 40] for column in problem.columns) for k in (0, 40)]
    path, steps, counts = [problem.start], [], []
    rule = "stimulus_moo.estimators.adaptive"
    with replaced({f"{rule}.LOOK": LOOK, f"{rule}.STALLED": STALLED}), ENGINES[engine].used() as option:
        mg = MultiGradient(
            model, problem.losses, Adaptive(anchor), Balanced(memory=0.9), metric=adam, reweigh="auto", engine=option
        )
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
    assert kinds.index("anchor") == LOOK
    assert kinds.count("difference") > 20
    assert ("alone" in kinds[LOOK:]) == (lr == 0.5)
    assert 3 < twin.reweighed.sum() < STEPS / 4
