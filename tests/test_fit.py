"""fit: data handling, stopping, evaluation, callbacks, checkpoints."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, random_split

from stimulus_moo import (
    METHODS,
    Fixed,
    InvalidBatch,
    InvalidOption,
    MissingDependency,
    StateMismatch,
    fit,
    pareto_stationarity,
)
from tests.harness import same

N = 100
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = torch.stack([X.sum(1), X[:, 0] - X[:, 1]], dim=1)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def losses(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return (model(x) - y).square().mean(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step take exactly one second."""
    ticks = itertools.count()
    monkeypatch.setattr("stimulus_moo.training.run.perf_counter", lambda: float(next(ticks)))


def train(**changes: Any) -> Any:
    options = {"method": "stimulus-m", "lr": 0.05, "steps": 30, "progress": False, **changes}
    return fit(
        options.pop("model", None) or model(), options.pop("losses", losses), options.pop("data", (X, Y)), **options
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_lowers_both_losses(method: str) -> None:
    start = losses(model(), (X, Y))
    result = train(method=method, steps=50)
    assert all(after < before for after, before in zip(result.losses, start.tolist(), strict=True))
    assert result.stopped == "steps"
    assert len(result.history) == result.steps == 50


def test_batch_and_period_default_to_the_root_of_n() -> None:
    result = train(steps=11)
    assert result.history["anchored"] == [True] + [False] * 9 + [True]
    assert result.samples == 2 * N + 9 * 10
    assert result.gradients == 2 * N + 9 * 20


def test_every_batch_is_full_and_an_epoch_sees_no_sample_twice() -> None:
    seen: list[list[int]] = []

    def spy(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch[2].tolist())
        return losses(model, batch[:2])

    train(losses=spy, data=(X, Y, torch.arange(N)), method="smgd", batch_size=30, steps=6)
    batches = seen[:6]
    assert [len(batch) for batch in batches] == [30] * 6
    assert len({i for batch in batches[:3] for i in batch}) == 90
    assert batches[:3] != batches[3:]


@dataclass
class Pairs:
    x: Tensor
    y: Tensor


class MapStyle(Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i], Y[i]


def by_name(model: nn.Module, batch: Any) -> Tensor:
    return losses(model, (batch["x"], batch["y"]) if isinstance(batch, dict) else (batch.x, batch.y))


@pytest.mark.parametrize(
    ("data", "loss"),
    [
        (TensorDataset(X, Y), losses),
        ({"x": X, "y": Y}, by_name),
        (Pairs(X, Y), by_name),
        (MapStyle(), losses),
        ([(x, y) for x, y in zip(X, Y, strict=True)], losses),
        (random_split(TensorDataset(X, Y), [N, 0])[0].dataset, losses),
    ],
    ids=["tensor-dataset", "dict", "dataclass", "map-style", "list", "split"],
)
def test_every_kind_of_data_gives_the_same_run(data: Any, loss: Any) -> None:
    reference, other = train(), train(data=data, losses=loss)
    assert torch.allclose(reference.model.weight, other.model.weight, atol=1e-7)
    assert reference.gradients == other.gradients


def test_a_random_split_is_indexed_not_collated(monkeypatch: pytest.MonkeyPatch) -> None:
    part, _ = random_split(TensorDataset(X, Y), [80, 20], generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(TensorDataset, "__getitem__", None)  # fetching a single sample would fail
    result = train(data=part, steps=12)
    assert result.history["samples"][0] == 80


def test_stops_at_the_gradient_budget() -> None:
    result = train(steps=None, gradients=500)
    assert result.stopped == "gradients"
    assert result.history["gradients"][-2] < 500 <= result.gradients


def test_stops_at_the_budget_of_passes() -> None:
    result = train(steps=None, passes=500)
    assert result.stopped == "passes"
    assert result.history["passes"][-2] < 500 <= result.passes == 2 * result.gradients


def test_stops_after_seconds_of_steps(clock: None) -> None:
    result = train(steps=None, seconds=7.5, evaluate_every=2)
    assert (result.stopped, result.steps, result.seconds) == ("seconds", 8, 8.0)
    assert result.history["seconds"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


@pytest.mark.parametrize(
    ("limits", "stopped"),
    [
        ({"steps": 5, "passes": 1000, "seconds": 9}, "steps"),
        ({"steps": 9, "passes": 300, "seconds": 9}, "passes"),  # 200 for the anchor, then 40 a step
        ({"steps": 9, "passes": 1000, "seconds": 4}, "seconds"),
        ({"gradients": 100, "passes": 1000}, "gradients"),
    ],
)
def test_the_first_limit_ends_the_run(limits: dict[str, Any], stopped: str, clock: None) -> None:
    assert train(**limits).stopped == stopped


def test_seconds_go_on_after_a_resume(clock: None, tmp_path: Path) -> None:
    train(steps=3, checkpoint=tmp_path)
    resumed = train(steps=None, seconds=5, checkpoint=tmp_path, resume=True)
    assert (resumed.stopped, resumed.steps, resumed.seconds) == ("seconds", 5, 5.0)
    assert train(steps=None, seconds=5, checkpoint=tmp_path, resume=True).steps == 5


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 2 * (2 * N + 9 * 20)),  # two anchors, nine steps at two points, two objectives
        ({"reweigh": "anchor"}, 2 * 2 * N + 9 * 20),  # both anchors solve
        ({"method": "smgd"}, 2 * 11 * 10),
        ({"method": "smgd", "reweigh": 5}, 11 * 10 + 3 * 10),  # steps 0, 5 and 10 solve
        ({"method": "smgd", "reweigh": 5, "gramian": "sketch"}, 11 * 10 + 3 * 2 * 10),
        ({"method": "scalarisation"}, 11 * 10),
        ({"method": "vr-scalarisation"}, 2 * N + 9 * 20),
    ],
)
def test_passes_are_s_for_a_multi_gradient_and_one_for_a_weighted_loss(options: dict[str, Any], passes: int) -> None:
    result = train(steps=11, **options)
    assert result.passes == result.history["passes"][-1] == result.history.last()["passes"] == passes


