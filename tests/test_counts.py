"""Missing labels: with ``counts``, every objective is the mean over its own samples, however batches are cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import (
    AdaptiveBatch,
    Estimator,
    Filtered,
    Fixed,
    Full,
    MiniBatch,
    MultiGradient,
    NonFiniteError,
    Page,
    Recursive,
    Storm,
    Tracking,
    estimator_error,
    fit,
    measure,
    pareto_stationarity,
)
from stimulus_moo._engine.observation import Observation
from stimulus_moo.errors import InvalidBatch, InvalidOption, StateMismatch
from stimulus_moo.safeguard.rollback import Rollback
from stimulus_moo.weightings.reweigh import WhenRising
from tests.database import BACKEND, STAGED_ENTRIES
from tests.harness import differing, everything
from tests.reference import counted
from tests.reference.counted import BETA, PERIOD, Rule, columns, counts, follow, losses, model, walk

STEPS = 7
Batch = counted.Batch


def pieces() -> list[Batch]:
    """An anchor in batches of unequal size, one of them without any label."""
    x, y = columns()
    return [(x[a:b], y[a:b]) for a, b in ((0, 2), (2, 9), (9, 30))]


def adaptive() -> AdaptiveBatch:
    """The full gradient, drawn at random."""
    return AdaptiveBatch(columns(), epsilon=1e-9, sigma2=1.0, micro_batch=7)


Case = tuple[Callable[[], Estimator], Rule, tuple[int, ...], int | str]
CASES: dict[str, Case] = {
    "mini-batch": (MiniBatch, counted.mini_batch, (), 1),
    "tracking": (lambda: Tracking(BETA), counted.tracking, (), 1),
    "storm": (lambda: Storm(BETA), counted.storm, (), 1),
    "full": (lambda: Full(pieces()), counted.mini_batch, tuple(range(STEPS)), 1),
    "recursive": (lambda: Recursive(pieces(), PERIOD), counted.recursive, (0, 3, 6), 1),
    "adaptive": (lambda: Recursive(adaptive(), PERIOD), counted.recursive, (0, 3, 6), 1),
    "page": (lambda: Page(pieces(), 0.0), counted.recursive, (0,), 1),
    "mini-batch, 3": (MiniBatch, counted.mini_batch, (), 3),
    "tracking, 3": (lambda: Tracking(BETA), counted.tracking, (), 3),
    "storm, 3": (lambda: Storm(BETA), counted.storm, (), 3),
    "recursive, anchor": (lambda: Recursive(pieces(), PERIOD), counted.recursive, (0, 3, 6), "anchor"),
    "adaptive, anchor": (lambda: Recursive(adaptive(), PERIOD), counted.recursive, (0, 3, 6), "anchor"),
}
WAYS: dict[str, dict[str, Any]] = {
    "rowwise": {"engine": "rowwise"},
    "rowwise, in pieces": {"engine": "rowwise", "micro_batch": 2},
    "batched, in pieces": {"engine": "batched", "micro_batch": 2},
    "in place, in pieces": {"engine": "rowwise", "micro_batch": 4},
}


def check(mg: MultiGradient, expected: list[counted.Told]) -> None:
    found = walk(mg, len(expected))
    for t, (ours, twin) in enumerate(zip(found, expected, strict=True)):
        assert torch.allclose(ours.point, twin.point, rtol=0, atol=1e-10), t
        assert torch.allclose(ours.weights, twin.weights, rtol=0, atol=1e-8), t
        assert ours.losses == pytest.approx(twin.losses, rel=1e-10, nan_ok=True), t


@cache
def twin(name: str) -> list[counted.Told]:
    _, rule, anchors, reweigh = CASES[name]
    solves = None
    if reweigh != 1:
        solves = (lambda t: t in anchors) if reweigh == "anchor" else (lambda t: t % 3 == 0)
    return follow(rule, STEPS, anchors=anchors, solves=solves)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_every_estimator_equals_its_twin(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way.startswith("in place"):
        monkeypatch.setattr(STAGED_ENTRIES, 0)
    estimator, _, _, reweigh = CASES[name]
    check(MultiGradient(model(), losses, estimator(), counts=counts, reweigh=reweigh, **WAYS[way]), twin(name))


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][3] != 1])
def test_a_sketch_of_few_parameters_is_exact(name: str) -> None:
    estimator, _, _, reweigh = CASES[name]
    options: dict[str, Any] = {"counts": counts, "reweigh": reweigh, "gramian": "sketch", "micro_batch": 2}
    check(MultiGradient(model(), losses, estimator(), **options), twin(name))


@pytest.mark.parametrize("anchor", ["full", "adaptive", "pilot"])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_fixed_weights_equal_the_twin(anchor: str, micro_batch: int | None) -> None:
    """The one loss lambda . F needs the totals of an anchor beforehand; a pilot cannot give them."""
    pilot = AdaptiveBatch(columns(), epsilon=1e-9, micro_batch=8)
    estimator = Recursive({"full": pieces(), "adaptive": adaptive(), "pilot": pilot}[anchor], PERIOD)
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    expected = follow(counted.recursive, STEPS, anchors=(0, 3, 6), fixed=weights)
    check(MultiGradient(model(), losses, estimator, Fixed(weights), counts=counts, micro_batch=micro_batch), expected)


def test_counters_count_samples() -> None:
    plain, own = (
        MultiGradient(model(), losses, Recursive(pieces(), PERIOD), counts=counts, reweigh=reweigh)
        for reweigh in (1, "anchor")
    )
    walk(plain, STEPS)
    walk(own, STEPS)
    assert (plain.samples, plain.gradients) == (own.samples, own.gradients) == (3 * 30 + 4 * 6, 3 * 30 + 2 * 4 * 6)
    assert plain.passes == 3 * plain.gradients
    assert own.passes == 3 * 3 * 30 + 2 * 4 * 6


@pytest.mark.parametrize("reweigh", [1, 3])
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_counts_of_the_size_change_no_bit(reweigh: int, micro_batch: int | None) -> None:
    def mean(model: nn.Module, batch: Batch) -> Tensor:
        return (torch.stack(model(batch[0]), dim=1) - batch[1].nan_to_num(0.0)).square().mean(0)

    def all_of_it(batch: Batch) -> list[int]:
        return [len(batch[0])] * 3

    paths = [
        walk(MultiGradient(model(), mean, Storm(0.3), reweigh=reweigh, micro_batch=micro_batch, counts=own), 6)
        for own in (None, all_of_it)
    ]
    for plain, own in zip(*paths, strict=True):
        assert torch.equal(plain.point, own.point)
        assert plain.losses == own.losses or micro_batch == 4


def test_a_head_without_labels_gets_no_gradient() -> None:
    for options in ({"engine": "rowwise"}, {"engine": "batched"}, {"reweigh": 5}):
        net = model()
        mg = MultiGradient(net, losses, MiniBatch(), counts=counts, **options)
        x, y = columns()
        step = mg.backward((x[2:8], y[2:8]))
        assert net.heads[2].weight.grad is None
        assert net.heads[0].weight.grad is not None
        assert step.weights[2] == 0
        assert step.losses.isnan().tolist() == [False, False, True]


def test_a_recursive_row_without_labels_stays_and_is_weighed() -> None:
    mg = MultiGradient(model(), losses, Recursive(pieces(), 100), counts=counts)
    optimizer = torch.optim.SGD(mg.objective.model.parameters(), lr=0.1)
    x, y = columns()
    mg.backward()
    rows = mg.rows()
    optimizer.step()
    step = mg.backward((x[2:8], y[2:8]))
    assert all(torch.equal(rows[2][name], part) for name, part in mg.rows()[2].items())
    assert not torch.equal(rows[0]["trunk.weight"], mg.rows()[0]["trunk.weight"])
    assert step.weights[2] > 0


def test_a_state_with_an_empty_row_loads() -> None:
    first, second = (MultiGradient(model(), losses, Storm(0.3), counts=counts) for _ in range(2))
    x, y = columns()
    first.backward((x[2:8], y[2:8]))
    assert not first.rows()[2]
    second.load_state_dict(first.state_dict())
    paths = [walk(mg, 3, rate=0.0) for mg in (first, second)]
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(*paths, strict=True))


def test_token_means() -> None:
    """Sequences of unequal length: the mean over the tokens of a batch is that of its pieces weighted by tokens."""
    torch.manual_seed(1)
    net = nn.Linear(3, 2, dtype=torch.float64)
    x, lengths = torch.randn(6, 5, 3, dtype=torch.float64), torch.tensor([1, 5, 2, 2, 4, 3])
    mask = torch.arange(5) < lengths[:, None]

    def token_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        x, mask = batch
        out = model(x)
        return out[..., 0][mask].square().mean(), out[:, -1, 1].exp().mean()  # over tokens, over sequences

    def token_counts(batch: Any) -> tuple[Tensor, int]:
        return batch[1].sum(), len(batch[0])

    whole, cut = (
        MultiGradient(net, token_losses, MiniBatch(), Fixed([0.5, 0.5]), counts=token_counts, micro_batch=size)
        for size in (None, 2)
    )
    expected = whole.backward((x, mask))
    gradient = net.weight.grad.clone()
    found = cut.backward((x, mask))
    assert torch.allclose(found.losses, expected.losses, rtol=1e-12)
    assert torch.allclose(net.weight.grad, gradient, rtol=1e-12)


def test_filtered_with_halves_trains() -> None:
    mg = MultiGradient(model(), losses, Filtered(), counts=counts)
    path = walk(mg, STEPS)
    assert mg.estimator.noise is not None
    assert mg.estimator.noise > 0
    assert path[-1].point.isfinite().all()


def test_measure_weighs_by_counts() -> None:
    net, (x, y) = model(), columns()
    rows, values = counted.masked_gradients(net, (x, y))
    found = measure(net, losses, pieces(), counts=counts)
    weights = counted.solve(rows)
    assert found.losses == pytest.approx(values, rel=1e-12)
    assert found.weights == pytest.approx(weights.tolist(), abs=1e-8)
    assert found.stationarity == pytest.approx(float((weights @ rows).square().sum()), rel=1e-9)
    assert found.samples == 30
    assert pareto_stationarity(net, losses, pieces(), counts=counts, micro_batch=3) == pytest.approx(found.stationarity)
    none = measure(net, losses, [(x[2:8], y[2:8])], counts=counts)
    assert none.weights[2] == 0
    assert none.losses[2] != none.losses[2]


def test_estimator_error_uses_the_counts() -> None:
    mg = MultiGradient(model(), losses, Recursive(pieces(), PERIOD), counts=counts)
    mg.backward()
    assert (estimator_error(mg, [columns()]) < 1e-20).all()


BAD: list[tuple[Any, str]] = [
    (3, "counts must return a sequence or a 1-D tensor of S numbers, found 3"),
    ([1, 2], r"counts must return one number per loss \(3\), found 2"),
    ([1, -1, 2], "finite numbers of at least 0, found -1 for objective 1"),
    ([1, 1, float("nan")], "found nan for objective 2"),
    (torch.tensor([1.0, torch.inf, 1.0]), "found inf for objective 1"),
    ([True, 1, 1], "found True for objective 0"),
    (["1", 1, 1], "found '1' for objective 0"),
    ([0, 0, 0], "counts returned 0 for all 3 objectives"),
    ([], "one number per loss"),
]


@pytest.mark.parametrize(("returned", "message"), BAD, ids=[str(k) for k in range(len(BAD))])
def test_invalid_counts_change_nothing(returned: Any, message: str) -> None:
    answer: list[Any] = []
    mg = MultiGradient(model(), losses, Storm(0.3), counts=lambda batch: answer[0] if answer else counts(batch))
    batch = counted.batches(3)[0]
    mg.backward(batch)
    before = everything(mg)
    answer.append(returned)
    with pytest.raises(InvalidBatch, match=message):
        mg.backward(batch)
    assert not differing(before, everything(mg))


def test_counts_must_be_a_function() -> None:
    for use in (
        lambda: MultiGradient(model(), losses, MiniBatch(), counts=3),  # type: ignore[arg-type]
        lambda: measure(model(), losses, [columns()], counts=3),  # type: ignore[arg-type]
        lambda: fit(model(), losses, columns(), lr=0.1, counts=3),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidOption, match="counts must be a function from a batch to S numbers or None, found 3"):
            use()


def test_the_first_call_checks_the_number_of_counts() -> None:
    mg = MultiGradient(model(), losses, MiniBatch(), counts=lambda batch: [1, 1])
    with pytest.raises(InvalidBatch, match=r"one number per loss \(3\), found 2"):
        mg.backward(columns())


def test_an_anchor_without_labels_is_refused() -> None:
    x, y = columns()
    for reweigh in (1, "anchor"):
        mg = MultiGradient(model(), losses, Recursive([(x[:1], y[:1]), (x[1:2], y[1:2])], 2), counts=counts)
        with pytest.raises(InvalidBatch, match="counts returned 0 for all 3 objectives"):
            mg.backward()
        assert reweigh


def test_nan_without_counts_points_to_counts() -> None:
    x, y = columns()
    with pytest.raises(NonFiniteError, match="if a batch may have no label for it, pass counts="):
        MultiGradient(model(), losses, MiniBatch()).backward((x[2:8], y[2:8]))


@pytest.mark.parametrize("reweigh", [1, 2])
def test_nan_of_a_loss_with_a_count_is_an_error(reweigh: int) -> None:
    mg = MultiGradient(model(), losses, MiniBatch(), counts=lambda batch: [1, 1, 1], reweigh=reweigh)
    x, y = columns()
    with pytest.raises(NonFiniteError, match="the loss of objective 2 is nan") as caught:
        mg.backward((x[2:8], y[2:8]))
    assert "counts=" not in str(caught.value)


def test_an_anchor_that_changes_is_refused_under_kept_weights() -> None:
    x, y = columns()

    class Changing:
        """Gives other samples at every pass."""

        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            return iter([(x[8:], y[8:])] if self.passes % 2 else [(x, y)])

    mg = MultiGradient(model(), losses, Recursive(Changing(), PERIOD), Fixed(), counts=counts)
    with pytest.raises(InvalidBatch, match="the anchor must give the same samples when it is iterated again"):
        mg.backward()


def run(**options: Any) -> Any:
    return fit(model(), losses, columns(), lr=0.05, steps=6, batch_size=8, period=3, counts=counts, **options)


@pytest.mark.parametrize("method", ["stimulus-m", "smgd", "stimulus-m+", "auto", "scalarisation"])
def test_fit_evaluates_with_counts(method: str) -> None:
    result = run(method=method, anchor_batch=7)
    expected = measure(result.model, losses, [columns()], counts=counts)
    assert result.losses == pytest.approx(expected.losses, rel=1e-10)
    assert result.stationarity == pytest.approx(expected.stationarity, rel=1e-8)


def test_fit_resumes_with_the_same_counts_only(tmp_path: Any) -> None:
    straight = run(reweigh="auto")
    run(reweigh="auto", checkpoint=tmp_path, callbacks=[lambda progress: progress.step == 4])
    other = {"counts": lambda batch: [1, 1, 1], "reweigh": "auto", "checkpoint": tmp_path, "resume": True}
    with pytest.raises(StateMismatch, match="the checkpoint was made with counts="):
        fit(model(), losses, columns(), lr=0.05, steps=6, batch_size=8, period=3, **other)
    again = run(reweigh="auto", checkpoint=tmp_path, resume=True)
    assert again.losses == straight.losses
    assert again.steps == 6


@pytest.mark.slow
def test_compiled_steps_equal_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with a count of 0 runs uncompiled, the others compiled."""
    monkeypatch.setattr(BACKEND, "aot_eager")

    def whole(model: nn.Module, batch: Batch) -> Tensor:
        known = batch[1].isfinite()
        errors = (torch.stack(model(batch[0]), dim=1) - batch[1].nan_to_num(0.0)) * known
        return errors.square().sum(0) / known.sum(0).clamp(min=1)

    mg = MultiGradient(model(), whole, Storm(BETA), counts=counts, engine="compiled")
    check(mg, twin("storm"))
    assert mg.engine == "compiled"


