"""The guard where things go wrong: lost rows, errors of the user's, signals, parameters that are not finite."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    Filtered,
    HeavyBall,
    InvalidOption,
    MultiGradient,
    Recursive,
    Safeguard,
    StimulusWarning,
    fit,
)
from stimulus_moo._engine import store
from stimulus_moo.safeguard.rollback import SHORTEN
from tests._engine.test_observation import X, Y, flat, losses, network


def batches(times: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(times):
        yield from zip(X.split(8), Y.split(8), strict=True)


def make(estimator: Any = None, lr: float = 0.01, model: nn.Module | None = None, function: Any = losses) -> Any:
    model = network() if model is None else model
    mg = MultiGradient(model, function, Recursive([(X, Y)], 8) if estimator is None else estimator)
    return model, mg, Safeguard(HeavyBall(model.parameters(), lr=lr, momentum=0.5), mg)


@pytest.mark.parametrize("warm_up", [0, 20])
def test_losses_with_randomness_of_their_own_never_let_a_refusal_out(warm_up: int) -> None:
    """The same batch then seems to rise where nothing has moved."""
    random.seed(0)
    model, _, guard = make(function=lambda m, b: random.choice([0.1, 1.0, 5.0]) * losses(m, b))
    schedule = torch.optim.lr_scheduler.LambdaLR(guard.optimizer, lambda t: float(t >= warm_up))
    for batch in batches(8):
        guard.multigradient.backward(batch)
        guard.optimizer.step()
        schedule.step()
    assert torch.isfinite(flat(model)).all()


@pytest.mark.parametrize("name", ["recursive", "filtered"])
def test_rows_in_place_are_dropped_when_a_step_is_taken_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that stays uses its batch's own gradient, until the next anchor."""
    monkeypatch.setattr(store, "STAGED_ENTRIES", 0)
    x, y = X.float(), Y.float()
    model = nn.Linear(3, 2)
    mg = MultiGradient(model, losses, Recursive([(x, y)], 100) if name == "recursive" else Filtered())
    guard = Safeguard(torch.optim.SGD(model.parameters(), lr=0.01), mg)
    feed = zip(x.split(4), y.split(4), strict=True)
    for _ in range(5):
        guard.multigradient.backward(next(feed))
        guard.optimizer.step()
    with torch.no_grad():
        model.weight += 1e9  # a step that has gone wrong
    last = next(feed)
    guard.multigradient.backward(last)
    assert guard.taken_back > 0
    for s, row in enumerate(mg.rows()):
        (own,) = torch.autograd.grad(losses(model, last)[s], [model.weight])
        assert torch.allclose(row["weight"], own, rtol=1e-4, atol=1e-4)
    assert (guard.suspended > 0) == (name == "recursive")  # until the next anchor
    for batch in feed:
        guard.optimizer.step()
        guard.multigradient.backward(batch)
    assert losses(model, (x, y)).max() < 10


