"""The properties that hold for every entry of the database, each as one function that asserts it.

They are crossed with the database in ``tests/test_twins.py`` and ``tests/test_properties.py``.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stimulus_moo import Fixed, NonFiniteError, Safeguard
from tests.database import (
    LR,
    STEPS,
    EngineInfo,
    EstimatorInfo,
    Info,
    KeptInfo,
    MethodInfo,
    Run,
    TorchProblem,
    WeightingInfo,
)
from tests.harness import differing, everything, same
from tests.reference import kept, twins

KEPT_STEPS = 40
TWIN_TOLERANCE = 1e-9  # the paths are the same arithmetic in another order; rounding grows along 200 nonconvex steps


def relative(path: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(path - reference).max() / np.abs(reference).max())


# Equality with the twin


@cache
def twin_of(info: MethodInfo) -> twins.Trajectory:
    """The path of the twin, computed once: its exact weights take longer than the library."""
    problem = TorchProblem()
    draws = {name: draw(problem) for name, draw in info.draws.items()}
    options = {"steps": STEPS, "lr": LR, "batches": problem.batches, **info.twin_options, **draws}
    return info.twin(problem.numpy, problem.start, **options)


def check_equals_twin(info: MethodInfo, engine: EngineInfo, steps: int = STEPS) -> None:
    """The method takes the path of its twin, with the same weights and directions, and costs as much."""
    twin = twin_of(info)
    with engine.used() as option:
        run = Run(info, engine=option).run(steps)
        assert engine.option in ("auto", run.multigradient.engine)  # no other engine took over
    assert relative(run.path, twin.x[: steps + 1]) < TWIN_TOLERANCE
    # The path says little once it is stationary: before that, the weights must agree too.
    early = np.array([step.weights.numpy() for step in run.steps[:50]])
    assert np.abs(early - twin.weights[:50]).max() < TWIN_TOLERANCE
    norms = np.array([float(step.sq_norm) for step in run.steps[:50]])
    assert relative(norms, (twin.d[:50] ** 2).sum(1)) < TWIN_TOLERANCE
    assert run.multigradient.samples == twin.samples[steps - 1]
    assert run.multigradient.gradients == twin.gradients[steps - 1]


@cache
def kept_twin_of(info: KeptInfo, sketch: bool) -> kept.KeptTrajectory:
    """The path of a twin with kept weights."""
    problem = TorchProblem()
    draws = {name: draw(problem) for name, draw in info.draws.items()}
    options = {"steps": KEPT_STEPS, "lr": LR, "batches": problem.batches, **info.twin_options, **draws}
    return info.twin(problem.numpy, problem.start, **options, **({"sketch": True} if sketch else {}))


def check_equals_kept_twin(info: KeptInfo, engine: EngineInfo, gramian: str = "exact") -> None:
    """As ``check_equals_twin``, at every step also which of them solve, and what each costs."""
    twin = kept_twin_of(info, gramian == "sketch")
    counts = []
    with engine.used() as option:
        run = Run(replace(info, gramian=gramian), engine=option)
        for _ in range(KEPT_STEPS):
            run.step()
            counts.append((run.multigradient.samples, run.multigradient.gradients, run.multigradient.passes))
        assert engine.option in ("auto", run.multigradient.engine)
    assert [step.reweighed for step in run.steps] == twin.reweighed.tolist()
    assert counts == list(zip(*map(np.ndarray.tolist, (twin.samples, twin.gradients, twin.passes)), strict=True))
    assert relative(run.path, twin.x) < TWIN_TOLERANCE
    assert np.abs(np.array([step.weights.numpy() for step in run.steps]) - twin.weights).max() < TWIN_TOLERANCE
    assert relative(np.array([float(step.sq_norm) for step in run.steps]), (twin.d**2).sum(1)) < TWIN_TOLERANCE


# Repeatability


def noisy(losses: Callable[..., Any]) -> Callable[..., Any]:
    """Losses of inputs with dropout and other noise, so that the random state matters."""

    def disturbed(model: nn.Module, batch: Any) -> Any:
        x = nn.functional.dropout(batch[0], 0.2)
        return losses(model, (x * (1 + 0.1 * torch.randn_like(x)) * torch.empty(1).uniform_(0.5, 1.0), batch[1]))

    return disturbed


def check_deterministic(info: Info) -> None:
    """Two runs are the same bit for bit."""
    first, second = (Run(info, losses=noisy).run(info.short) for _ in range(2))
    assert np.array_equal(first.path, second.path)
    assert same(first.state(), second.state())


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    """A state saved and loaded as an untrusted file is."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def check_resumes(info: Info, **options: Any) -> None:
    """A run that is saved and loaded into fresh objects before every step is the straight one bit for bit."""

    def fresh() -> Run:
        return Run(info, losses=noisy, **options)

    straight, stopped, later = fresh(), fresh(), fresh()
    for t in range(info.short):
        stopped = fresh().resume(through_file(stopped.state()), stopped)
        if t == info.short // 2:  # and one that goes on from there
            later.resume(through_file(stopped.state()), stopped)
        stopped.step()
    later.run(info.short - info.short // 2)
    straight.run(info.short)
    for resumed in (stopped, later):
        assert np.array_equal(resumed.path, straight.path)
        assert same(resumed.state(), straight.state())


# Objectives


def check_permutation(info: Info) -> None:
    """The order of the objectives is of no account."""
    order = (2, 0, 1)
    plain, permuted = Run(info).run(info.short), Run(info, order=order).run(info.short)
    assert np.abs(plain.path - permuted.path).max() < 1e-10  # sums over objectives round in another order
    for a, b in zip(plain.steps, permuted.steps, strict=True):
        assert (a.weights[list(order)] - b.weights).abs().max() < 1e-8


def check_one_objective(info: MethodInfo | EstimatorInfo) -> None:
    """With one objective it has all the weight, whatever the weighting."""
    one = {name: [1.0] for name in getattr(info, "per_objective", ())}
    run = Run(info, order=(0,), **one).run(info.short)
    reference = Run(info, order=(0,), weighting=lambda: Fixed([1.0]), **one).run(info.short)
    assert all(step.weights.tolist() == [1.0] for step in run.steps)
    # fixed weights differentiate one loss, all others one row: only the order of the sums differs
    assert np.allclose(run.path, reference.path, rtol=1e-12, atol=1e-13)


# Failures


class Planned(Exception):
    """What the losses raise on purpose."""


class Fault:
    """Losses of which one evaluation fails when it is armed; ``kind`` is one of KINDS."""

    KINDS = ("raises", "nan gradient")

    def __init__(self, kind: str) -> None:
        self.kind, self.left = kind, 0

    def arm(self, evaluation: int) -> None:
        """Let this evaluation from now on fail; 0 for none."""
        self.left = evaluation

    def __call__(self, losses: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(model: nn.Module, batch: Any) -> Any:
            self.left -= 1
            if self.left != 0:
                return losses(model, batch)
            values = list(losses(model, batch))  # the random state has moved on
            if self.kind == "raises":
                raise Planned
            values[-1] = infinite_slope(values[-1])
            return tuple(values)

        return faulty


def infinite_slope(loss: Tensor) -> Tensor:
    """The same number with an infinite gradient."""
    return loss + (loss - loss.detach()).abs().sqrt()


def check_failed_step_never_happened(info: Info, kind: str) -> None:
    """Whichever evaluation of a step fails, everything is as it was before, and the run goes on as the undisturbed."""
    fault, silent = Fault(kind), Fault(kind)
    run = Run(info, losses=lambda losses: fault(noisy(losses)))
    expected = Run(info, losses=lambda losses: silent(noisy(losses))).run(info.short)
    errors = 0
    for t in range(info.short):
        for evaluation in range(1, 100):
            fault.arm(evaluation)
            torch.manual_seed(t)
            before, optimizer = everything(run.multigradient), run.optimizer.state_dict()
            tensors = [p.grad for p in run.model.parameters()]
            try:
                run.step()
            except (Planned, NonFiniteError) as error:
                errors += 1
                if isinstance(error, NonFiniteError):
                    objectives = len(run.problem.order)
                    assert (error.objective, error.step) == (objectives - 1, t)  # noqa: PT017 (not every try raises)
                assert isinstance(error, Planned) == (kind == "raises")  # noqa: PT017
            else:
                break  # the step has fewer evaluations
            assert differing(before, everything(run.multigradient)) == []
            assert same(optimizer, run.optimizer.state_dict())
            assert all(p.grad is kept for p, kept in zip(run.model.parameters(), tensors, strict=True))
    assert errors == -silent.left  # each evaluation has failed once
    assert np.array_equal(run.path, expected.path)
    assert same(run.state(), expected.state())


def check_nan_never_enters(info: Info, engine: EngineInfo) -> None:
    """A batch that holds NaN is refused or skipped, and the run goes on from finite rows.

    Where rows are not updated in place, the run is the undisturbed one bit for bit.
    """
    with engine.used() as option:
        plain = Run(info, engine=option).run(info.short)
        for policy in ("raise", "skip"):
            run = Run(info, engine=option, on_nonfinite=policy)
            refused = 0
            while len(run.steps) < info.short:
                t, before = len(run.steps), run.path[-1]
                x, y = run.problem.batch(t)
                try:
                    if not run.step((torch.full_like(x, torch.nan), y)).skipped:
                        continue  # an anchor step, which does not use the batch
                except NonFiniteError as error:
                    assert (policy, error.step) == ("raise", t)  # noqa: PT017 (anchor steps do not raise)
                refused += 1
                assert np.array_equal(run.flat(), before)
                assert all(part.isfinite().all() for row in run.multigradient.rows() for part in row.values())
                run.step()
            assert run.multigradient.skipped == (refused if policy == "skip" else 0)
            assert np.isfinite(run.path).all()
            if not engine.in_place:
                assert refused == sum(not step.anchored for step in plain.steps)
                assert np.array_equal(run.path, plain.path)


# Ways to evaluate


def check_micro_batch(info: Info, micro_batch: int) -> None:
    """Batches evaluated in pieces give the same path, and cost the same."""
    whole, pieces = Run(info).run(info.short), Run(info, micro_batch=micro_batch).run(info.short)
    assert np.abs(whole.path - pieces.path).max() < 1e-11  # the mean over a batch is summed in another order
    for counter in ("samples", "gradients"):
        assert getattr(whole.multigradient, counter) == getattr(pieces.multigradient, counter)


def check_engine(info: Info, engine: EngineInfo, micro_batch: int | None = None) -> None:
    """Every engine takes the path of single rows, counts alike, and stores the same parameters in each row."""
    expected = Run(info, engine="rowwise", micro_batch=micro_batch).run(info.short)
    with engine.used() as option:
        found = Run(info, engine=option, micro_batch=micro_batch).run(info.short)
    assert engine.option in ("auto", found.multigradient.engine)
    np.testing.assert_allclose(found.path, expected.path, rtol=1e-10, atol=1e-12)
    for a, b in zip(found.steps, expected.steps, strict=True):
        torch.testing.assert_close(
            torch.stack([a.losses, a.weights]), torch.stack([b.losses, b.weights]), rtol=1e-9, atol=1e-11
        )
    one, other = found.multigradient, expected.multigradient
    assert (one.samples, one.gradients) == (other.samples, other.gradients)
    assert [row.keys() for row in one.rows()] == [row.keys() for row in other.rows()]


def check_frozen_parameters(info: Info) -> None:
    """Parameters that are frozen, or that no loss reaches, have no gradient, and change nothing for the others."""

    def add(model: nn.Module) -> None:
        model.extra = nn.Module()
        model.extra.frozen = nn.Parameter(torch.ones((), dtype=torch.float64), requires_grad=False)
        model.extra.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
        for parameter in model.extra.parameters():
            parameter.grad = torch.ones_like(parameter)

    def scaled(losses: Callable[..., Any]) -> Callable[..., Any]:
        return lambda model, batch: tuple(loss * model.extra.frozen for loss in losses(model, batch))

    run, plain = Run(info, change=add, losses=scaled), Run(info).run(info.short)
    for _ in range(info.short):
        run.step()
        assert [name for name, p in run.model.named_parameters() if p.grad is None] == ["extra.frozen", "extra.unused"]
    assert np.array_equal(run.path[:, -3:], np.ones((info.short + 1, 3)))
    # the losses come as a tuple here, so that the engine may be another one
    np.testing.assert_allclose(run.path[:, :-3], plain.path, rtol=1e-10, atol=1e-12)


# Cost


def check_cost_of_steps(info: EstimatorInfo, micro_batch: int | None) -> None:
    """Every step counts its samples once, and each evaluation of a sample."""
    run = Run(info, micro_batch=micro_batch)
    mg = run.multigradient
    assert (type(mg.samples), type(mg.gradients)) == (int, int)
    for t in range(info.short):
        before = mg.samples, mg.gradients
        step = run.step()
        samples, gradients = mg.samples - before[0], mg.gradients - before[1]
        if step.anchored:
            assert samples == gradients
            assert samples == info.anchor if info.exact else 1 <= samples <= info.anchor
        else:
            assert (samples, gradients // samples in info.points, gradients % samples) == (6, True, 0)
        if t == 5 and info.counts is not None:
            assert (mg.samples, mg.gradients) == info.counts


def check_same_point_difference_is_zero(info: Info) -> None:
    """Where the parameters do not move, an inner step changes nothing, random layers included."""
    run = Run(info, losses=noisy)
    rows, inner = None, 0
    for t in range(info.short):
        step = run.multigradient.backward(run.problem.batch(t))
        found = run.multigradient.rows()
        if t and not step.anchored:
            inner += 1
            for old, new in zip(rows, found, strict=True):
                for name in old:
                    # halves of a batch are added one after the other, which rounds
                    atol = 1e-15 if getattr(info, "compares_halves", False) else 0
                    torch.testing.assert_close(new[name], old[name], rtol=0, atol=atol)
        rows = found
    assert inner or all(step.anchored for step in Run(info).run(info.short).steps)


# Weights


def check_weights(info: WeightingInfo) -> None:
    """Weights are finite float64 numbers; on the simplex, and free of a past, where the entry says so."""
    run = Run(info).run(info.short)
    weights = torch.stack([step.weights for step in run.steps])
    assert weights.shape == (info.short, len(run.problem.order))
    assert weights.dtype == torch.float64
    assert weights.isfinite().all()
    if info.simplex:
        assert float(weights.min()) >= -1e-15
        assert float((weights.sum(1) - 1).abs().max()) < 1e-12
    used, fresh = (info.build(run.problem.order) for _ in range(2))
    rows = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first, second = (u @ u.T for u in rows)
    losses = (torch.tensor([0.5, 0.3, 0.4], dtype=torch.float64),) if getattr(used, "uses_losses", False) else ()
    torch.manual_seed(0)  # some take the objectives in a random order
    used(first, *losses)
    torch.manual_seed(0)
    after = used(second, *losses)
    torch.manual_seed(0)
    assert torch.allclose(after, fresh(second, *losses), rtol=0, atol=1e-12) != info.stateful


# The safeguard


def guarded_path(info: MethodInfo, steps: int, lr: float) -> tuple[np.ndarray, tuple[int, int, int]]:
    """The path under the safeguard, and how often each of its rules fired."""
    run = Run(info, lr=lr)
    guard = Safeguard(run.optimizer, run.multigradient)
    for t in range(steps):
        run.multigradient.backward(run.problem.batch(t))
        run.optimizer.step()
        run.x.append(run.flat())
    return run.path, (guard.alone, guard.shortened, guard.taken_back)


def check_silent_safeguard(info: MethodInfo) -> None:
    """While none of its rules fires, the safeguard changes nothing."""
    path, fired = guarded_path(info, info.short, lr=1e-3)
    assert fired == (0, 0, 0)
    assert np.array_equal(path, Run(info, lr=1e-3).run(info.short).path)
