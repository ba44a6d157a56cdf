"""TorchJD's weightings, also stateful ones, on variance-reduced rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stimulus_moo import MultiGradient, Recursive, StateMismatch
from tests.harness import cut, data, differing, everything, round_trip, same, stored_rows, train, two_heads, two_losses

aggregation = pytest.importorskip("torchjd.aggregation")

# torchjd's solvers warn on their own behalf
pytestmark = pytest.mark.filterwarnings("ignore")

COLUMNS = data(24)
BATCHES = (cut(COLUMNS, 6) * 2)[:6]
WEIGHTINGS: dict[str, Callable[[], Any]] = {
    "UPGrad": lambda: aggregation.UPGradWeighting(),
    "CR-MOGM(UPGrad)": lambda: aggregation.CRMOGMWeighting(aggregation.UPGradWeighting()),
    "GradVac": lambda: aggregation.GradVacWeighting(),
    "MGDA": lambda: aggregation.MGDAWeighting(),
}


def losses(model: Any, batch: Any) -> Any:
    """Three of them, so that order and history matter."""
    left, right = two_losses(model, batch)
    return left, right, (left - right).square()


def build(weighting: Any) -> MultiGradient:
    return MultiGradient(two_heads(), losses, Recursive(cut(COLUMNS, 10), 3), weighting)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_weights_are_those_of_a_call_by_hand(name: str) -> None:
    by_hand = WEIGHTINGS[name]()
    mg = build(WEIGHTINGS[name]())
    for t, batch in enumerate(BATCHES):
        torch.manual_seed(t)
        step = mg.backward(batch)
        u = stored_rows(mg)
        torch.manual_seed(t)
        # the Gramian by hand differs in its last digits, and the solvers inside amplify that
        torch.testing.assert_close(step.weights, by_hand(u @ u.T), rtol=0, atol=1e-6)
        with torch.no_grad():
            for p in mg.objective.parameters:
                p -= 0.05 * p.grad


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_resume_into_fresh_objects_is_exact(name: str, tmp_path: Any) -> None:
    whole, mg = build(WEIGHTINGS[name]()), build(WEIGHTINGS[name]())
    torch.manual_seed(1)
    expected = train(whole, BATCHES)
    torch.manual_seed(1)
    path = []
    for batch in BATCHES:
        random = torch.get_rng_state()  # GradVac shuffles by it
        fresh = build(WEIGHTINGS[name]())
        fresh.objective.model.load_state_dict(mg.objective.model.state_dict())
        fresh.load_state_dict(round_trip(mg.state_dict(), tmp_path))
        mg = fresh
        torch.set_rng_state(random)
        path.append(train(mg, [batch])[0])
    assert torch.equal(torch.stack(path), expected)
    assert same(mg.state_dict(), whole.state_dict())


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_state_is_rolled_back_when_the_weighting_fails_late(name: str) -> None:
    inner = WEIGHTINGS[name]()

    class Late(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, gramian: Any) -> Any:
            weights = self.inner(gramian)  # its state has moved on
            if fail[0]:
                raise ArithmeticError("late")
            return weights

    fail = [False]
    mg = build(Late())
    train(mg, BATCHES[:2])
    before = everything(mg)
    fail[0] = True
    with pytest.raises(ArithmeticError, match="late"):
        mg.backward(BATCHES[2])
    assert differing(before, everything(mg)) == []


def test_stateful_weightings_have_state_and_foreign_states_are_refused() -> None:
    mg = build(WEIGHTINGS["CR-MOGM(UPGrad)"]())
    fresh = mg.state_dict()["weighting"]
    train(mg, BATCHES[:2])
    state = mg.state_dict()
    assert not same(state["weighting"], fresh)
    other = build(WEIGHTINGS["GradVac"]())
    with pytest.raises(
        StateMismatch, match=r"MultiGradient.weighting is of kind .*CRMOGM.* this object is a .*GradVac"
    ):
        other.load_state_dict(state)