def test_stops_at_the_tolerance() -> None:
    result = train(steps=2000, tolerance=1e-6, lr=0.1)
    assert result.stopped == "tolerance"
    assert result.stationarity <= 1e-6
    assert result.steps < 2000
    assert result.stationarity == pytest.approx(pareto_stationarity(result.model, losses, [(X, Y)]), rel=1e-3)


@pytest.mark.slow
def test_a_thousand_steps_without_any_limit() -> None:
    assert train(steps=None, method="smgd", batch_size=2, evaluation=[(X, Y)]).steps == 1000


def test_evaluations_are_recorded_and_not_counted() -> None:
    plain, evaluated = train(), train(evaluate_every=7)
    assert plain.gradients == evaluated.gradients
    assert torch.equal(plain.model.weight, evaluated.model.weight)
    marked = [row["step"] for row in evaluated.history if "stationarity" in row]
    assert marked == [6, 13, 20, 27, 29]
    last = list(evaluated.history)[-1]
    assert last["full_losses"] == pytest.approx(losses(evaluated.model, (X, Y)).tolist(), rel=1e-6)


def test_history_becomes_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = train(evaluate_every=10).frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 30
    assert {"step", "samples", "gradients", "passes", "seconds", "loss_0"} <= set(frame.columns)
    assert {"loss_0", "loss_1", "weight_1", "sq_norm", "full_loss_0"} <= set(frame.columns)
    assert frame["stationarity"].notna().sum() == 3


def test_a_frame_without_pandas_is_refused_kindly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingDependency, match=r"stimulus-moo\[lab\]"):
        train(steps=1).frame()


def test_callbacks_see_every_step_and_may_stop() -> None:
    seen = []

    def stop(progress: Any) -> bool:
        seen.append((progress.step, progress.record["gradients"] == progress.multigradient.gradients))
        return progress.step == 5

    result = train(callbacks=[stop])
    assert seen == [(i, True) for i in range(1, 6)]
    assert (result.stopped, result.steps) == ("callback", 5)


def test_scheduler_optimizer_and_weighting_take_their_place() -> None:
    rates = []
    result = train(
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5),
        weighting=Fixed([0.25, 0.75]),
        callbacks=[lambda p: rates.append(p.optimizer.param_groups[0]["lr"])],
    )
    assert rates[0] == 0.05
    assert rates[-1] == pytest.approx(0.05 / 8)
    assert all(row["weights"] == [0.25, 0.75] for row in result.history)


