"""The losses that a loss-aware weighting gets, against a literal model of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    Averaged,
    Full,
    MiniBatch,
    MinNorm,
    MultiGradient,
    Page,
    Recursive,
    Smoothed,
    StateMismatch,
    Storm,
    Tracking,
    Weighting,
)
from stimulus_moo.weightings import LossAware
from tests.database import ANCHOR, ENGINES
from tests.distributed.launch import values
from tests.distributed.paths import batches as shares
from tests.distributed.paths import own_share
from tests.harness import cut, data, round_trip, two_heads, two_losses

COLUMNS = data(24)
BATCHES = cut(COLUMNS, 6) * 2
BETA = 0.3


class Seen(LossAware):
    """Records its losses and returns weights that depend on them."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []

    def __call__(self, gramian: Tensor, losses: Tensor) -> Tensor:
        self.losses.append(losses.clone())
        return losses / losses.sum()

    def among(self, gramian: Tensor, present: Any, losses: Tensor) -> Tensor:
        self.losses.append(losses.clone())
        weights = torch.zeros_like(losses)
        weights[list(present)] = 1.0 / len(present)
        return weights


def mean_losses(model: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        return torch.stack(two_losses(model, batch))


def steps(mg: MultiGradient, count: int = 8) -> list[tuple[nn.Module, Any]]:
    """Make steps; return the model before each and its batch."""
    optimizer, trail = torch.optim.SGD(mg.objective.model.parameters(), lr=0.05), []
    for batch in BATCHES[:count]:
        trail.append((copy.deepcopy(mg.objective.model), batch))
        mg.backward(batch)
        optimizer.step()
    return trail


def literal(rule: str, trail: list[tuple[nn.Module, Any]]) -> Tensor:
    """L_t of the rule, by its formula."""
    found: list[Tensor] = []
    for t, (model, batch) in enumerate(trail):
        here = mean_losses(model, batch)
        if rule == "full" or (rule == "recursive" and t % 3 == 0):
            found.append(mean_losses(model, COLUMNS))
        elif rule == "recursive":
            found.append(found[-1] + here - mean_losses(trail[t - 1][0], batch))
        elif rule == "storm" and t:
            found.append(here + (1 - BETA) * (found[-1] - mean_losses(trail[t - 1][0], batch)))
        else:
            found.append(here)
    return torch.stack(found)


ESTIMATORS = {
    "full": lambda: Full(ANCHOR),
    "recursive": lambda: Recursive(ANCHOR, 3),
    "storm": lambda: Storm(BETA),
    "tracking": lambda: Tracking(BETA),
    "mini-batch": MiniBatch,
}


@pytest.mark.parametrize(("rule", "engine"), [*(("recursive", engine) for engine in ENGINES), ("storm", "auto")])
def test_two_point_losses_are_reduced_like_the_rows(rule: str, engine: str) -> None:
    weighting = Seen()
    with ENGINES[engine].used() as option:
        trail = steps(MultiGradient(two_heads(), two_losses, ESTIMATORS[rule](), weighting, engine=option))
    assert torch.allclose(torch.stack(weighting.losses), literal(rule, trail), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", ["full", "tracking", "mini-batch"])
def test_other_estimators_give_the_losses_of_the_batch(rule: str) -> None:
    weighting = Seen()
    trail = steps(MultiGradient(two_heads(), two_losses, ESTIMATORS[rule](), weighting))
    assert torch.allclose(torch.stack(weighting.losses), literal(rule, trail), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"reweigh": "anchor"}, {"reweigh": "anchor", "gramian": "sketch"}])
def test_kept_weights_call_the_rule_at_solves_with_the_losses_of_the_anchor(options: dict[str, Any]) -> None:
    weighting = Seen()
    mg = MultiGradient(two_heads(), two_losses, Recursive(ANCHOR, 3), weighting, **options)
    trail = steps(mg)
    expected = literal("recursive", trail)
    assert torch.allclose(torch.stack(weighting.losses), expected[::3], rtol=0, atol=1e-12)
    assert torch.allclose(mg.state_dict()["losses"], expected[-1], rtol=0, atol=1e-12)  # it runs on in between


