"""Kept weights: what a step between two solves gives, for models and loops as they come."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    Averaged,
    Fixed,
    MiniBatch,
    MinNorm,
    MultiGradient,
    ProjectedDescent,
    Recursive,
    Safeguard,
    StateMismatch,
    Storm,
    Tracking,
)
from tests.database import ENGINES, KEPT, STAGED_ENTRIES, Run
from tests.harness import cut, data, differing, direction, everything, jacobian, same, train, two_heads, two_losses
from tests.kept_rules import ANCHOR, AT_ANCHORS, BATCHES, COLUMNS, EVERY, RULES, SKETCH, Dense
from tests.properties import (
    check_frozen_parameters,
    check_micro_batch,
    check_nan_never_enters,
    check_permutation,
    check_resumes,
    check_same_point_difference_is_zero,
    check_silent_safeguard,
    noisy,
)

STEPS = 7
rules = pytest.mark.parametrize("name", RULES)
memory = pytest.mark.parametrize("name", ["mini-batch", "storm", "recursive"])


def kept_share(name: str) -> float:
    """What the rule keeps of the last row: Dense has it in the form of Storm."""
    return {"mini-batch": 0.0, "storm": 0.7, "recursive": 1.0}[name]


def descend(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.05 * p.grad


# The direction


@memory
@pytest.mark.parametrize("middle", [nn.Identity, lambda: nn.Dropout(0.4)])
def test_the_direction_follows_the_rule_on_the_weighted_loss(name: str, middle: Any) -> None:
    """With dropout, the solve, x_{t-1} and x_t see the same draw."""
    model, t = two_heads(middle()), 0
    rule = RULES[name]
    mg = MultiGradient(model, two_losses, Recursive([COLUMNS], 3), **AT_ANCHORS) if name == "recursive" else None
    mg = rule.make(model) if mg is None else mg
    dense = Dense(model, two_losses, kept_share(name), lambda: torch.manual_seed(t))
    solved, last = [], None
    for t, batch in enumerate(BATCHES[:STEPS]):
        torch.manual_seed(t)
        step = mg.backward(batch)
        used = COLUMNS if step.anchored else batch
        if step.reweighed:
            solved.append(t)
            rows = dense.rows(used)
            expected = MinNorm()(rows @ rows.T)
            torch.testing.assert_close(step.weights, expected, rtol=0, atol=1e-12)
        else:
            assert last is not None
            assert torch.equal(step.weights, last)
        last = step.weights
        expected = dense.step(used, step.weights, fresh=t == 0 or step.anchored)
        torch.testing.assert_close(direction(model), expected, rtol=0, atol=1e-12)  # sums in another order
        torch.testing.assert_close(float(step.sq_norm), float(expected @ expected), rtol=1e-12, atol=0)
        descend(model)
    assert solved == [0, 3, 6]


@memory
def test_only_shared_parameters_decide_the_weights(name: str) -> None:
    model = two_heads()
    mg = RULES[name].make(model, shared=model.trunk.parameters())
    trunk = sum(p.numel() for p in model.trunk.parameters())
    for t, batch in enumerate(BATCHES[:4]):
        step = mg.backward(batch)
        rows = jacobian(model, two_losses, COLUMNS if step.anchored else batch)
        if step.reweighed:
            torch.testing.assert_close(step.weights, MinNorm()(rows[:, :trunk] @ rows[:, :trunk].T), rtol=0, atol=1e-12)
        if t == 0 or name == "mini-batch":  # d is over all parameters
            torch.testing.assert_close(direction(model), step.weights @ rows, rtol=0, atol=1e-12)
        descend(model)


@rules
def test_a_head_without_weight_has_a_gradient_of_zero(name: str) -> None:
    model = two_heads()
    weighting = Fixed([1.0, 0.0]) if name == "fixed" else lambda gramian: torch.tensor([1.0, 0.0], dtype=torch.float64)
    mg = RULES[name].make(model, weighting=weighting)
    for batch in BATCHES[:4]:
        mg.backward(batch)
        for p in model.right.parameters():
            assert p.grad is not None
            assert float(p.grad.abs().max()) == 0.0
        assert float(model.left.weight.grad.abs().max()) > 0.0
        descend(model)


@rules
def test_one_row_is_remembered_and_equals_the_direction(name: str) -> None:
    mg = RULES[name].make()
    for batch in BATCHES[:4]:
        mg.backward(batch)
        rows = mg.rows()
        if not mg.estimator.remembers:
            assert name.startswith(("mini-batch", "full")) or (name.startswith("adaptive") and mg.t < 3)
            assert rows == []
        else:
            assert len(rows) == 1
            parameters = dict(mg.objective.model.named_parameters())
            assert all(torch.equal(part, parameters[key].grad) for key, part in rows[0].items())
            assert all(part.data_ptr() != parameters[key].grad.data_ptr() for key, part in mg.rows()[0].items())
        for p in mg.objective.parameters:  # what a user does to p.grad, say clipping, is not done to the row
            p.grad.mul_(0.5)
        assert same(rows, mg.rows())
        descend(mg.objective.model)


@pytest.mark.parametrize(
    "name",
    [name for name in RULES if name != "fixed"],
)
def test_with_one_objective_keeping_its_weight_changes_nothing(name: str) -> None:
    def losses(model: nn.Module, batch: Any) -> Any:
        return two_losses(model, batch)[:1]

    rule = RULES[name]
    kept = rule.make(losses=losses)
    plain = MultiGradient(two_heads(), losses, rule.build())
    # lambda = 1 at every step: the same gradients, summed in another order
    torch.testing.assert_close(train(kept, BATCHES[:STEPS]), train(plain, BATCHES[:STEPS]), rtol=0, atol=1e-12)


# Ways to evaluate


@rules
def test_pieces_do_not_change_the_path(name: str) -> None:
    whole, pieces = RULES[name].make(), RULES[name].make(micro_batch=4)
    # the mean over a batch is summed in another order
    torch.testing.assert_close(train(pieces, BATCHES[:STEPS]), train(whole, BATCHES[:STEPS]), rtol=0, atol=1e-11)
    counts = [(mg.samples, mg.gradients, mg.passes) for mg in (whole, pieces)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", ["stimulus-m+, anchor", "moco+, 3"])
def test_pieces_do_not_change_the_method(name: str) -> None:
    check_micro_batch(KEPT[name], 5)


@pytest.mark.parametrize("name", ["smgd, 3", "moco+, 3", "stimulus+, anchor", "scalarisation, 1"])
def test_frozen_and_unreached_parameters_have_no_gradient(name: str) -> None:
    check_frozen_parameters(KEPT[name])


@pytest.mark.parametrize("name", ["cr-mogm, 3", "stimulus, anchor"])
def test_the_order_of_the_objectives_is_of_no_account(name: str) -> None:
    check_permutation(KEPT[name])


@pytest.mark.parametrize("name", ["stimulus, anchor", "page-moo, anchor", "vr-scalarisation, 1"])
def test_same_point_difference_is_zero(name: str) -> None:
    check_same_point_difference_is_zero(KEPT[name])


@rules
def test_hooks_on_finished_gradients_are_not_run(name: str) -> None:
    model, calls = two_heads(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(calls.append)
    listened, plain = RULES[name].make(model), RULES[name].make()
    path = train(listened, BATCHES[:4])
    assert calls == []
    torch.testing.assert_close(path, train(plain, BATCHES[:4]), rtol=0, atol=1e-13)  # sums in another order


@pytest.mark.parametrize("name", ["mini-batch", "fixed"])
def test_autocast_is_off_while_a_kept_step_is_differentiated(name: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(64, 2), torch.randn(32, 64)

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return model(x).square().mean(0)

    mg = MultiGradient(model, losses, MiniBatch(), **({"weighting": Fixed()} if name == "fixed" else EVERY))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            step = mg.backward(x)
    expected = step.weights.double() @ jacobian(model, losses, x)
    # float32 has 7 digits, bfloat16 not even 3
    torch.testing.assert_close(direction(model), expected, rtol=1e-5, atol=1e-6)


def test_autocast_of_the_users_model_is_kept() -> None:
    """A kept step in autocast gives the gradient of the autocast losses, up to the precision of bfloat16."""
    torch.manual_seed(0)
    model, x = nn.Linear(64, 2), torch.randn(32, 64)

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().square().mean(0)

    mg = MultiGradient(model, losses, MiniBatch(), **EVERY)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            step = mg.backward(x)
        rows = jacobian(model, losses, x)
    assert not step.reweighed
    assert model.weight.grad.dtype == torch.float32
    expected = step.weights.double() @ rows
    assert float((direction(model) - expected).norm() / expected.norm()) < 1e-2  # bfloat16 has 8 bits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["mini-batch", "tracking", "storm", "recursive", "storm, sketch", "fixed"])
def test_models_in_half_precision_keep_their_row_in_float32(name: str, dtype: torch.dtype) -> None:
    """The row of a half-precision model is summed in float32, so it stays near that of the float32 model."""
    columns = data(24, dtype=dtype)
    rule, anchor = RULES[name], cut(columns, 10)
    found = []
    for kind in (dtype, torch.float32):
        estimator = rule.build()
        if estimator.anchor is not None:
            estimator = Recursive([tuple(part.to(kind) for part in batch) for batch in anchor], 3)
        model = two_heads(dtype=dtype).to(kind)
        mg = MultiGradient(model, two_losses, estimator, rule.weighting(), **rule.options)
        directions = []
        for x, y in cut(columns, 6):
            mg.backward((x.to(kind), y.to(kind)))
            directions.append(direction(model))
            assert all(p.grad.dtype == kind for p in model.parameters())
            assert all(part.dtype == torch.float32 for row in mg.rows() for part in row.values())
        found.append(torch.stack(directions))  # the parameters do not move, so the weights may differ a little only
    assert relative(found[0], found[1]) < (0.02 if dtype is torch.float16 else 0.1)  # 11 and 8 bits


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", ["mini-batch", "storm", "recursive", "recursive, sketch"])
@pytest.mark.parametrize("options", [{"rows_dtype": torch.bfloat16}, {"rows_device": "cpu"}])
def test_the_one_row_is_not_stored_in_low_precision(name: str, options: Any) -> None:
    stored = RULES[name].make(**options)
    path = train(stored, BATCHES[:STEPS])
    expected = train(RULES[name].make(), BATCHES[:STEPS])
    if options == {"rows_device": "cpu"}:
        torch.testing.assert_close(path, expected, rtol=0, atol=1e-12)  # the blocks are cut differently
    else:
        # the S rows of a solve are rounded to 8 bits, the one row is not: an error of 1/256 of a step of about 0.1
        torch.testing.assert_close(path, expected, rtol=0, atol=5e-3)
        assert all(part.dtype == torch.float64 for row in stored.rows() for part in row.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mini-batch", "storm"])
def test_models_that_the_user_has_compiled(name: str) -> None:
    plain = train(RULES[name].make(), BATCHES[:4])
    model = two_heads()
    compiled = train(RULES[name].make(torch.compile(model, backend="aot_eager")), BATCHES[:4])
    torch._dynamo.reset()
    torch.testing.assert_close(compiled, plain, rtol=0, atol=1e-12)


# States, copies and proposals


@pytest.mark.parametrize("name", ["smgd, 3", "moco+, 3", "cr-mogm, 3", "stimulus+, anchor", "page-moo, anchor"])
def test_resume_in_a_kept_stretch_equals_no_interruption(name: str) -> None:
    check_resumes(KEPT[name])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("smgd, 3", {"reweigh": "auto"}),
        ("stimulus-m, anchor", {"reweigh": "auto"}),
        ("smgd, 3", {"gramian": "sketch", "reweigh": 1}),
        ("moco+, 3", {"gramian": "sketch"}),
        ("stimulus+, anchor", {"gramian": "sketch"}),
    ],
)
def test_resume_equals_no_interruption_with_every_rule(name: str, changes: Any) -> None:
    check_resumes(replace(KEPT[name], **changes))


@pytest.mark.parametrize("name", ["smgd, 3", "stimulus, anchor"])
def test_resume_equals_no_interruption_with_averaged_gramians(name: str) -> None:
    check_resumes(KEPT[name], weighting=lambda: Averaged(ProjectedDescent(0.1), 0.5))


def test_large_models_resume_in_a_kept_stretch() -> None:
    with ENGINES["rowwise, in place"].used() as option:
        check_resumes(KEPT["moco+, 3"], engine=option)


@rules
def test_the_state_has_one_row_and_all_counters(name: str) -> None:
    mg = RULES[name].make()
    train(mg, BATCHES[:5])
    state = mg.state_dict()
    assert state["version"] == 5
    assert (state["samples"], state["gradients"], state["passes"]) == (mg.samples, mg.gradients, mg.passes)
    assert len(state["rows"]) == int(mg.estimator.remembers)
    assert (state["reweigh"] is None) == (name == "fixed")


def test_states_of_another_kind_of_reweighing_are_refused() -> None:
    """Also where the estimator keeps no rows that would not fit."""
    for build in (MiniBatch, lambda: Storm(0.3), lambda: Recursive(ANCHOR, 3)):
        kinds: list[dict[str, Any]] = [{"reweigh": 1}, {"reweigh": "auto"}]
        kinds.append(AT_ANCHORS if build().anchor is not None else EVERY)
        for there in kinds:
            for here in kinds:
                saved, loads = (MultiGradient(two_heads(), two_losses, build(), **kind) for kind in (there, here))
                train(saved, BATCHES[:2])
                state = saved.state_dict()
                if there == here:
                    loads.load_state_dict(state)
                    assert same(loads.state_dict(), state)
                    continue
                before = everything(loads)
                with pytest.raises(StateMismatch, match="reweigh"):
                    loads.load_state_dict(state)
                assert differing(before, everything(loads)) == []


@rules
def test_a_copy_goes_on_bit_for_bit(name: str) -> None:
    mg = RULES[name].make()
    train(mg, BATCHES[:5])
    other = copy.deepcopy(mg)
    assert torch.equal(train(mg, BATCHES[5:9]), train(other, BATCHES[5:9]))
    assert same(mg.state_dict(), other.state_dict())


@pytest.mark.parametrize("name", ["mini-batch", "storm", "recursive"])
def test_a_pickled_object_goes_on_bit_for_bit(name: str) -> None:
    mg = RULES[name].make()
    train(mg, BATCHES[:5])
    other = pickle.loads(pickle.dumps(mg))
    assert torch.equal(train(mg, BATCHES[5:9]), train(other, BATCHES[5:9]))


def test_a_pickled_object_has_one_previous_point() -> None:
    mg = MultiGradient(two_heads(), two_losses, Storm(0.3))
    train(mg, BATCHES[:3])
    for other in (copy.deepcopy(mg), pickle.loads(pickle.dumps(mg))):
        train(other, BATCHES[3:5])
        assert torch.equal(other.store.flat_previous, torch.cat([part.flatten() for part in other.store.previous]))


def test_a_discarded_step_leaves_the_gradients_of_the_last() -> None:
    mg = MultiGradient(two_heads(), two_losses, Storm(0.3), reweigh=50)
    train(mg, (BATCHES * 3)[:33])
    before = everything(mg)
    mg.propose(BATCHES[0]).discard()  # step 33 is observed, as one in 16 is
    assert differing(before, everything(mg)) == []


@pytest.mark.parametrize(
    "name",
    RULES,
)
def test_a_discarded_proposal_never_happened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any size: the one row is not updated in place."""
    monkeypatch.setattr(STAGED_ENTRIES, 0)
    mg = RULES[name].make(two_heads(nn.Dropout(0.3)))
    plain = RULES[name].make(two_heads(nn.Dropout(0.3)))
    for t, batch in enumerate(BATCHES[:STEPS]):
        torch.manual_seed(t)
        before = everything(mg)
        proposal = mg.propose(batch)
        proposal.weigh()
        assert differing(before["state"], mg.state_dict()) in ([], ["engine"])  # which the first step chooses
        proposal.discard()
        assert differing(before, everything(mg)) == []
        path = train(mg, [batch])
        torch.manual_seed(t)
        assert torch.equal(path, train(plain, [batch]))


