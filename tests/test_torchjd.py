"""TorchJD's weightings, also stateful ones, on variance-reduced rows.

That they resume bit for bit is tested in ``tests/test_properties.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stimulus_moo import InvalidOption, MultiGradient, Recursive, StateMismatch
from tests.database import ANCHOR
from tests.database import BATCHES as FOUR
from tests.database import WEIGHTINGS as DATABASE
from tests.harness import differing, everything, same, stored_rows, train, two_heads, two_losses

aggregation = pytest.importorskip("torchjd.aggregation")

# torchjd's solvers warn on their own behalf
pytestmark = pytest.mark.filterwarnings("ignore")

BATCHES = (FOUR * 2)[:6]
WEIGHTINGS = [name for name, info in DATABASE.items() if info.needs == "torchjd"]


def build_weighting(name: str) -> Any:
    return DATABASE[name].build((0, 1, 2))


def losses(model: Any, batch: Any) -> Any:
    """Three of them, so that order and history matter."""
    left, right = two_losses(model, batch)
    return left, right, (left - right).square()


def build(weighting: Any) -> MultiGradient:
    return MultiGradient(two_heads(), losses, Recursive(ANCHOR, 3), weighting)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_weights_are_those_of_a_call_by_hand(name: str) -> None:
    by_hand = build_weighting(name)
    mg = build(build_weighting(name))
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
def test_state_is_rolled_back_when_the_weighting_fails_late(name: str) -> None:
    inner = build_weighting(name)

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
    mg = build(build_weighting("CR-MOGM(UPGrad)"))
    fresh = mg.state_dict()["weighting"]
    train(mg, BATCHES[:2])
    state = mg.state_dict()
    assert not same(state["weighting"], fresh)
    other = build(build_weighting("GradVac"))
    with pytest.raises(
        StateMismatch, match=r"MultiGradient.weighting is of kind .*CRMOGM.* this object is a .*GradVac"
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize(("aggregator", "weighting"), [("UPGrad", "UPGradWeighting"), ("MGDA", "MGDAWeighting")])
def test_an_aggregator_gives_the_weights_of_its_weighting(aggregator: str, weighting: str) -> None:
    found = build(getattr(aggregation, aggregator)()).backward(BATCHES[0]).weights
    expected = build(getattr(aggregation, weighting)()).backward(BATCHES[0]).weights
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "fix"),
    [("Mean", "pass MeanWeighting"), ("Sum", "pass SumWeighting"), ("ConFIG", "choose another, say UPGrad")],
)
def test_an_aggregator_that_needs_the_jacobian_is_refused_by_name(name: str, fix: str) -> None:
    with pytest.raises(InvalidOption, match=rf"found TorchJD's aggregator {name}, .*{fix}"):
        build(getattr(aggregation, name)())