def test_rules_that_follow_losses_pass_over_missing_ones() -> None:
    """The level of a loss, in the safeguard and in reweigh='auto', is the mean of those values that there are."""
    nan = float("nan")
    rollback, rising = Rollback(), WhenRising()
    for k, values in enumerate(([1.0, nan], [1.0, nan], [2.0, 3.0], [2.0, nan])):
        seen = Observation(k, 1, 1, False, torch.tensor(values), torch.tensor(values), torch.ones(2).double())
        assert seen.decrease == 0.0
        assert not rollback.doubtful(seen)
        assert rollback.reason(seen) is None
        rollback.learn(seen, None)
        rising.learn(values, None, 4, solved=k == 0, anchored=False)
    assert rollback.level == pytest.approx([1.19, 3.0])
    assert rising.level == pytest.approx([1.19, 3.0])
    assert rising.mean == pytest.approx([2.0 / 3.0, 0.0], abs=0.1)
    Rollback().load_state_dict(rollback.state_dict())
    WhenRising().load_state_dict(rising.state_dict())


def test_memory_is_estimated_on_a_batch_without_labels() -> None:
    x, y = columns()
    mg = MultiGradient(model(), losses, MiniBatch(), counts=counts)
    assert mg.memory_estimate((x[2:8], y[2:8])).objectives == 3