@rules
def test_reset_starts_with_a_solve(name: str) -> None:
    mg = RULES[name].make()
    train(mg, BATCHES[:5])
    counts = mg.samples, mg.gradients, mg.passes
    mg.reset()
    assert (mg.t, mg.weights, mg.rows()) == (0, None, [])
    assert (mg.samples, mg.gradients, mg.passes) == counts
    step = mg.backward(BATCHES[5])
    if name not in ("mini-batch, auto", "recursive, auto"):  # there the rule goes on
        assert step.reweighed == (name != "fixed")
    assert step.anchored == (mg.estimator.anchor is not None and name != "adaptive, stalled")  # which begins alone
    rows = jacobian(mg.objective.model, two_losses, COLUMNS if step.anchored else BATCHES[5])
    if not step.anchored or ("adaptive" not in name and "sketch" not in name):
        share = 0.3 if name == "tracking" else 1.0
        expected = share * step.weights @ rows
        torch.testing.assert_close(direction(mg.objective.model), expected, rtol=0, atol=1e-12)


def test_weightings_with_a_state_advance_at_solves_only() -> None:
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), ProjectedDescent(0.1), **EVERY)
    states = []
    for batch in BATCHES[:STEPS]:
        train(mg, [batch])
        states.append(mg.weighting.state_dict())
    changed = [t for t in range(1, STEPS) if not same(states[t - 1], states[t])]
    assert changed == [3, 6]


