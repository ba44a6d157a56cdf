"""What is held in memory: said beforehand, and kept in other types and places on request."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from stimulus_moo import (
    Filtered,
    Fixed,
    InvalidOption,
    MemoryEstimate,
    MiniBatch,
    MultiGradient,
    Recursive,
    Safeguard,
    StateMismatch,
    Storm,
    Tracking,
)
from stimulus_moo._engine.storage import add_rounded
from stimulus_moo.estimators import Estimator
from tests.harness import cut, data, everything, two_heads, two_losses

COLUMNS = data(24, dtype=torch.float32)
BATCHES = cut(COLUMNS, 6) * 4


def build(**options: Any) -> MultiGradient:
    return MultiGradient(two_heads(dtype=torch.float32), two_losses, Recursive([COLUMNS], period=5), **options)


def trained(mg: MultiGradient, steps: int = 12) -> Tensor:
    optimizer = torch.optim.SGD(mg.objective.model.parameters(), lr=0.05)
    for batch in BATCHES[:steps]:
        mg.backward(batch)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in mg.objective.model.parameters()])


class TestEstimate:
    def test_before_the_first_step_a_batch_tells_all(self) -> None:
        mg = build()
        before = everything(mg)
        found = mg.memory_estimate(BATCHES[0])
        after = everything(mg)
        assert before.keys() == after.keys()
        assert mg.t == mg.samples == 0
        trunk, head = 25 * 4, 6 * 4  # bytes
        assert found.rows == found.staging == 2 * trunk + 2 * head
        assert found.previous == trunk + 2 * head
        assert found.gradients == found.previous
        assert found.total == found.rows + found.staging + found.previous + found.gradients + found.transient

    def test_without_a_batch_it_is_the_most_it_can_be(self) -> None:
        found = build().memory_estimate(objectives=2)
        assert found.rows == 2 * (25 + 12) * 4

    def test_after_a_step_nothing_is_needed(self) -> None:
        mg = build()
        expected = mg.memory_estimate(BATCHES[0])
        mg.backward(BATCHES[0])
        assert mg.memory_estimate() == expected

    def test_it_is_what_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for entries in (1 << 22, 0):
            monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", entries)
            mg = build()
            estimate = mg.memory_estimate(BATCHES[0])
            trained(mg)
            store = mg.store
            held = [rows for rows in (store.rows, store.spare) if rows is not None]
            kept = sum(b.matrix.numel() * b.matrix.element_size() for rows in held for b in rows.blocks)
            assert kept == estimate.rows + estimate.staging
            assert store.previous is not None
            assert sum(x.numel() * x.element_size() for x in store.previous) == estimate.previous

    def test_under_kept_weights_one_row_is_kept(self) -> None:
        point = (25 + 12) * 4  # bytes
        for options in ({"weighting": Fixed()}, {"reweigh": "anchor", "gramian": "sketch"}):
            mg = build(**options)
            found = mg.memory_estimate(BATCHES[0])
            assert (found.rows, found.staging, found.previous, found.gradients) == (point,) * 4
            trained(mg)
            held = [row for row in (mg.store.rows, mg.store.spare) if row is not None]
            assert sum(part.numel() * 4 for row in held for part in row.row(0).values()) == found.staging
        exact = build(reweigh="anchor").memory_estimate(BATCHES[0])
        assert exact.rows == build().memory_estimate(BATCHES[0]).rows
        assert exact.staging == point

    def test_the_memory_of_a_kept_step_does_not_grow_with_objectives(self) -> None:
        model = nn.Linear(100, 100)
        for options in ({"weighting": Fixed()}, {"reweigh": 7, "gramian": "sketch"}):
            mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), MiniBatch(), **options)  # type: ignore[arg-type]
            few, many = (mg.memory_estimate(objectives=s) for s in (2, 100))
            assert (few.rows, few.staging) == (many.rows, many.staging)

    def test_an_estimator_without_memory_needs_less(self) -> None:
        mg = MultiGradient(two_heads(), two_losses, MiniBatch())
        found = mg.memory_estimate(data(6))
        assert (found.staging, found.previous) == (0, 0)

    @pytest.mark.parametrize("objectives", [None, 0, -1, 1.5])
    def test_it_needs_to_know_how_many(self, objectives: Any) -> None:
        with pytest.raises(InvalidOption, match="objectives"):
            build().memory_estimate(objectives=objectives)

    def test_it_reads_well(self) -> None:
        assert str(MemoryEstimate(3, 2**20, 0, 2**20, 2**21, 2**19)).startswith("4.5 MiB for 3 objectives: rows 1.0,")


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """Leave what is imported out of garbage collection: a full one then takes milliseconds instead of half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def peak(function: Callable[[], object]) -> int:
    """Return the peak of the sum of all allocations and releases, in bytes."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        function()
    events = [event for event in traced.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes))


X = torch.randn(4, 700, generator=torch.Generator().manual_seed(0))
WIDTHS = {"small": 120, "wide": 500}  # of layers with few activations; rows of two such layers are staged or not
ESTIMATED: dict[str, Callable[[Tensor], Estimator]] = {
    "MiniBatch": lambda x: MiniBatch(),
    "Recursive": lambda x: Recursive([x], 2),
    "Storm": lambda x: Storm(0.1),
    "Tracking": lambda x: Tracking(0.5),
    "Filtered": lambda x: Filtered(probe=1),
}


#: steps that differentiate the one loss lambda . F, by estimator
KEPT: list[tuple[str, dict[str, Any]]] = [
    *((name, {"reweigh": 2}) for name in ("MiniBatch", "Storm", "Filtered")),
    ("Recursive", {"reweigh": "anchor"}),
    *((name, {"weighting": Fixed()}) for name in ("MiniBatch", "Recursive")),
    ("MiniBatch", {"reweigh": 2, "gramian": "sketch"}),
    ("Recursive", {"reweigh": "anchor", "gramian": "sketch"}),
]
HALF = {"rows_dtype": torch.bfloat16}
CASES: list[tuple[str, str, str, dict[str, Any], bool]] = [
    *((name, size, engine, {}, False) for name in ESTIMATED for size in WIDTHS for engine in ("rowwise", "batched")),
    *(("Recursive", size, engine, HALF, False) for size in WIDTHS for engine in ("rowwise", "batched")),
    *((name, "wide", "rowwise", {}, True) for name in ("Recursive", "Filtered")),
    *((name, size, "rowwise", options, False) for name, options in KEPT for size in WIDTHS),
    *(("Recursive", "wide", "batched", options, False) for _, options in KEPT if "anchor" in options.values()),
    ("Recursive", "wide", "rowwise", {"reweigh": "anchor", **HALF}, False),
    ("Recursive", "wide", "rowwise", {"reweigh": "anchor", "micro_batch": 2}, False),
    ("MiniBatch", "wide", "rowwise", {"weighting": Fixed(), "micro_batch": 2}, False),
]


def described(case: tuple[str, str, str, dict[str, Any], bool]) -> str:
    name, size, engine, options, guard = case
    shown = ["fixed" if key == "weighting" else f"{key}={value}" for key, value in options.items()]
    return "-".join([name, size, engine, *shown, *(["guard"] if guard else [])])


def layers(size: str) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor], Tensor]:
    """Return the model of a size, its losses and its data."""
    width = WIDTHS[size]

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = model(x)[:, : 2 if size == "small" else 4].square().mean(0)
        return found

    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)), losses, X[:, :width]


@cache
def peak_of_losses(size: str) -> int:
    """Return what the losses allocate by themselves."""
    model, losses, x = layers(size)
    return peak(lambda: losses(model, x))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize(("name", "size", "engine", "options", "guard"), CASES, ids=map(described, CASES))
def test_the_estimate_bounds_the_measured_peak(
    name: str, size: str, engine: str, options: dict[str, Any], guard: bool
) -> None:
    model, losses, x = layers(size)
    mg = MultiGradient(model, losses, ESTIMATED[name](x), engine=engine, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if guard:
        Safeguard(optimizer, mg)
    estimate = mg.memory_estimate(x).total

    def train() -> None:
        for _ in range(3):
            mg.backward(x)
            optimizer.step()

    measured = peak(train) - peak_of_losses(size)
    assert measured <= estimate <= 1.25 * measured


class TestStorage:
    def test_rows_in_another_type_or_place(self) -> None:
        expected = trained(build())
        assert {part.dtype for row in build(rows_dtype=torch.float64).rows() for part in row.values()} == set()
        double = build(rows_dtype=torch.float64)
        torch.testing.assert_close(trained(double), expected, rtol=1e-4, atol=1e-5)
        assert {part.dtype for row in double.rows() for part in row.values()} == {torch.float64}
        torch.testing.assert_close(trained(build(rows_device="cpu")), expected, rtol=1e-4, atol=1e-5)
        half = build(rows_dtype=torch.bfloat16)
        torch.testing.assert_close(trained(half), expected, rtol=0.1, atol=0.05)
        assert {part.dtype for row in half.rows() for part in row.values()} == {torch.bfloat16}
        assert half.memory_estimate().rows * 2 == build().memory_estimate(BATCHES[0]).rows
        for parameter in half.objective.parameters:
            assert parameter.grad is not None
            assert parameter.grad.dtype == torch.float32

    def test_runs_in_bfloat16_are_equal_and_resume(self) -> None:
        assert torch.equal(trained(build(rows_dtype=torch.bfloat16)), trained(build(rows_dtype=torch.bfloat16)))
        mg = build(rows_dtype=torch.bfloat16)
        trained(mg, 7)
        fresh = build(rows_dtype=torch.bfloat16)
        fresh.objective.model.load_state_dict(mg.objective.model.state_dict())
        fresh.load_state_dict(mg.state_dict())
        for batch in BATCHES[7:11]:
            assert torch.equal(mg.backward(batch).sq_norm, fresh.backward(batch).sq_norm)

    def test_a_state_of_another_type_is_refused(self) -> None:
        mg = build(rows_dtype=torch.bfloat16)
        trained(mg, 3)
        with pytest.raises(StateMismatch, match=r"is of torch.bfloat16, this model needs torch.float32"):
            build().load_state_dict(mg.state_dict())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rows_dtype": torch.int8}, "rows_dtype must be None, torch.bfloat16, .* found torch.int8"),
            ({"rows_dtype": "half"}, "rows_dtype must be None, torch.bfloat16, .* found 'half'"),
            ({"rows_device": "moon"}, "rows_device must be a device such as 'cpu', found 'moon'"),
            ({"rows_device": 3.5}, "rows_device must be a device such as 'cpu', found 3.5"),
        ],
    )
    def test_what_cannot_be(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidOption, match=message):
            build(**options)


class TestRounding:
    def test_small_terms_are_kept_on_average(self) -> None:
        target = torch.full((20_000,), 3.0, dtype=torch.bfloat16)
        for _ in range(50):
            add_rounded(target, torch.full((20_000,), -0.001), 1.0)
        assert abs(float(target.float().mean()) - 2.95) < 0.002  # three standard errors of the mean are 0.001
        nearest = torch.full((20_000,), 3.0, dtype=torch.bfloat16)
        for _ in range(50):
            nearest.add_(torch.full((20_000,), -0.001))
        assert float(nearest.float().mean()) == 3.0

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_what_is_not_finite_stays_so(self, value: float) -> None:
        target = torch.zeros(3, dtype=torch.bfloat16)
        add_rounded(target, torch.tensor([1.0, value, 1.0]), 1.0)
        assert torch.isfinite(target).tolist() == [True, False, True]

    def test_what_fits_is_exact(self) -> None:
        target = torch.tensor([1.0, -2.0, 0.0], dtype=torch.bfloat16)
        add_rounded(target, torch.tensor([0.5, 0.25, 0.0]), 2.0)
        assert target.tolist() == [2.0, -1.5, 0.0]

    def test_the_global_random_state_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        add_rounded(torch.zeros(3, dtype=torch.bfloat16), torch.rand(3, generator=torch.Generator()), 1.0)
        assert torch.equal(before, torch.get_rng_state())


def test_wide_models_stream_within_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gradient is held while the next one is taken: rows never exist as a whole."""
    monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", 0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    alive: list[int] = []
    from stimulus_moo._engine.rows import Rows

    whole = Rows.add_one

    def watching(self: Rows, objective: int, i: int, gradient: Tensor, weight: float) -> None:
        whole(self, objective, i, gradient, weight)
        alive.append(sum(p.grad is not None for p in model.parameters()))

    monkeypatch.setattr(Rows, "add_one", watching)
    mg = MultiGradient(model, lambda m, x: m(x).square().mean(0)[:3], MiniBatch(), engine="rowwise")
    mg.backward(torch.randn(5, 8))
    assert alive == [0] * (3 * 8)