def test_random_clock_picks_an_iterate() -> None:
    path = [model().weight.detach().clone()]
    result = train(mu=0.5, callbacks=[lambda p: path.append(p.model.weight.detach().clone())])
    assert 0 <= result.picked_at < 30
    assert torch.equal(result.picked["weight"], path[result.picked_at])


SOME = ("smgd", "stimulus-m", "stimulus-m+", "moco+", "page-moo", "scalarisation-adam")  # each kind of state
AROUND = ("stimulus-m+", "page-moo")  # stopped after the first anchor, before the second and after it, too


@pytest.mark.parametrize(
    ("method", "stop"),
    [
        *((method, 17) for method in SOME),
        *(pytest.param(method, 17, marks=pytest.mark.slow) for method in METHODS if method not in SOME),
        *(pytest.param(method, stop, marks=pytest.mark.slow) for method in AROUND for stop in (1, 9, 10)),
    ],
)
def test_resume_equals_no_interruption(method: str, stop: int, tmp_path: Path) -> None:
    def noisy(model: nn.Module, batch: Any) -> Tensor:
        return losses(model, (nn.functional.dropout(batch[0], 0.2), batch[1]))

    common = {"method": method, "losses": noisy, "mu": 0.3, "evaluate_every": 5}
    straight = train(**common)
    train(**common, steps=stop, checkpoint=tmp_path)
    resumed = train(**common, checkpoint=tmp_path, resume=True)
    assert torch.equal(straight.model.weight, resumed.model.weight)
    assert straight.picked_at == resumed.picked_at
    assert same([straight.picked, straight.losses], [resumed.picked, resumed.losses])
    for name in ("samples", "gradients", "passes"):
        assert getattr(straight, name) == getattr(resumed, name)
    for a, b in zip(straight.history, resumed.history, strict=True):
        if a["step"] == stop - 1:  # an evaluation at the end of the first part is not part of the trajectory
            for key in ("stationarity", "full_losses"):
                a.pop(key, None)
                b.pop(key, None)
        assert a.pop("seconds") > 0
        assert b.pop("seconds") > 0
        assert a == b


def test_resume_starts_where_there_is_nothing_yet(tmp_path: Path) -> None:
    assert train(checkpoint=tmp_path / "new", resume=True).steps == 30
    assert train(checkpoint=tmp_path / "new", resume=True).steps == 30  # complete: nothing left to do


def test_an_old_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    train(checkpoint=tmp_path, steps=3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InvalidOption, match="resume=True"):
        train(checkpoint=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "word"),
    [({"lr": 0.1}, "lr"), ({"method": "smgd"}, "method"), ({"seed": 5}, "seed"), ({"data": (X[:50], Y[:50])}, "n=")],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(change: Any, word: str, tmp_path: Path) -> None:
    train(checkpoint=tmp_path, steps=3, batch_size=5, period=5)
    fresh = model()
    with pytest.raises(StateMismatch, match=word):
        train(**{"model": fresh, "batch_size": 5, "period": 5, **change}, checkpoint=tmp_path, resume=True)
    assert torch.equal(fresh.weight, model().weight)


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(3)
        while True:
            x = torch.randn(3, generator=generator)
            yield x, torch.stack([x.sum(), x[0] - x[1]])


def test_an_endless_stream_trains_with_the_plus_variant(tmp_path: Path) -> None:
    common = {
        "data": Endless(),
        "method": "stimulus+",
        "batch_size": 8,
        "period": 8,
        "epsilon": 0.5,
        "anchor_batch": 32,
    }
    straight = train(**common, steps=40)
    assert math.isnan(straight.stationarity)
    assert straight.losses == []
    assert losses(straight.model, (X, Y)).sum() < 0.5 * losses(model(), (X, Y)).sum()
    train(**common, steps=13, checkpoint=tmp_path)
    resumed = train(**{**common, "data": Endless()}, steps=40, checkpoint=tmp_path, resume=True)
    assert torch.equal(straight.model.weight, resumed.model.weight)


class Noisy(IterableDataset):
    """Targets that no model can fit, so that losses stall."""

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(4)
        while True:
            x = torch.randn(3, generator=generator)
            yield x, x.sum() + torch.randn(2, generator=generator)