@pytest.mark.parametrize(
    "name",
    [
        "mini-batch",
        "storm",
        "tracking",
    ],
)
def test_a_random_weighting_draws_anew_at_every_solve(name: str) -> None:
    torch.manual_seed(0)
    mg = RULES[name].make(weighting=lambda gramian: torch.rand(2, dtype=torch.float64))
    weights = [mg.backward(batch).weights.tolist() for batch in BATCHES[:STEPS]]
    assert weights[0] == weights[2] != weights[3] == weights[5] != weights[6] != weights[0]


# Observations and the safeguard


def test_observations_are_those_of_the_weighted_loss() -> None:
    model = two_heads()
    mg = MultiGradient(model, two_losses, Recursive([COLUMNS], 3), **AT_ANCHORS)
    mg.watch()
    for batch in BATCHES[:3]:
        last, weights = copy.deepcopy(model), mg.weights
        if mg.t:
            descend(model)
            now, before = (jacobian(one, two_losses, batch) for one in (model, last))
            mg.backward(batch)
            observed = mg.observation
            assert observed.change == pytest.approx(float((weights @ (now - before)).norm()), rel=1e-10)
            fall = [a - b for a, b in zip(two_losses(last, batch), two_losses(model, batch), strict=True)]
            assert observed.decrease == pytest.approx(float(weights @ torch.stack(fall).detach()), rel=1e-9)
        else:
            mg.backward(batch)