def test_a_loss_without_a_count_may_be_a_constant() -> None:
    x, y = columns()
    for constant in (torch.tensor(0.0).double(), torch.zeros((), dtype=torch.float64, requires_grad=True)):
        for options in ({}, {"reweigh": 2}, {"engine": "batched"}):

            def own(model: nn.Module, batch: Batch, constant: Tensor = constant) -> list[Tensor]:
                found = zip(losses(model, batch), counts(batch), strict=True)
                return [value if count else constant for value, count in found]

            step = MultiGradient(model(), own, MiniBatch(), counts=counts, **options).backward((x[2:8], y[2:8]))
            assert step.losses.isnan().tolist() == [False, False, True]


@pytest.mark.parametrize("options", [{}, {"reweigh": 2}, {"weighting": Fixed(), "micro_batch": 3}])
def test_a_gradient_that_is_not_finite_names_its_objective(options: dict[str, Any]) -> None:
    """Also where only lambda . F is differentiated, and the losses before it are not part of the batch."""
    x, y = columns()

    def own(model: nn.Module, batch: Batch) -> list[Tensor]:
        first, second, third = losses(model, batch)
        return [third, first, second + (0 * second).sqrt() if trouble else second]

    def turned(batch: Batch) -> Tensor:
        return counts(batch)[[2, 0, 1]]

    trouble = False
    mg = MultiGradient(model(), own, MiniBatch(), counts=turned, **options)
    mg.backward((x[2:8], y[2:8]))
    trouble = True
    with pytest.raises(NonFiniteError, match="gradient of objective 2"):
        mg.backward((x[2:8], y[2:8]))
