"""Random sequences of calls agree with the literal model of the contract, and what the machine found stays fixed.

The long run is ``python -m reliability machine``.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from stimulus_moo import InvalidOption, MultiGradient, Page, StateMismatch, Storm, Tracking
from tests.harness import cut, data, differing, everything, same, train, two_heads, two_losses
from tests.state_machine import Machine

BATCHES = cut(data(24), 6)

BUDGET = settings(
    max_examples=35,
    stateful_step_count=25,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],  # add Phase.shrink to look into a failure; it takes minutes
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
def test_any_sequence_of_calls_is_as_the_contract_says() -> None:
    Machine.counts.clear()
    run_state_machine_as_test(Machine, settings=BUDGET)
    assert Machine.counts.total() > 500
    assert {"backward", "commit", "load", "save", "reset", "freeze or unfreeze"} <= set(Machine.counts)


#: defects to plant: where, and what is put there
DEFECTS = {
    "a draw that is not undone": ("stimulus_moo._engine.replay.Snapshot.restore", lambda self: None),
    "a skip that is not counted": ("stimulus_moo._engine.nonfinite.SkipPolicy.skips", lambda self, error: True),
    "a second point that is not counted": (
        "stimulus_moo._engine.transaction.Transaction._count",
        lambda self, samples: vars(self.account).update(samples=samples, gradients=samples),
    ),
    "a kept step that is counted as all rows": (
        "stimulus_moo._engine.loss_forms.WeightedLoss.rows",
        lambda self, objectives: objectives,
    ),
    "weights that are solved for at every step": (
        "stimulus_moo._engine.reweighing.Every.due",
        lambda self, t, anchored: True,
    ),
    "rows that are not dropped": ("stimulus_moo._engine.transaction.Transaction.roll_back", lambda self: None),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_machine_finds_planted_defects(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*DEFECTS[defect])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=settings(BUDGET, max_examples=300))


def test_a_state_that_does_not_fit_changes_nothing_even_after_freezing() -> None:
    mg = MultiGradient(two_heads(), two_losses, Storm(0.2))
    train(mg, BATCHES[:2])
    state, before = mg.state_dict(), everything(mg)
    bias = mg.objective.model.get_parameter("trunk.bias").requires_grad_(False)
    with pytest.raises(StateMismatch, match=r"trunk\.bias"):
        mg.load_state_dict(state)
    bias.requires_grad_(True)
    assert differing(before, everything(mg)) == []
    mg.backward(BATCHES[2])  # the rows are still there
    assert mg.gradients == before["counters"][2] + 12


def test_a_state_that_does_not_fit_leaves_the_proposal_open() -> None:
    mg = MultiGradient(two_heads(), two_losses, Storm(0.2))
    proposal = mg.propose(BATCHES[0])
    with pytest.raises(StateMismatch):
        mg.load_state_dict({})
    assert proposal.commit().skipped is False


@pytest.mark.parametrize("staged", [True, False])
def test_a_state_saved_with_an_open_proposal_is_that_before_it(staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", (1 << 16) if staged else 0)
    for estimator in (Page([data(24)], 0.5), Tracking(0.5)):
        mg = MultiGradient(two_heads(), two_losses, estimator)
        train(mg, BATCHES[:2])
        before = mg.state_dict()
        proposal = mg.propose(BATCHES[2])
        saved = mg.state_dict()
        assert same(saved["estimator"], before["estimator"])  # the coin of Page
        if staged:
            assert same(saved, before)
        proposal.discard()
        assert same(saved, mg.state_dict())


@pytest.mark.parametrize("ends", ["commit", "discard", "reset", "superseded"])
def test_a_proposal_that_met_nan_is_committed_only_once(ends: str) -> None:
    mg = MultiGradient(two_heads(), two_losses, Tracking(0.5), on_nonfinite="skip")
    proposal = mg.propose(tuple(part * torch.nan for part in BATCHES[0]))
    if ends == "commit":
        assert proposal.commit().skipped
    elif ends == "superseded":
        mg.backward(BATCHES[1])
    else:
        (proposal.discard if ends == "discard" else mg.reset)()
    before = everything(mg)
    with pytest.raises(InvalidOption, match="committed or discarded before"):
        proposal.commit()
    assert differing(before, everything(mg)) == []