@pytest.mark.parametrize("name", ["smgd, 3", "moco+, 3", "stimulus-m, anchor", "vr-scalarisation, 1"])
def test_a_silent_safeguard_changes_nothing(name: str) -> None:
    check_silent_safeguard(KEPT[name])


@pytest.mark.filterwarnings("ignore::stimulus_moo.StimulusWarning")
def test_the_safeguard_tames_too_long_steps() -> None:
    """Without it the losses grow beyond all bounds."""
    ends = []
    for guarded in (False, True):
        model = two_heads()
        mg = MultiGradient(model, two_losses, Recursive([COLUMNS], 4), **AT_ANCHORS)
        optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
        guard = Safeguard(optimizer, mg) if guarded else None
        for batch in BATCHES * 2:
            mg.backward(batch)
            optimizer.step()
        ends.append(max(float(loss.detach()) for loss in two_losses(model, COLUMNS)))
    assert guard is not None
    assert guard.shortened + guard.taken_back + guard.alone > 0
    assert ends[1] < 10 < ends[0]


# Not finite


@pytest.mark.parametrize("name", ["smgd, 3", "moco+, 3", "stimulus, anchor"])
@pytest.mark.parametrize("engine", ["auto", "rowwise, in place"])
def test_nan_never_enters_the_row(name: str, engine: str) -> None:
    check_nan_never_enters(KEPT[name], ENGINES[engine])