def test_storm_with_kept_weights_solves_for_the_batch() -> None:
    weighting = Seen()
    trail = steps(MultiGradient(two_heads(), two_losses, Storm(BETA), weighting, reweigh=2))
    assert torch.allclose(torch.stack(weighting.losses), literal("mini-batch", trail)[::2], rtol=0, atol=1e-12)


def test_the_state_continues_in_a_fresh_object(tmp_path: Any) -> None:
    whole, first, second = Seen(), Seen(), Seen()
    steps(MultiGradient(two_heads(), two_losses, Recursive(ANCHOR, 5), whole), 8)
    model = two_heads()
    mg = MultiGradient(model, two_losses, Recursive(ANCHOR, 5), first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for t, batch in enumerate(BATCHES[:8]):
        if t == 3:
            state = round_trip(mg.state_dict(), tmp_path)
            mg = MultiGradient(model, two_losses, Recursive(ANCHOR, 5), second)
            mg.load_state_dict(state)
        mg.backward(batch)
        optimizer.step()
    assert torch.equal(torch.stack(first.losses + second.losses), torch.stack(whole.losses))
    with pytest.raises(StateMismatch, match=r"losses must be 2 numbers"):
        mg.load_state_dict(mg.state_dict() | {"losses": torch.ones(3)})


def test_an_exception_leaves_the_losses_as_they_were() -> None:
    fail = False

    def losses(model: nn.Module, batch: Any) -> Any:
        if fail:
            raise ValueError("broken")
        return two_losses(model, batch)

    mg = MultiGradient(two_heads(), losses, Recursive(ANCHOR, 5), Seen())
    steps(mg, 3)
    before = mg.state_dict()["losses"]
    fail = True
    with pytest.raises(ValueError, match="broken"):
        mg.backward(BATCHES[3])
    proposed = mg
    fail = False
    proposed.propose(BATCHES[3]).discard()
    assert torch.equal(mg.state_dict()["losses"], before)
    mg.reset()
    assert mg.state_dict()["losses"] is None


def test_a_loss_without_a_count_keeps_its_value() -> None:
    weighting, counted = Seen(), [6.0, 6.0]
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), weighting, counts=lambda batch: counted)
    mg.backward(BATCHES[0])
    counted = [6.0, 0.0]
    mg.backward(BATCHES[1])
    assert weighting.losses[1][1] == weighting.losses[0][1]
    assert weighting.losses[1][0] != weighting.losses[0][0]


def test_any_callable_can_ask_for_losses() -> None:
    def rule(gramian: Tensor, losses: Tensor) -> Tensor:
        return losses / losses.sum()

    rule.uses_losses = True
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), rule)
    step = mg.backward(BATCHES[0])
    assert torch.allclose(step.weights, step.losses / step.losses.sum(), rtol=0, atol=1e-12)


def test_wrappers_pass_losses_on() -> None:
    gramian, inner = torch.eye(2, dtype=torch.float64), Seen()
    averaged = Averaged(inner, memory=0.5)
    for losses in ([1.0, 3.0], [2.0, 1.0], [float("nan"), 1.0]):
        averaged(gramian, torch.tensor(losses, dtype=torch.float64))
    assert torch.stack(inner.losses).tolist() == [[1.0, 3.0], [1.5, 2.0], [1.5, 1.5]]
    smoothed = Smoothed(Seen(), alpha=0.5)
    assert smoothed.uses_losses
    assert smoothed(gramian, torch.tensor([1.0, 3.0], dtype=torch.float64)).tolist() == [0.25, 0.75]
    assert not Averaged(MinNorm()).uses_losses
    assert not Weighting.uses_losses


def shared_losses() -> list[Tensor]:
    weighting, share = Seen(), own_share()
    anchor = [tuple(column[share.part(24)] for column in COLUMNS)]
    model = two_heads()
    mg = MultiGradient(model, two_losses, Page(anchor, 0.2), weighting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in shares(5, share):
        mg.backward(batch)
        optimizer.step()
    return weighting.losses


def test_two_processes_see_the_losses_of_one() -> None:
    alone = torch.stack(shared_losses())
    for found in values(shared_losses, 2):
        assert torch.allclose(torch.stack(found), alone, rtol=0, atol=1e-10)
