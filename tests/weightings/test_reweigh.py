"""When weights are solved for: at multiples, at anchors, or when an objective goes on rising."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stimulus_moo import Full, MiniBatch, MultiGradient, Recursive, StateMismatch
from stimulus_moo.weightings.reweigh import AtAnchors, Every, WhenRising
from tests.harness import cut, data, same, two_heads, two_losses

BATCHES = cut(data(24), 6)


def rule(cost: int = 30, *, anchored: bool = False, losses: Any = (1.0, 1.0)) -> WhenRising:
    """A rule after its first solve."""
    found = WhenRising()
    found.learn(losses, None, cost, solved=True, anchored=anchored)
    return found


def kept(found: WhenRising, losses: Any, before: Any = None, passes: int = 10, *, anchored: bool = False) -> bool:
    found.learn(losses, before, passes, solved=False, anchored=anchored)
    return found.due(1, anchored=False)


def test_multiples_and_anchors() -> None:
    assert [t for t in range(10) if Every(3).due(t, anchored=False)] == [0, 3, 6, 9]
    assert [AtAnchors().due(5, anchored=anchored) for anchored in (False, True)] == [False, True]


def test_the_first_step_is_due() -> None:
    assert all(WhenRising().due(0, anchored=anchored) for anchored in (False, True))


def test_due_at_nine_times_its_cost_at_the_latest() -> None:
    found = rule(cost=30)
    falling = [kept(found, (1.0 - 0.01 * k, 1.0 - 0.02 * k)) for k in range(1, 28)]
    assert falling == [False] * 26 + [True]  # after 270 passes


def test_due_no_earlier_than_its_own_cost() -> None:
    """An objective that rises all the time is solved for once as many passes were made as the solve has cost."""
    found = rule(cost=85)
    rising = [kept(found, (1.0 + 0.1 * k, 1.0), (0.9 + 0.1 * k, 1.0)) for k in range(1, 12)]
    assert rising == [False] * 8 + [True] * 3  # 80 passes are less, 90 are not


def test_five_changes_are_the_least() -> None:
    found = rule(cost=20)
    rising = [kept(found, (1.0 + 0.1 * k, 1.0), (0.9 + 0.1 * k, 1.0)) for k in range(1, 6)]
    assert rising == [False] * 4 + [True]


@pytest.mark.parametrize("objective", [0, 1])
def test_a_rise_between_two_points_is_seen_through_noise(objective: int) -> None:
    """The same batch at both points: its change has a mean of three standard errors or more, or it is noise."""
    generator = torch.Generator().manual_seed(1)

    def run(drift: float) -> int:
        found, due = rule(cost=100), 0
        for _ in range(30):
            noise = torch.randn(2, generator=generator).tolist()
            before = [5.0 + 10.0 * noise[0], 5.0]  # the batches differ a lot
            now = list(before)
            now[objective] += drift + 0.1 * noise[1]
            now[1 - objective] -= 0.1
            due += kept(found, now, before)
        return due

    assert run(0.2) > 15  # twice the noise: seen as soon as the cost is earned
    assert run(-0.2) == 0
    assert run(0.0) == 0  # three standard errors


def test_a_rise_at_one_point_is_measured_from_the_level_at_the_solve() -> None:
    found = WhenRising()
    level = 2.0
    for t in range(10):
        found.learn([2.0 + t, 1.0], None, 20, solved=t == 9, anchored=False)
        level = 0.9 * level + 0.1 * (2.0 + t) if t else 2.0
    assert found.reference == pytest.approx([level, 1.0])  # the running mean, memory 0.9
    for k in range(5):
        assert found.due(1, anchored=False) is False
        found.learn([level + 0.5 + 0.01 * k, 0.5], None, 10, solved=False, anchored=False)
    assert found.mean == pytest.approx([0.52, -0.5])
    deviations = [0.5 + 0.01 * k - 0.52 for k in range(5)]
    assert found.squares == pytest.approx([sum(d * d for d in deviations), 0.0], abs=1e-12)
    assert found.due(1, anchored=False)


@pytest.mark.parametrize(("errors", "rises"), [(2.95, False), (3.05, True), (-3.05, False)])
def test_the_threshold_is_three_standard_errors(errors: float, rises: bool) -> None:
    """Ten changes of 1 and -1 about their mean: a variance of 10 / 9, so that the mean has an error of 1 / 3."""
    found = rule(cost=10)
    for k in range(10):
        found.learn([1.0 + (-1.0) ** k + errors / 3, 0.0], [1.0, 0.0], 1, solved=False, anchored=False)
    assert found.rising() is rises


def test_a_solve_begins_anew() -> None:
    found = rule(cost=30)
    for k in range(12):
        kept(found, (1.0 + 0.1 * k, 1.0))
    assert found.due(1, anchored=False)
    found.learn([2.0, 1.0], None, 50, solved=True, anchored=False)
    assert (found.spent, found.cost, found.count, found.mean, found.squares) == (0, 50, 0, None, None)
    assert not found.due(1, anchored=False)


def test_with_anchors_it_waits_for_one() -> None:
    mg = MultiGradient(two_heads(), two_losses, Recursive(BATCHES, 38), reweigh="auto")
    due, solved = [], []
    for t in range(39):
        due.append(mg.reweigh.due(t, anchored=True))
        solved.append(mg.backward(BATCHES[t % 4]).reweighed)
    # a solve takes 48 passes and a step between anchors 12: due after 36 of them, and solved for at the next anchor
    assert [t for t in range(39) if due[t]] == [0, 37, 38]
    assert [t for t in range(39) if solved[t]] == [0, 38]


def test_the_losses_of_an_anchor_are_not_compared_with_those_of_batches() -> None:
    found = rule(cost=30, anchored=True)
    found.learn([9.0, 9.0], None, 10, solved=False, anchored=True)
    assert (found.count, found.spent) == (0, 10)
    assert found.level == pytest.approx([1.8, 1.8])


def test_the_state_goes_on_in_a_fresh_object() -> None:
    generator = torch.Generator().manual_seed(0)
    straight, stopped = WhenRising(), WhenRising()
    for t in range(40):
        fresh = WhenRising()
        fresh.load_state_dict(stopped.state_dict())
        stopped = fresh
        losses, before = torch.rand(2, 3, generator=generator).tolist()
        due = straight.due(t, anchored=False)
        assert stopped.due(t, anchored=False) is due
        for one in (straight, stopped):
            one.learn(losses, before if t % 2 else None, 30 if due else 10, solved=due, anchored=False)
    assert same(straight.state_dict(), stopped.state_dict())


BAD = {
    "spent": [-1, 1.5, None], "cost": ["a"], "anchor_cost": [-1, 2.0], "count": [-1, True], "mean": [["a"], 3.0],
    "squares": [[-1.0]], "level": [[None], "ab"], "reference": [{}],
}  # fmt: skip


@pytest.mark.parametrize(("entry", "value"), [(entry, value) for entry, values in BAD.items() for value in values])
def test_states_that_do_not_fit_are_refused(entry: str, value: Any) -> None:
    found = rule()
    before = found.state_dict()
    with pytest.raises(StateMismatch, match=entry):
        found.load_state_dict({**before, entry: value})
    assert same(found.state_dict(), before)


def test_numbers_for_another_count_of_objectives_are_refused() -> None:
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), reweigh="auto")
    mg.backward(BATCHES[0])
    state = mg.state_dict()
    state["reweigh"]["level"] = [1.0, 2.0, 3.0]
    with pytest.raises(StateMismatch, match=r"reweigh\.level must have 2 numbers, found 3"):
        mg.load_state_dict(state)


@pytest.mark.parametrize("rising", [False, True])
def test_solves_take_between_a_tenth_and_half_of_the_passes(rising: bool) -> None:
    def losses(model: Any, batch: Any) -> Any:
        left, right = two_losses(model, batch)
        return (left + 0.1 * mg.t, right) if rising else (left - 0.1 * mg.t, right - 0.1 * mg.t)

    mg = MultiGradient(two_heads(), losses, MiniBatch(), reweigh="auto")
    solves = 0
    for _ in range(190):
        before = mg.passes
        step = mg.backward(BATCHES[0])
        solves += (mg.passes - before) * step.reweighed
    # a solve costs 12 passes, a kept step 6: an objective that rises is due after five changes, else after 108 passes
    assert solves / mg.passes == pytest.approx(12 / (12 + 30) if rising else 12 / (12 + 108), abs=0.02)


def test_anchors_that_are_not_due_take_one_pass() -> None:
    anchor = cut(data(24), 10)
    mg = MultiGradient(two_heads(), two_losses, Recursive(anchor, 2), reweigh="auto")
    costs = []
    for batch in BATCHES * 8:
        before = mg.passes
        step = mg.backward(batch)
        costs.append((step.anchored, step.reweighed, mg.passes - before))
    assert costs[0] == (True, True, 48)
    assert costs[1] == (False, False, 12)
    assert costs[2] == (True, False, 24)
    assert {cost for anchored, reweighed, cost in costs if anchored and reweighed} == {48}
    assert not any(reweighed for anchored, reweighed, _ in costs if not anchored)
    assert sum(reweighed for _, reweighed, _ in costs) >= 2


def test_the_first_anchor_after_batches_keeps_their_weights_and_shows_what_a_solve_costs() -> None:
    found = rule(cost=30)  # on a batch, of two objectives
    for _ in range(40):
        found.learn((0.9, 0.9), None, 10, solved=False, anchored=False)
    assert found.due(41, anchored=False)
    assert not found.due(41, anchored=True)
    found.learn((0.9, 0.9), None, 250, solved=False, anchored=True)
    assert (found.anchor_cost, found.cost, found.spent) == (500, 30, 650)
    assert not found.due(42, anchored=True)  # 650 passes are less than nine times 500
    found.spent = 4500
    assert found.due(43, anchored=True)
    found.learn((0.9, 0.9), None, 520, solved=True, anchored=True)
    assert (found.anchor_cost, found.cost, found.spent) == (520, 30, 0)


def test_full_gradients_are_solved_for_when_due() -> None:
    mg = MultiGradient(two_heads(), two_losses, Full(cut(data(24), 10)), reweigh="auto")
    flags = [mg.backward().reweighed for _ in range(20)]
    assert flags == [True, *[False] * 18, True]  # 48 passes, then 24 each: due after 18
