"""Every row of the table of rivals trains, as far as its packages are installed."""

import pytest
import torch

from stimulus_moo.lab.board import problems
from stimulus_moo.lab.board.cell import run_cell
from stimulus_moo.lab.board.rivals import AUTO, RIVALS, SINGLE, NashWeights

from . import toy


@pytest.mark.parametrize("name", [SINGLE, *RIVALS])
def test_every_rival_decreases_the_losses(monkeypatch, name):
    if name != SINGLE and not RIVALS[name].available:
        pytest.skip(f"needs {', '.join(RIVALS[name].needs)}")
    monkeypatch.setattr(problems, "PROBLEMS", {"toy": toy.problem()})
    start = toy.make(0, None)
    before = start.score(start.model, "test")
    sgd = name != SINGLE and RIVALS[name].rates and RIVALS[name].rates[0] > 0.01
    lr = None if name == AUTO else 0.1 if sgd else 0.03
    found = run_cell("toy", name, 0 if name == SINGLE else None, lr, 0, 2560)
    assert found["failed"] is None
    assert found["passes"] >= 2560
    assert found["test"][0] < before[0]
    if name != SINGLE:
        assert found["test"][1] < before[1]


@pytest.mark.filterwarnings("ignore:You are solving a parameterized problem")
def test_nash_weights_depend_on_the_gramian_alone():
    pytest.importorskip("cvxpy")
    pytest.importorskip("ecos")
    torchjd = pytest.importorskip("torchjd.aggregation")
    jacobian = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torchjd.NashMTL(n_tasks=3, update_weights_every=10).weighting(jacobian)
    assert torch.allclose(NashWeights(3)(jacobian @ jacobian.T), expected, rtol=1e-3)