def kept_between(costs: list[tuple[int, int]], first: int, last: int) -> int:
    """The first step within a range that keeps its weights, after one that does; S = 2 passes tell a solve."""
    kept = [passes == gradients for gradients, passes in costs]
    return next(t for t in range(first, last) if kept[t - 1] and kept[t])


@pytest.mark.parametrize("stream", [True, False])
def test_auto_resumes_within_kept_weights_before_and_after_its_switch(
    stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with its own learning rate; a stream needs no period and has the rule of Storm in place of anchors."""
    monkeypatch.setattr("stimulus_moo.estimators.adaptive.LOOK", 20)
    monkeypatch.setattr("stimulus_moo.estimators.adaptive.SIGNAL", math.inf)  # however large the gradient is
    monkeypatch.setattr("stimulus_moo.training.limits.ANCHOR_SHARE", 1.0)
    steps, recursive = 120, []

    def watch(told: Any) -> None:
        recursive.append(told.multigradient.estimator.recursive)

    def run(**options: Any) -> Any:
        noise = torch.randn(N, 2, generator=torch.Generator().manual_seed(4))
        data = Noisy() if stream else (X, noise)
        return train(
            **{"data": data, "method": "auto", "lr": "auto", "batch_size": 8, "steps": steps, "guard": False, **options}
        )

    straight = run(callbacks=[watch])
    switch = recursive.index(True)
    totals = [(0, 0), *((record["gradients"], record["passes"]) for record in straight.history)]
    costs = [(c - a, d - b) for (a, b), (c, d) in itertools.pairwise(totals)]
    assert 20 <= switch < 30
    assert all(recursive[switch:])
    assert set(costs[:switch]) == {(8, 8), (8, 16)}  # one loss, and both where the weights are solved for
    if stream:
        assert set(costs[switch + 1 :]) == {(16, 16), (24, 32)}  # two points, and both losses at x_t
    else:
        assert set(costs[switch + 1 :]) == {(16, 16), (N, N), (N, 2 * N)}  # differences and anchors
    assert math.isnan(straight.stationarity) == stream
    for stop in (kept_between(costs, 10, switch), kept_between(costs, switch + 5, steps)):
        folder = tmp_path / str(stop)
        run(checkpoint=folder, callbacks=[lambda told, stop=stop: told.step == stop])
        resumed = run(checkpoint=folder, resume=True)
        assert torch.equal(straight.model.weight, resumed.model.weight)
        assert [record["weights"] for record in straight.history] == [r["weights"] for r in resumed.history]
        assert (straight.gradients, straight.passes) == (resumed.gradients, resumed.passes)


def test_pieces_bound_anchors_and_evaluations_too() -> None:
    sizes = []

    def watched(model: nn.Module, batch: Any) -> Tensor:
        sizes.append(len(batch[0]))
        return losses(model, batch)

    found = train(losses=watched, micro_batch=7, steps=12, evaluate_every=5)
    assert max(sizes) == 7
    assert found.losses == pytest.approx(train(steps=12, evaluate_every=5).losses, rel=1e-4)


def test_a_stream_needs_a_batch_size_and_a_period_where_one_is_used() -> None:
    with pytest.raises(InvalidOption, match="batch_size must be given for a stream, which has no length, found None"):
        train(data=Endless(), method="auto")
    with pytest.raises(InvalidOption, match="period must be given for a stream, which has no length, found None"):
        train(data=Endless(), method="stimulus+", batch_size=8)
    assert train(data=Endless(), method="smgd", batch_size=8, steps=3).steps == 3


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"method": "stimulos"}, "did you mean 'stimulus'"),
        ({"method": "autoo"}, "did you mean 'auto'.*known are mgd, .*auto, "),
        ({"lr": 0}, "lr must be a finite number above 0, or 'auto', found 0"),
        ({"lr": "fast"}, "lr must be a finite number above 0, or 'auto', found 'fast'"),
        ({"lr": "AUTO"}, "lr must be a finite number above 0, or 'auto', found 'AUTO'"),
        ({"lr": math.inf}, "lr must be a finite number above 0, or 'auto', found inf"),
        ({"steps": 0}, "steps must be a positive integer, found 0"),
        ({"gradients": -1}, "gradients"),
        ({"passes": 0}, "passes must be a positive integer, found 0"),
        ({"passes": 1.5}, "passes must be a positive integer, found 1.5"),
        ({"seconds": 0}, "seconds must be a finite number above 0, found 0"),
        ({"seconds": math.inf}, "seconds must be a finite number, found inf"),
        ({"seconds": "1m"}, "seconds must be a finite number, found '1m'"),
        ({"reweigh": 3}, "reweigh must be 1, 'anchor' or 'auto' with Recursive"),
        ({"reweigh": "anchor", "method": "smgd"}, "reweigh must be a positive integer or 'auto' with MiniBatch"),
        ({"gramian": "rough"}, "gramian must be one of 'exact', 'sketch', found 'rough'"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"batch_size": 101}, "at most the number of samples, 100, found 101"),
        ({"period": 0}, "period must be a positive integer or 'auto', found 0"),
        ({"period": "autoo"}, "period must be a positive integer or 'auto', found 'autoo'"),
        ({"momentum": 1.5}, r"momentum must lie in \[0, 1\), found 1.5"),
        ({"momentum": 1.0, "method": "stimulus"}, r"momentum must lie in \[0, 1\), found 1.0"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"betta": 0.5}, "did you mean 'beta'"),
        ({"data": Endless(), "method": "stimulus", "batch_size": 8, "period": 8}, r"\+ variants"),
        ({"data": Endless(), "method": "stimulus+"}, "batch_size must be given for a stream"),
    ],
)
def test_bad_options_are_named(change: dict[str, Any], match: str) -> None:
    fresh = model()
    with pytest.raises(InvalidOption, match=match):
        train(**{"model": fresh, **change})
    assert torch.equal(fresh.weight, model().weight)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(InvalidBatch, match="empty"):
        train(data=(X[:0], Y[:0]))


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(InvalidBatch, match="same length"):
        train(data=(X, Y[:7]))


def test_progress_is_silent_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    train(progress=None)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_progress_shows_losses_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    train(progress=True)
    shown = capsys.readouterr().err
    assert "STIMULUS-M" in shown
    assert "30/30" in shown


def test_resuming_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(checkpoint=tmp_path, steps=3)
    with caplog.at_level(logging.INFO, logger="stimulus_moo"):
        train(checkpoint=tmp_path, steps=5, resume=True)
    assert "at step 3" in caplog.text


# Hands-free


def test_the_guard_is_on_by_default_and_changes_nothing_while_nothing_fires() -> None:
    guarded, literal = train(lr=0.01), train(lr=0.01, guard=False)
    assert (guarded.alone, guarded.shortened, guarded.taken_back) == (0, 0, 0)
    assert torch.equal(guarded.model.weight, literal.model.weight)
    for run in (guarded, literal):
        assert len(run.history["seconds"]) == 30
    assert [{**row, "seconds": 0} for row in guarded.history] == [{**row, "seconds": 0} for row in literal.history]


@pytest.mark.slow
def test_a_step_size_far_too_long_trains_under_the_guard() -> None:
    result = train(lr=50.0, steps=200)
    assert result.taken_back > 0
    assert result.stationarity < 1e-3 * train(lr=1e-9, steps=1).stationarity


@pytest.mark.slow
@pytest.mark.parametrize("method", ["smgd", "moco", "moco+", "stimulus", "stimulus-m+", "page-moo-m", "auto"])
def test_a_step_size_is_found(method: str) -> None:
    result = train(lr="auto", method=method, steps=300)
    assert result.stationarity < 1e-3 * train(lr=1e-9, method=method, steps=1).stationarity
    assert result.method == method


@pytest.mark.slow
def test_a_period_is_for_recursive_methods_alone() -> None:
    for method in ("page-moo", "smgd", "filtered"):
        runs = [train(method=method, period=period) for period in (None, 5, "auto")]
        assert all(torch.equal(runs[0].model.weight, run.model.weight) for run in runs)
        assert all(runs[0].history["anchored"] == run.history["anchored"] for run in runs)
    assert runs[0].gradients != train(method="stimulus").gradients


def test_lr_is_ignored_beside_an_optimizer() -> None:
    runs = [train(optimizer=lambda p: torch.optim.SGD(p, lr=0.05), lr=lr) for lr in (0.01, 1e9)]
    assert torch.equal(runs[0].model.weight, runs[1].model.weight)


def test_every_method_finds_a_step_size() -> None:
    for name in METHODS:
        assert train(lr="auto", method=name, steps=2).history["lr"][-1] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "known"),
    [
        ({"steps": 100}, True),
        *(({"steps": None, **limit}, True) for limit in ({"gradients": 2000}, {"passes": 4000}, {"seconds": 100})),
        ({"steps": None}, False),
    ],
)
def test_a_rate_that_was_found_ends_in_nothing_where_the_end_is_known(
    limits: dict[str, Any], known: bool, clock: None
) -> None:
    rates = []

    def look(told: Any) -> bool:
        rates.append(told.optimizer.param_groups[0]["lr"])
        return len(rates) == 500

    train(lr="auto", method="filtered", tolerance=0.0, callbacks=[look], **limits)
    assert (rates[-1] < 0.1 * rates[-len(rates) // 4]) == known


@pytest.mark.parametrize(
    "options", [{"lr": 50.0}, {"lr": "auto", "method": "filtered"}, {"lr": "auto", "period": "auto"}]
)
@pytest.mark.parametrize("stop", [1, 13])
def test_hands_free_runs_resume_as_if_never_stopped(options: dict[str, Any], stop: int, tmp_path: Path) -> None:
    straight = train(**options)
    train(**options, callbacks=[lambda told: told.step == stop], checkpoint=tmp_path)
    resumed = train(**options, checkpoint=tmp_path, resume=True)
    assert torch.equal(straight.model.weight, resumed.model.weight)
    for name in ("gradients", "alone", "shortened", "taken_back"):
        assert getattr(straight, name) == getattr(resumed, name)
    with pytest.raises(StateMismatch, match="guard"):
        train(**options, guard=False, checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": "auto", "mu": 0.5}, "needs a number for lr"),
        ({"lr": "auto", "scheduler": lambda o: torch.optim.lr_scheduler.ConstantLR(o)}, "found a scheduler beside it"),
        ({"guard": 1}, "guard must be True or False"),
    ],
)
def test_hands_free_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        train(**options)


def counts_of_events(model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Two Poisson losses, which overflow after a step that is too long."""
    x, y = batch[:, :2], batch[:, 2:]
    rate = model(x)
    return (rate.exp() - y * rate)[:, 0].mean(), (rate.exp() - y * rate)[:, 1].mean()


def test_an_evaluation_on_the_way_leaves_the_judgement_to_the_guard() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 2, dtype=torch.float64)
    data = torch.cat([x, torch.poisson(x.exp().clamp(max=9))], 1)

    def run(**options: Any) -> Any:
        torch.manual_seed(1)
        model = nn.Linear(2, 2, dtype=torch.float64)
        return fit(model, counts_of_events, data, method="stimulus-m", lr=100.0, steps=30, progress=False, **options)

    plain, watched = run(), run(evaluate_every=1)
    assert plain.taken_back > 0
    assert (watched.losses, watched.taken_back) == (plain.losses, plain.taken_back)


def test_names_of_losses_outlive_a_finished_run(tmp_path: Path) -> None:
    def named(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"click": model(batch).square().mean(), "buy": (model(batch) - 1).square().mean()}

    options: Any = {"steps": 5, "evaluate_every": 5, "checkpoint": tmp_path / "run", "resume": True, "progress": False}
    data = torch.ones(16, 2)
    first = fit(nn.Linear(2, 1), named, data, **options)
    again = fit(nn.Linear(2, 1), named, data, **options)
    assert again.named_losses == first.named_losses
    assert set(again.named_losses) == {"click", "buy"}


def test_a_method_in_the_metric_of_another_optimizer_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    step = lambda parameters, settings: torch.optim.RMSprop(parameters, lr=settings.rate)  # noqa: E731
    monkeypatch.setitem(METHODS, "rms", dataclasses.replace(METHODS["auto"], name="rms", step=step))
    result = fit(nn.Linear(2, 2), lambda m, b: (m(b) - b).square().mean(0), torch.randn(64, 2), method="rms", steps=20)
    assert result.steps == 20