def test_two_runs_with_noise_are_the_same() -> None:
    info = KEPT["stimulus-m+, anchor"]
    first, second = (Run(info, losses=noisy).run(info.short) for _ in range(2))
    assert np.array_equal(first.path, second.path)
    assert same(first.state(), second.state())


def test_sketch_and_exact_take_the_same_path_over_heads() -> None:
    for name, options in (("mini-batch", EVERY), ("storm", EVERY), ("recursive", AT_ANCHORS)):
        exact, sketch = RULES[name].make(), RULES[name].make(**options | SKETCH)
        torch.testing.assert_close(train(sketch, BATCHES[:STEPS]), train(exact, BATCHES[:STEPS]), rtol=0, atol=1e-12)


def test_tracking_remembers_across_solves() -> None:
    """r_3 = (1 - beta) r_2 + beta lambda_3 . g_3, although lambda_3 is new."""
    model = two_heads()
    mg = MultiGradient(model, two_losses, Tracking(0.3), **EVERY)
    train(mg, BATCHES[:3])
    last = direction(model)
    rows = jacobian(model, two_losses, BATCHES[3])
    step = mg.backward(BATCHES[3])
    assert step.reweighed
    torch.testing.assert_close(direction(model), 0.7 * last + 0.3 * step.weights @ rows, rtol=0, atol=1e-12)