def test_settling_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step was to be an anchor, which met NaN and is skipped: its rows are gone."""
    monkeypatch.setattr(store, "STAGED_ENTRIES", 0)
    pieces = 0

    def spoilt(m: nn.Module, b: Any) -> Tensor:
        nonlocal pieces
        pieces += bool(pieces)
        return losses(m, b) * (torch.nan if pieces > 3 else 1.0)

    def spoil(told: Any) -> None:
        nonlocal pieces
        pieces = int(told.step == 4)

    options: dict[str, Any] = {"batch_size": 8, "period": 4, "steps": 5, "anchor_batch": 8, "on_nonfinite": "skip"}
    result = fit(network(), spoilt, (X, Y), method="stimulus", lr=0.01, callbacks=[spoil], **options)
    assert (result.steps, result.skipped) == (5, 1)


def test_an_error_while_settling_changes_nothing() -> None:
    calls = 0

    def failing(m: nn.Module, b: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("mine")
        return losses(m, b)

    model, mg, guard = make(lr=100.0, function=failing)
    guard.multigradient.backward((X[:8], Y[:8]))
    guard.optimizer.step()
    before = flat(model).clone(), len(guard.optimizer.state), mg.samples, mg.gradients, guard.taken_back
    calls = 0
    with pytest.raises(RuntimeError, match="mine"):
        guard.settle((X[8:16], Y[8:16]))
    after = flat(model), len(guard.optimizer.state), mg.samples, mg.gradients, guard.taken_back
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_parameters_that_are_not_finite_are_put_back_at_once(value: float) -> None:
    model, _, guard = make()
    feed = batches(2)
    for _ in range(4):
        guard.multigradient.backward(next(feed))
        guard.optimizer.step()
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = value
    guard.multigradient.backward(next(feed))
    assert torch.isfinite(flat(model)).all()
    assert guard.taken_back == 1
    assert guard.rollback.scale >= SHORTEN


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also in a process that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
@pytest.mark.parametrize(("lr", "at"), [(0.01, 3), (100.0, 2)])
def test_a_signal_at_the_end_of_a_step_leaves_all_of_it(lr: float, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(strikes: bool) -> Any:
        model, mg, guard = make(lr=lr)
        whole, calls = mg.objective.write_gradients, 0

        def strike(direction: Any, **options: Any) -> None:
            nonlocal calls
            whole(direction, **options)
            calls += 1
            if strikes and calls == at:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(mg.objective, "write_gradients", strike)
        for k, batch in enumerate(batches()):
            if k == at - 1:
                if strikes:
                    with pytest.raises(KeyboardInterrupt):
                        guard.multigradient.backward(batch)
                else:
                    guard.multigradient.backward(batch)
                break
            guard.multigradient.backward(batch)
            guard.optimizer.step()
        return flat(model).clone(), mg.t, mg.samples, mg.gradients, guard.taken_back, guard.state_dict()

    cut, whole = run(True), run(False)
    assert torch.equal(cut[0], whole[0])
    assert cut[1:] == whole[1:]


def test_a_finished_run_that_is_resumed_ends_as_it_did(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "stimulus", "lr": 30.0, "batch_size": 8, "steps": 1, "checkpoint": tmp_path}
    first = fit(network(), losses, (X, Y), **options)
    again = fit(network(), losses, (X, Y), resume=True, **options)
    assert first.taken_back > 0  # the only step, judged at the end
    assert (again.losses, again.gradients, again.taken_back) == (first.losses, first.gradients, first.taken_back)


def test_an_optimizer_that_the_guard_does_not_know_is_noticed() -> None:
    model, mg, _ = make(lr=1e-3)
    other = torch.optim.SGD(model.parameters(), lr=1e-3)
    mg.backward((X[:8], Y[:8]))
    other.step()
    with pytest.warns(StimulusWarning, match="attach it to the optimizer that trains the model") as caught:
        mg.backward((X[8:16], Y[8:16]))
    assert caught[0].filename == __file__
    other.step()
    mg.backward((X[:8], Y[:8]))  # once is enough


def test_a_skipped_step_is_not_followed_by_the_guard() -> None:
    model, mg, guard = make(lr=0.01)
    mg.policy.policy = "skip"
    for batch in batches():
        mg.backward(batch)
        guard.optimizer.step()
    guard.rollback.scale = 0.5
    before, kept = guard.state_dict(), flat(model).clone()
    assert mg.backward((torch.full((8, 3), torch.nan, dtype=X.dtype), Y[:8])).skipped
    guard.optimizer.step()
    assert torch.equal(flat(model), kept)
    assert guard.state_dict() == before


def test_optimizers_that_cannot_be_guarded_are_refused() -> None:
    model, mg, _ = make()
    with pytest.raises(InvalidOption, match="but LBFGS evaluates the loss itself"):
        Safeguard(torch.optim.LBFGS(model.parameters()), mg)
    with pytest.raises(InvalidOption, match="optimizer must hold parameters of the model"):
        Safeguard(torch.optim.SGD(network().parameters(), lr=0.1), mg)


def test_the_rate_that_was_taken_is_in_the_history() -> None:
    options: dict[str, Any] = {"batch_size": 8, "steps": 12}
    result = fit(network(), losses, (X, Y), method="stimulus", lr=30.0, **options)
    assert result.history["lr"][0] == 30.0
    assert min(result.history["lr"]) < 0.5 * 30.0 * 0.25  # steps were taken back
    plain = fit(network(), losses, (X, Y), method="smgd", lr=0.01, **options)
    assert plain.history["lr"] == [0.01] * 12
    auto = fit(network(), losses, (X, Y), method="auto", lr="auto", **options)
    assert auto.history["lr"][0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_recursion_is_not_followed_far_by_an_optimizer_whose_steps_do_not_get_shorter(seed: int) -> None:
    """Adam's steps are as long where d is small; what the recursion then adds to d is mostly its own error."""
    ends = {}
    for guarded in (True, False):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 2))
        generator = torch.Generator().manual_seed(1 + seed)
        x = torch.randn(512, 5, generator=generator)
        y = torch.stack([3 * x[:, 0] + x[:, 1], x[:, 2] - 2 * x[:, 3]], 1) + 0.3 * torch.randn(
            512, 2, generator=generator
        )

        def squares(m: nn.Module, b: Any) -> Tensor:
            return (m(b[0]) - b[1]).square().mean(0)

        mg = MultiGradient(model, squares, Recursive([(x, y)], 32))
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
        if guarded:
            Safeguard(optimizer, mg)
        start = squares(model, (x, y)).max().item()
        for k in range(300):
            rows = slice(16 * k % 512, 16 * k % 512 + 16)
            mg.backward((x[rows], y[rows]))
            optimizer.step()
        ends[guarded] = squares(model, (x, y)).max().item()
    assert ends[True] < min(start, 0.3 * ends[False])  # over five seeds 0.14 at most
