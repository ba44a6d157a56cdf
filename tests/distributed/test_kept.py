"""Kept weights on several processes: the path of one, whatever each brings, and failures that all share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stimulus_moo import MiniBatch, MultiGradient, Recursive, Storm, Tracking
from tests.database import replaced
from tests.distributed.launch import values
from tests.distributed.paths import COLUMNS, PERIOD, batches, build, own_share
from tests.distributed.test_steps import WAYS, Branches, Broken, branch_losses, half, way
from tests.harness import cut, differing, everything, train, two_heads, two_losses, vector

STEPS = PERIOD + 3  # two anchors, and inner steps after each

#: a method of the table, and options
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mini-batch": ("smgd", {"reweigh": 3}),
    "smoothed": ("cr-mogm", {"reweigh": 3}),
    "tracking": ("moco", {"reweigh": 3}),
    "storm": ("moco+", {"reweigh": 3}),
    "full": ("mgd", {"reweigh": 3}),
    "recursive": ("stimulus-m", {"reweigh": "anchor"}),
    "adaptive": ("stimulus-m+", {"reweigh": "anchor"}),
    "page": ("page-moo", {"reweigh": "anchor"}),
    "mini-batch, auto": ("smgd", {"reweigh": "auto"}),
    "recursive, auto": ("stimulus", {"reweigh": "auto"}),
    "storm, auto": ("moco+", {"reweigh": "auto"}),
    "mini-batch, sketch": ("smgd", {"reweigh": 3, "gramian": "sketch"}),
    "storm, sketch": ("moco+", {"reweigh": 3, "gramian": "sketch"}),
    "adaptive, sketch": ("stimulus-m+", {"reweigh": "anchor", "gramian": "sketch"}),
    "fixed": ("vr-scalarisation", {}),
    "auto": ("auto", {"reweigh": "auto"}),  # in the metric of Adam
    "auto, all rows": ("auto", {}),
    "auto, sketch": ("auto", {"reweigh": 3, "gramian": "sketch"}),
}
SHARDED = (
    "mini-batch",
    "tracking",
    "storm",
    "adaptive",
    "mini-batch, auto",
    "recursive, auto",
    "storm, sketch",
    "fixed",
    "auto",
    "auto, all rows",
    "auto, sketch",
)
LATER = 4  # step at which "auto" becomes recursive
SOON = {f"stimulus_moo.estimators.adaptive.{name}": value for name, value in (("LOOK", LATER), ("STALLED", 10.0))}
LARGE = ("storm", "adaptive")  # their one row is staged at any size, and may be sent in parts


def follow(case: str, **options: Any) -> tuple[Tensor, Tensor, list[Any]]:
    """The points, the weights, and which steps were solves with all counters after each."""
    name, own = CASES[case]
    mg, optimizer = build(name, **own, **options)
    points, weights, costs = [], [], []
    with replaced(SOON):
        for batch in batches(STEPS, own_share()):
            step = mg.backward(batch)
            optimizer.step()
            points.append(vector(mg.objective.model))
            weights.append(step.weights)
            costs.append((step.reweighed, mg.samples, mg.gradients, mg.passes, step.anchored))
    return torch.stack(points), torch.stack(weights), costs


def all_cases() -> dict[tuple[str, str], Any]:
    found = {}
    for name in WAYS:
        for case in CASES if name == "whole" else SHARDED if name == "sharded" else LARGE:
            with way(name) as options:
                found[name, case] = follow(case, **options)
    return found


def test_processes_with_kept_weights_take_the_path_of_one() -> None:
    alone = {case: follow(case) for case in CASES}
    ranks = values(all_cases, 2)
    for (name, case), (points, weights, costs) in ranks[0].items():
        expected, weighed, counted = alone[case]
        assert costs == counted, (name, case)
        assert torch.allclose(points, expected, rtol=0, atol=1e-10), (name, case)
        assert torch.allclose(weights, weighed, rtol=0, atol=1e-10), (name, case)
        other = ranks[1][name, case]
        assert torch.equal(points, other[0])  # the processes agree bit for bit
        assert torch.equal(weights, other[1])
        assert costs == other[2]
    assert sum(cost[0] for cost in alone["mini-batch, auto"][2]) < STEPS / 2  # they are kept most of the time
    for case in ("auto", "auto, all rows", "auto, sketch"):  # two anchors, and differences after each
        assert [t for t, cost in enumerate(alone[case][2]) if cost[-1]] == [LATER, 2 * LATER], case


# What a process may bring

ESTIMATORS: dict[str, Any] = {
    "mini-batch": (lambda anchor: MiniBatch(), 3),
    "tracking": (lambda anchor: Tracking(0.3), 3),
    "storm": (lambda anchor: Storm(0.3), 3),
    "recursive": (lambda anchor: Recursive(anchor, period=3), "anchor"),
}


def one_brings_everything() -> dict[Any, Tensor]:
    """Rank 0 has no sample, neither of the batches nor of the anchor."""
    mine = not dist.is_initialized() or dist.get_rank() == 1
    found = {}
    for name in WAYS if dist.is_initialized() else ("whole",):
        for kind, (make, reweigh) in ESTIMATORS.items():
            for gramian in ("exact", "sketch"):
                with way(name) as options:
                    options = options if dist.is_initialized() else {}
                    estimator = make(cut(COLUMNS, 7) if mine else [])
                    mg = MultiGradient(two_heads(), two_losses, estimator, reweigh=reweigh, gramian=gramian, **options)
                    path = train(mg, [batch if mine else None for batch in cut(COLUMNS, 8)])
                    found[name, kind, gramian] = torch.cat([path, path.new_full((1, path.shape[1]), mg.passes)])
    return found


def test_processes_without_samples_take_part_in_kept_steps() -> None:
    alone = one_brings_everything()
    for found in values(one_brings_everything, 2):
        for (name, kind, gramian), path in found.items():
            expected = alone["whole", kind, gramian]
            assert torch.allclose(path, expected, rtol=0, atol=1e-12), (name, kind, gramian)


def branching(reweigh: int) -> tuple[Tensor, list[bool]]:
    """From the third step on the second process goes another way than the first; its branch is new to the row."""
    model, x = Branches(), COLUMNS[0][:6].abs()
    mg = MultiGradient(model, branch_losses, Tracking(0.5), lambda gramian: torch.full((2,), 0.5), reweigh=reweigh)
    signs = [1, 1, -1, -1] if dist.get_rank() else [1, 1, 1, 1]
    return train(mg, [sign * x for sign in signs]), [p.grad is None for p in model.parameters()]


def branching_twice() -> list[tuple[Tensor, list[bool]]]:
    return [branching(reweigh) for reweigh in (1, 100)]


def test_what_any_process_reaches_becomes_part_of_the_row() -> None:
    first, second = values(branching_twice, 2)
    for (all_rows, missing), (kept, missing_kept) in (first, second):
        assert torch.allclose(kept, all_rows, rtol=0, atol=1e-12)  # constant weights: one row is the sum of all
        assert missing == missing_kept == [False] * 6
    assert torch.equal(first[1][0], second[1][0])


def random_rule(gramian: Tensor) -> Tensor:
    return torch.rand(2, dtype=torch.float64)


def random_weights() -> list[list[list[float]]]:
    found = []
    for gramian in ("exact", "sketch"):
        torch.manual_seed(dist.get_rank())
        mg = MultiGradient(two_heads(), two_losses, Storm(0.3), random_rule, reweigh=2, gramian=gramian)
        found.append([mg.backward(half(COLUMNS)).weights.tolist() for _ in range(5)])
    return found


def test_a_random_weighting_is_kept_alike_everywhere() -> None:
    first, second = values(random_weights, 2)
    assert first == second
    for weights in first:
        assert weights[0] == weights[1]
        assert weights[2] == weights[3]


# State


def resumed(state: dict[str, Any] | None, shard: bool) -> Any:
    """Save after 5 steps, or load and go on for 6 more."""
    mg, optimizer = build("moco+", reweigh=3, **({"shard": True} if shard else {}))
    if state is not None:
        mg.objective.model.load_state_dict(state["model"])
        mg.load_state_dict(state["mg"])
    every = batches(11, own_share())
    for batch in every[:5] if state is None else every[5:]:
        mg.backward(batch)
        optimizer.step()
    if state is None:
        return {"mg": mg.state_dict(), "model": mg.objective.model.state_dict()}
    return vector(mg.objective.model)


def resumed_all_ways(state: dict[str, Any]) -> list[Any]:
    return [(resumed(None, shard), resumed(state, shard)) for shard in (False, True)]


def test_a_kept_stretch_goes_on_with_any_number_of_processes() -> None:
    state = resumed(None, False)
    expected = resumed(state, False)
    for rank in values(resumed_all_ways, 2, state):
        for saved, end in rank:
            assert torch.allclose(end, expected, rtol=0, atol=1e-10)  # one process to two
            assert len(saved["mg"]["rows"]) == 1
            assert torch.allclose(resumed(saved, False), expected, rtol=0, atol=1e-10)  # two to one


# Failures


class Faulty:
    """Losses that fail in the last process while they are armed, from the k-th evaluation on."""

    def __init__(self, kind: str) -> None:
        self.kind, self.left, self.armed = kind, 0, False

    def arm(self, evaluation: int) -> None:
        self.armed, self.left = True, evaluation

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        left, right = two_losses(model, batch)
        if self.armed and dist.get_rank() == dist.get_world_size() - 1:
            self.left -= 1
            if self.left <= 0:
                if self.kind == "raises":
                    raise Broken("no more data")
                right = right * torch.nan if self.kind == "nan loss" else right + (0 * right).sqrt()
        return left, right


def fail(name: str, case: str, kind: str, gramian: str) -> list[Any]:
    """Let every evaluation of every step fail in turn; what was raised, and what then changed."""
    make, reweigh = ESTIMATORS[case]
    mine = half(COLUMNS)
    with way(name) as options:
        losses = Faulty(kind)
        mg = MultiGradient(two_heads(), losses, make(cut(mine, 10)), reweigh=reweigh, gramian=gramian, **options)
        optimizer = torch.optim.SGD(mg.objective.parameters, lr=0.05)
        said = []
        for batch in cut(mine, 4)[:4]:
            for evaluation in (1, 2, 3):
                losses.arm(evaluation)
                before = everything(mg)
                proposal = None
                try:
                    proposal = mg.propose(batch)
                    proposal.weigh()
                    if proposal.error is not None:
                        raise proposal.error
                except Exception as error:
                    changed = differing(before["state"], mg.state_dict()) + differing(before, everything(mg))
                    said.append((mg.t, type(error).__name__, str(error), changed))
                losses.armed = False
                mg.discard()
            mg.backward(batch)
            optimizer.step()
        return [said, vector(mg.objective.model)]


def fail_all_ways(kind: str) -> list[Any]:
    return [
        ((name, case, gramian), fail(name, case, kind, gramian))
        for name in (("whole", "sharded") if kind == "nan loss" else WAYS)  # a loss is seen before any row is touched
        for case in ("mini-batch", "storm", "recursive")
        for gramian in (("exact", "sketch") if name in ("whole", "sharded") else ("exact",))
    ]


@pytest.mark.parametrize("kind", ["raises", "nan loss", "nan gradient"])
def test_what_one_raises_in_a_kept_step_or_a_solve_all_raise(kind: str) -> None:
    first, last = values(fail_all_ways, 2, kind)
    ends: dict[str, Tensor] = {}
    for (what, (said, end)), (_, (other, also)) in zip(first, last, strict=True):
        assert len(said) == len(other) >= 4, what
        for (t, error, message, changed), (u, there, text, changed_there) in zip(said, other, strict=True):
            assert t == u
            if what[2] == "exact" or t > 0:  # see the next test
                assert changed == changed_there == [], (what, t, message)
            if kind == "raises":
                assert (there, text) == ("Broken", "no more data")
                assert error == "RankFailed"
                assert f"rank 1 raised Broken at step {t}" in message
            else:
                assert (error, there) == ("NonFiniteError", "NonFiniteError"), (what, t)
                noun = "loss" if kind == "nan loss" else "gradient"
                if what[0] != "sharded" or kind == "nan loss":  # see the last test
                    assert f"{noun} of objective 1" in message, (what, t)
                    assert f"{noun} of objective 1" in text, (what, t)
        # the failures have left no trace
        assert torch.equal(end, also)
        assert torch.allclose(end, ends.setdefault(what[1], end), rtol=0, atol=1e-12), what


class Break(torch.autograd.Function):
    """The identity, whose backward pass fails."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise Broken("no gradient")


