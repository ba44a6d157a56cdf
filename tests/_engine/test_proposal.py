"""A step as a proposal: evaluated, looked at, then committed or discarded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stimulus_moo import InvalidOption, MultiGradient, NonFiniteError, Proposal, Update
from tests.database import BATCHES, ESTIMATORS, STAGED_ENTRIES
from tests.harness import differing, everything, same, train, two_heads, two_losses, vector


def build(name: str, **options: Any) -> MultiGradient:
    torch.manual_seed(7)
    return MultiGradient(two_heads(nn.Dropout(0.3)), two_losses, ESTIMATORS[name].build(), **options)


def started(name: str, steps: int = 2, **options: Any) -> MultiGradient:
    mg = build(name, **options)
    torch.manual_seed(8)
    train(mg, BATCHES[:steps])
    return mg


@pytest.mark.parametrize("name", ESTIMATORS)
def test_backward_is_propose_and_commit(name: str) -> None:
    one, two = started(name), started(name)
    torch.manual_seed(9)
    step = one.backward(BATCHES[2])
    torch.manual_seed(9)
    again = two.propose(BATCHES[2]).commit()
    assert same((step.losses, step.weights, step.sq_norm), (again.losses, again.weights, again.sq_norm))
    assert differing(everything(one), everything(two)) == []


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("weighed", [False, True])
def test_a_discarded_proposal_leaves_no_trace(name: str, weighed: bool) -> None:
    mg = started(name)
    before = everything(mg)
    proposal = mg.propose(BATCHES[2])
    if weighed:
        proposal.weigh()
    assert (mg.t, mg.samples, mg.gradients) == (before["state"]["step"], *before["counters"][1:3])
    proposal.discard()
    assert differing(before, everything(mg)) == []
    proposal.discard()  # idempotent
    assert differing(before, everything(mg)) == []


@pytest.mark.parametrize("name", ["recursive", "storm"])
def test_rows_above_the_staging_threshold_are_dropped_by_a_discard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STAGED_ENTRIES, 0)
    mg = started(name)
    before = everything(mg)
    mg.propose(BATCHES[2]).discard()
    after = everything(mg)
    assert mg.rows() == []
    del before["state"]["rows"], after["state"]["rows"]
    assert differing(before, after) == []
    assert mg.backward(BATCHES[2]).anchored == (name == "recursive")


def test_a_proposal_shows_what_it_saw_and_cost() -> None:
    mg = started("storm")
    proposal = mg.propose(BATCHES[2])
    seen = proposal.observation
    assert isinstance(proposal, Proposal)
    assert seen is not None
    assert (seen.step, seen.samples, seen.gradients, seen.anchored) == (2, 6, 12, False)
    assert seen.before is not None
    assert proposal.cost == (6, 12, 24)
    assert proposal.update == proposal.wanted
    assert torch.equal(proposal.commit().losses, seen.losses)


def test_a_proposal_is_used_once() -> None:
    mg = started("storm")
    proposal = mg.propose(BATCHES[2])
    proposal.commit()
    with pytest.raises(InvalidOption, match="committed or discarded before"):
        proposal.commit()
    discarded = mg.propose(BATCHES[3])
    discarded.discard()
    with pytest.raises(InvalidOption, match="committed or discarded before"):
        discarded.commit()


def test_a_second_proposal_discards_the_first() -> None:
    mg, plain = started("storm"), started("storm")
    torch.manual_seed(9)
    first = mg.propose(BATCHES[3])
    mg.propose(BATCHES[2]).commit()
    torch.manual_seed(9)
    plain.backward(BATCHES[2])
    assert differing(everything(plain), everything(mg)) == []
    with pytest.raises(InvalidOption, match="committed or discarded before"):
        first.commit()


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_nan_is_an_error_of_the_proposal_until_it_is_committed(policy: str) -> None:
    mg = started("storm", on_nonfinite=policy)
    before = everything(mg)
    proposal = mg.propose(tuple(column * torch.nan for column in BATCHES[2]))
    assert isinstance(proposal.error, NonFiniteError)
    assert proposal.observation is None
    assert differing(before, everything(mg)) == []
    if policy == "skip":
        assert proposal.commit().skipped
    else:
        with pytest.raises(NonFiniteError, match="objective 0 is nan at step 2"):
            proposal.commit()
        assert differing(before, everything(mg)) == []


def test_fresh_takes_the_batchs_own_gradient_in_place_of_a_recursive_step() -> None:
    mg = started("recursive")
    proposal = mg.propose(BATCHES[2], fresh=True, look_back=True)
    assert proposal.update == Update(keep=0.0, now=1.0, look_back=True)
    assert proposal.wanted == Update(keep=1.0, now=1.0, before=-1.0, recursive=True)
    assert proposal.failed_at_previous_point is False
    own = MultiGradient(mg.objective.model.eval(), two_losses, ESTIMATORS["tracking"].build())
    assert own.propose(BATCHES[2], fresh=True).update == own.propose(BATCHES[2]).wanted  # nothing to replace


@pytest.mark.parametrize("large", [False, True])
def test_comparing_a_batch_at_two_points_changes_nothing(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(STAGED_ENTRIES, 0)
    mg = started("recursive")
    here, before = vector(mg.objective.model), everything(mg)
    proposal = mg.compare(BATCHES[2])
    assert proposal.observation is not None
    assert proposal.observation.before is not None
    proposal.discard()
    assert torch.equal(vector(mg.objective.model), here)
    assert differing(before, everything(mg)) == []


def test_loading_a_state_and_a_reset_discard_an_open_proposal() -> None:
    mg = started("storm")
    state = mg.state_dict()
    proposal = mg.propose(BATCHES[2])
    mg.load_state_dict(state)
    assert not proposal.open
    proposal = mg.propose(BATCHES[2])
    mg.reset()
    assert not proposal.open
    assert (mg.t, mg.rows()) == (0, [])