class Breakable(nn.Module):
    """Between trunk and heads: once armed, backward passes of the last process fail after the heads."""

    armed = False

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = Break.apply(x) if self.armed and dist.get_rank() == dist.get_world_size() - 1 else x
        return found


def backward_fails() -> list[Any]:
    """The gradients of the heads are on their way when the backward pass of one process fails."""
    said: list[Any] = []
    for name in ("whole", "in parts"):
        for make, reweigh in (ESTIMATORS["mini-batch"], ESTIMATORS["storm"]):
            middle, mine = Breakable(), half(COLUMNS)
            with way(name):
                mg = MultiGradient(two_heads(middle), two_losses, make(None), reweigh=reweigh)
                optimizer = torch.optim.SGD(mg.objective.parameters, lr=0.05)
                for k, batch in enumerate(cut(mine, 4)[:4]):
                    before, middle.armed = everything(mg), k == 2
                    try:
                        mg.backward(batch)
                        optimizer.step()
                    except Exception as error:
                        said.append((type(error).__name__, str(error), differing(before, everything(mg)), mg.t))
            said.append(vector(mg.objective.model))
    return said


def test_a_failure_while_gradients_are_on_their_way_is_shared() -> None:
    first, last = values(backward_fails, 2)
    for one, other in zip(first, last, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
        else:
            assert one[0] == "RankFailed"
            assert "rank 1 raised Broken at step 2: no gradient" in one[1]
            assert other[:2] == ("Broken", "no gradient")
            assert one[2:] == other[2:] == ([], 2)
    assert [torch.is_tensor(one) for one in first] == 4 * [False, True]
    assert torch.allclose(first[1], first[5], rtol=0, atol=1e-12)  # in one bucket and in several


def first_sketched_step_fails() -> tuple[list[str], str]:
    losses = Faulty("raises")
    mg = MultiGradient(two_heads(), losses, MiniBatch(), reweigh=3, gramian="sketch")
    before = mg.state_dict()
    losses.arm(2)  # after the solve
    try:
        mg.backward(half(COLUMNS))
    except Exception as error:
        raised = type(error).__name__
    after = mg.state_dict()
    changed = differing(before, after)
    mg.load_state_dict(after)
    return changed, raised


def test_a_first_sketched_step_that_fails_leaves_no_trace() -> None:
    for changed, raised in values(first_sketched_step_fails, 2):
        assert changed == []
        assert raised in ("Broken", "RankFailed")


def sharded_gradients_are_not_finite(brings: bool) -> tuple[str, str]:
    """The second process meets a gradient that is not finite, at a kept step; the first one has samples or none."""
    losses = Faulty("nan gradient")
    mg = MultiGradient(two_heads(), losses, MiniBatch(), reweigh=3, shard=True)
    batch = half(COLUMNS)
    mg.backward(batch)
    losses.arm(1)
    try:
        mg.backward(batch if brings or dist.get_rank() else None)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.parametrize("brings", [True, False])
def test_sharded_gradients_that_are_not_finite_name_the_objective_everywhere(brings: bool) -> None:
    for error, message in values(sharded_gradients_are_not_finite, 2, brings):
        assert error == "NonFiniteError"
        assert "gradient of objective 1" in message
