"""Anchors: what is iterable again, and the adaptive batch by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stimulus_moo import (
    AdaptiveBatch,
    Full,
    InvalidBatch,
    InvalidOption,
    MultiGradient,
    Page,
    Recursive,
    StimulusError,
)
from stimulus_moo.anchors import FullAnchor, FullPass, Spread, as_anchor
from stimulus_moo.data.sources import as_source
from tests.harness import cut, data, jacobian, round_trip, same, stored_rows, train, two_heads, two_losses, vector

X = torch.arange(40.0).reshape(20, 2)


def adaptive(dataset: Any = X, **options: Any) -> AdaptiveBatch:
    return AdaptiveBatch(dataset, **({"epsilon": 0.1, "sigma2": 1.0} | options))


# Full anchors


def test_an_anchor_is_anything_that_can_be_iterated_again() -> None:
    batches = [X[:3], X[3:]]
    assert isinstance(as_anchor(batches), FullAnchor)
    anchor = as_anchor(batches)
    assert [len(b) for b in anchor.batches()] == [len(b) for b in anchor.batches()] == [3, 17]
    assert as_anchor(anchor) is anchor


@pytest.mark.parametrize(
    ("anchor", "message"),
    [
        ((b for b in [X]), "iterable more than once, found generator, which is exhausted after one pass"),
        (iter([X]), "iterable more than once, found list_iterator"),
        (3, "an iterable of batches .* found int"),
        (X, "an iterable of batches .* found Tensor"),
        ({"x": X}, "an iterable of batches .* found dict"),
        ("data", "an iterable of batches .* found str"),
        (None, "an iterable of batches .* found NoneType"),
    ],
)
@pytest.mark.parametrize("estimator", [Full, lambda a: Recursive(a, 3), lambda a: Page(a, 0.5)])  # all that have one
def test_anchors_that_cannot_work(estimator: Any, anchor: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        estimator(anchor)


def test_taking_a_loader_as_an_anchor_does_not_touch_it() -> None:
    class Counting(DataLoader[Any]):
        started = 0

        def __iter__(self) -> Any:
            type(self).started += 1
            return super().__iter__()

    before = torch.get_rng_state()
    Recursive(Counting(TensorDataset(X), shuffle=True), period=3)
    assert Counting.started == 0  # its workers would start
    assert torch.equal(torch.get_rng_state(), before)  # and it would draw a seed


def test_a_full_pass_covers_the_source_in_order() -> None:
    source = as_source(X)
    passes = FullPass(source, 8)  # type: ignore[arg-type]
    assert [len(batch) for batch in passes] == [8, 8, 4]
    assert torch.equal(torch.cat(list(passes)), X)


# |N| by hand


@pytest.mark.parametrize(
    ("options", "window", "terms", "size"),
    [
        ({"sigma2": 1.0, "epsilon": 0.1}, 0.0, 0, 10),  # no gamma yet: c_epsilon sigma^2 / epsilon
        ({"sigma2": 1.01, "epsilon": 0.1}, 0.0, 0, 11),  # ceil
        ({"sigma2": 1.0, "epsilon": 0.1, "c_epsilon": 0.5}, 0.0, 0, 5),
        ({"sigma2": 1.0, "epsilon": 1e-3}, 0.0, 0, 20),  # n
        ({"sigma2": 1.0, "epsilon": 0.1}, 4.0, 2, 4),  # gamma = 2: c_gamma sigma^2 / gamma = 4
        ({"sigma2": 1.0, "epsilon": 0.1, "c_gamma": 9.0}, 4.0, 2, 5),
        ({"sigma2": 1.0, "epsilon": 0.1}, 1e-9, 2, 10),
        ({"sigma2": 1.0, "epsilon": 0.1}, 0.0, 2, 10),  # gamma = 0 asks for everything, epsilon for 10
        ({"sigma2": 1.0, "epsilon": 0.1}, 1e9, 2, 1),  # at least one sample
        ({"sigma2": 0.0, "epsilon": 0.1}, 4.0, 2, 1),
    ],
)
def test_sizes_by_hand(options: dict[str, float], window: float, terms: int, size: int) -> None:
    anchor = adaptive(**options)
    anchor.window, anchor.terms = window, terms
    assert anchor.size() == size
    assert sum(len(batch) for batch in anchor.batches()) == size


def test_gamma_is_the_mean_square_since_the_last_anchor_it_included() -> None:
    anchor = adaptive()
    assert anchor.gamma is None
    for sq_norm, anchored in [(9.0, True), (1.0, False), (2.0, False)]:
        anchor.record(sq_norm, anchored=anchored)
    assert anchor.gamma == pytest.approx(12.0 / 3)
    anchor.record(5.0, anchored=True)
    anchor.record(1.0, anchored=False)
    assert anchor.gamma == pytest.approx(6.0 / 2)


def test_gamma_with_momentum_discounts_by_alpha_squared() -> None:
    anchor = adaptive(momentum=0.5)
    for sq_norm, anchored in [(16.0, True), (4.0, False), (2.0, False)]:
        anchor.record(sq_norm, anchored=anchored)
    # alpha^(t-i) d_i: (1/4 * 16 ... ) = 0.5^4 * 16 + 0.5^2 * 4 + 2, over q = 3
    assert anchor.gamma == pytest.approx((1.0 + 1.0 + 2.0) / 3)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_sizes_along_a_run_follow_the_directions(momentum: float) -> None:
    columns = data(60)
    anchor = AdaptiveBatch(columns, epsilon=0.001, sigma2=0.05, momentum=momentum)
    mg = MultiGradient(two_heads(), two_losses, Page(anchor, 0.3, seed=2))
    window: list[float] = []
    sizes = []
    for batch in cut(columns, 4) * 2:
        drawn = mg.samples
        step = mg.backward(batch)
        if step.anchored:
            factors = [(momentum or 1.0) ** (2 * (len(window) - 1 - i)) for i in range(len(window))]
            gamma = sum(f * d for f, d in zip(factors, window, strict=True)) / len(window) if window else None
            bounds = [0.05 / 0.001, 60.0] + ([8.0 * 0.05 / gamma] if gamma else [])
            sizes.append(math.ceil(min(bounds)))
            assert mg.samples - drawn == sizes[-1]
            window = []
        window.append(float(step.sq_norm))
        with torch.no_grad():
            for p in mg.objective.parameters:
                assert p.grad is not None
                p -= 0.05 * p.grad
    assert len(sizes) > 5
    assert len(set(sizes)) > 2


# The draw


def test_the_draw_is_without_replacement_and_changes_between_anchors() -> None:
    anchor = adaptive(torch.arange(20.0), sigma2=1.2, micro_batch=5)
    first, second = torch.cat(list(anchor.batches())), torch.cat(list(anchor.batches()))
    assert len(first) == len(set(first.tolist())) == 12
    assert sorted(first.tolist()) != sorted(second.tolist())
    assert [len(batch) for batch in anchor.batches()] == [5, 5, 2]


def test_the_draw_is_uniform() -> None:
    anchor = adaptive(torch.arange(10), sigma2=0.3)
    counts = torch.zeros(10)
    for _ in range(2000):
        counts[torch.cat(list(anchor.batches()))] += 1
    # each sample is in 3 of 10 draws: binomial with standard deviation sqrt(2000 * 0.3 * 0.7) = 20.5, five of them
    assert (counts - 600).abs().max() < 5 * 20.5


def test_seeds_decide_the_draw_and_not_the_global_random_state() -> None:
    def drawn(seed: int) -> list[float]:
        return torch.cat(list(adaptive(torch.arange(20.0), seed=seed).batches())).tolist()

    first = drawn(3)
    torch.manual_seed(99)
    assert drawn(3) == first
    assert drawn(4) != first
    before = torch.get_rng_state()
    drawn(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_all_samples_are_the_full_gradient() -> None:
    columns = data(23)
    model = two_heads()
    anchor = AdaptiveBatch(columns, epsilon=1e-9, sigma2=1.0, micro_batch=7)
    mg = MultiGradient(model, two_losses, Recursive(anchor, period=5))
    mg.backward(cut(columns, 4)[0])
    torch.testing.assert_close(stored_rows(mg), jacobian(model, two_losses, columns), rtol=0, atol=1e-12)
    assert (mg.samples, mg.gradients) == (23, 23)


# sigma2="auto"


class Shift(nn.Module):
    """Two losses whose per-sample gradients are x - a_j and 3 (x - a_j)."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))


def shift_losses(model: Shift, a: Tensor) -> tuple[Tensor, Tensor]:
    loss = (model.x - a).square().sum(dim=1).mean() / 2
    return loss, 3 * loss


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_sigma2_is_estimated_from_the_pieces_of_an_anchor(micro_batch: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    a = 2.0 * torch.randn(4000, 50, generator=generator, dtype=torch.float64)
    anchor = AdaptiveBatch(a, epsilon=1e-9, micro_batch=10)
    mg = MultiGradient(Shift(50), shift_losses, Full(anchor), micro_batch=micro_batch)
    assert anchor.variance is None
    mg.backward()
    # of the sum under equal weights, 2 (x - a_j): 4 times the variance of a_j, which is 4 * 50 = 200. With 200 pairs
    # the estimate has the relative standard deviation sqrt(2 / (50 * 200)) = 1.4%, and without replacement no bias
    assert anchor.variance == pytest.approx(4 * float(a.var(dim=0).sum()), rel=0.05)


def test_the_pilot_is_part_of_the_draw_and_counted() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(500, 3, generator=generator, dtype=torch.float64)
    seen: list[Tensor] = []

    def losses(model: Shift, batch: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(batch)
        return shift_losses(model, batch)

    anchor = AdaptiveBatch(a, epsilon=0.3, micro_batch=32)
    assert anchor.size() == 32  # the pilot
    mg = MultiGradient(Shift(3), losses, Recursive(anchor, period=5))
    mg.backward()
    samples = torch.cat(seen)
    assert [len(batch) for batch in seen[:4]] == [8, 8, 8, 8]
    assert 32 < len(samples) == mg.samples == mg.gradients < 500
    assert len(samples.unique(dim=0)) == len(samples)
    pilot = [batch.mean(0) for batch in seen[:4]]
    spread = 4 * 4 * ((pilot[0] - pilot[1]).square().sum() + (pilot[2] - pilot[3]).square().sum()) / 2
    assert len(samples) == math.ceil(float(spread) / 0.3)
    torch.testing.assert_close(stored_rows(mg)[0], -samples.mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_a_tiny_micro_batch_still_learns_the_variance(micro_batch: int) -> None:
    anchor = AdaptiveBatch(torch.randn(50, 3, dtype=torch.float64), epsilon=1e-3, micro_batch=micro_batch)
    MultiGradient(Shift(3), shift_losses, Full(anchor)).backward()
    assert anchor.variance is not None
    assert anchor.variance > 1.0


def test_an_estimate_of_zero_is_not_the_last_one() -> None:
    a = torch.ones(50, 3, dtype=torch.float64)
    anchor = AdaptiveBatch(a, epsilon=0.1, micro_batch=8)
    mg = MultiGradient(Shift(3), shift_losses, Full(anchor))
    mg.backward()
    assert anchor.variance == 0.0
    a.copy_(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    mg.backward()
    assert anchor.variance is not None
    assert anchor.variance > 0.0


def test_one_sample_has_no_variance_to_estimate() -> None:
    anchor = AdaptiveBatch(torch.ones(1, 3, dtype=torch.float64), epsilon=0.1)
    mg = MultiGradient(Shift(3), shift_losses, Full(anchor))
    mg.backward()
    mg.backward()
    assert (anchor.variance, mg.samples) == (None, 2)


def test_sparse_gradients_have_a_variance() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    anchor = AdaptiveBatch(torch.arange(4), epsilon=1e-3, micro_batch=4)
    MultiGradient(table, lambda m, i: (m(i).square().mean(),), Full(anchor)).backward()
    assert anchor.variance is not None
    assert anchor.variance > 0.0


def estimate(a: Tensor, **options: Any) -> float:
    anchor = AdaptiveBatch(a, epsilon=1e-9, micro_batch=16, **options)
    MultiGradient(Shift(a.shape[1]), shift_losses, Full(anchor)).backward()
    assert anchor.variance is not None
    return anchor.variance


def test_a_few_huge_gradients_do_not_spoil_sigma2() -> None:
    a = torch.randn(1024, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    typical = 4 * float(a.var(dim=0).sum())
    assert estimate(a) == pytest.approx(typical, rel=0.1)
    a[[3, 500]] *= 1e6
    assert 4 * float(a.var(dim=0).sum()) > 1e8 * typical
    # at most 2 of 8 groups are spoilt, and count for 3 times the median each
    assert 0.8 * typical < estimate(a) < 1.8 * typical


def test_where_most_samples_are_alike_the_others_count() -> None:
    assert Spread(16, (*(0.0,) * 7, 32.0)).variance() == 2.0


def test_sigma2_is_that_of_the_sum_under_the_last_weights() -> None:
    """Weights (1, 0) make the noise of the second objective, nine times as large, irrelevant."""
    a = torch.randn(2048, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    anchor = AdaptiveBatch(a, epsilon=1e-9, micro_batch=16)
    mg = MultiGradient(Shift(30), shift_losses, Full(anchor), lambda gramian: torch.tensor([1.0, 0.0]))
    mg.backward()
    assert anchor.variance == pytest.approx(4 * float(a.var(dim=0).sum()), rel=0.1)  # equal weights before any
    mg.backward()
    assert anchor.variance == pytest.approx(float(a.var(dim=0).sum()), rel=0.1)


def test_epsilon_auto_keeps_the_noise_of_an_anchor_below_a_share_of_gamma() -> None:
    a = torch.randn(100_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a += 10.0
    anchor = AdaptiveBatch(a, epsilon="auto", micro_batch=32)
    mg = MultiGradient(Shift(3), shift_losses, Full(anchor))
    mg.backward()
    assert mg.samples == 32  # the pilot alone
    assert anchor.gamma is not None
    assert anchor.variance is not None
    assert anchor.size() == max(2, math.ceil(8 * anchor.variance / anchor.gamma)) < 32
    with torch.no_grad():
        mg.objective.model.x += a.mean(0)
    for _ in range(4):
        mg.backward()  # at the solution: the closer, the larger the anchors
    assert anchor.size() > 1000


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, "automatic"])
def test_a_wrong_epsilon_is_refused(epsilon: Any) -> None:
    with pytest.raises(InvalidOption, match="epsilon must "):
        AdaptiveBatch(torch.ones(5, 2), epsilon=epsilon)


def test_without_an_epsilon_nothing_would_bound_an_anchor_on_a_stream() -> None:
    with pytest.raises(InvalidOption, match="epsilon='auto' needs a data set with an end, found a stream"):
        AdaptiveBatch(iter(torch.ones(5, 2)), epsilon="auto")


def test_batches_between_anchors_keep_sigma2_up_to_date() -> None:
    a = torch.randn(64, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    anchor = AdaptiveBatch(a, epsilon=1e-9, micro_batch=8)
    mg = MultiGradient(Shift(40), shift_losses, Recursive(anchor, period="auto", share=0.01))
    mg.backward()
    before = anchor.variance
    assert before == pytest.approx(4 * 40, rel=0.4)
    for _ in range(80):
        assert not mg.backward(a[:32] * 3).anchored  # nine times the variance, and weights (1, 0)
    assert anchor.variance == pytest.approx(9 * 40, rel=0.4)


def test_a_fixed_sigma2_stays_as_it_is() -> None:
    anchor = AdaptiveBatch(torch.ones(5, 2), epsilon=0.1, sigma2=2.0)
    anchor.observe(100.0)
    anchor.learn(Spread(3, (5.0,) * 8))
    assert anchor.variance == 2.0


def test_spreads_of_any_dealing_add_up() -> None:
    found = [float(value) for value in range(1, 20)]
    whole = Spread()
    parts = [Spread(), Spread()]
    for pair, value in enumerate(found):
        whole = whole.add(pair, value)
        parts[pair % 2] = parts[pair % 2].add(pair, value)
    summed = Spread(
        parts[0].pairs + parts[1].pairs, tuple(x + y for x, y in zip(parts[0].sums, parts[1].sums, strict=True))
    )
    assert summed == whole
    assert whole.variance() == pytest.approx(np.mean([np.mean(found[group::8]) for group in range(8)]))
    assert Spread().variance() is None


# Streams


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        for _ in count():
            yield torch.randn(3, generator=generator, dtype=torch.float64)


def test_for_a_stream_n_is_infinite() -> None:
    anchor = AdaptiveBatch(Endless(), epsilon=1e-3, sigma2=2.5)
    assert anchor.size() == 2500
    stream = torch.stack([x for x, _ in zip(Endless(), range(35), strict=False)])
    anchor = AdaptiveBatch(iter(Endless()), epsilon=0.1, sigma2=3.5, micro_batch=10)
    model = Shift(3)
    mg = MultiGradient(model, shift_losses, Full(anchor))
    mg.backward()
    assert model.x.grad is not None
    torch.testing.assert_close(model.x.grad, -stream.mean(0), rtol=1e-12, atol=1e-14)
    assert mg.samples == 35


def test_a_stream_resumes_where_it_was(tmp_path: Any) -> None:
    def build() -> MultiGradient:
        anchor = AdaptiveBatch(Endless(), epsilon=0.1, micro_batch=6)
        return MultiGradient(Shift(3), shift_losses, Recursive(anchor, period=2))

    batches = [torch.randn(4, 3, dtype=torch.float64) for _ in range(8)]
    whole = build()
    path = train(whole, batches)
    first = build()
    train(first, batches[:5])
    second = build()
    second.objective.model.load_state_dict(first.objective.model.state_dict())
    second.load_state_dict(round_trip(first.state_dict(), tmp_path))
    assert torch.equal(train(second, batches[5:]), path[5:])
    assert second.samples == whole.samples


def test_an_estimate_that_fails_half_way_is_forgotten() -> None:
    """The pilot sets sigma^2 before the anchor is finished; a failure later must take it back to unknown."""
    calls = []

    def losses(model: Shift, batch: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(batch))
        if len(calls) == 6:
            raise OSError("late")
        return shift_losses(model, batch)

    a = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    anchor = AdaptiveBatch(a, epsilon=0.05, micro_batch=16)
    mg = MultiGradient(Shift(3), losses, Full(anchor))
    before = mg.state_dict()
    with pytest.raises(OSError, match="late"):
        mg.backward()
    assert anchor.variance is None
    assert same(mg.state_dict(), before)
    mg.backward()
    other = MultiGradient(Shift(3), shift_losses, Full(AdaptiveBatch(a, epsilon=0.05, micro_batch=16)))
    other.backward()
    assert torch.equal(vector(mg.objective.model), vector(other.objective.model))
    assert same(mg.state_dict(), other.state_dict())


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0, found 0.0"),
        ({"epsilon": None}, "epsilon must be a finite number, found None"),
        ({"sigma2": -1.0}, "sigma2 must be a finite number of at least 0, found -1.0"),
        ({"sigma2": "automatic"}, "sigma2 must be a number >= 0 or 'auto', found 'automatic'"),
        ({"c_gamma": 0}, "c_gamma must be a finite number above 0, found 0"),
        ({"c_epsilon": math.nan}, "c_epsilon must be a finite number, found nan"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), found 1.0"),
        ({"momentum": -0.1}, "momentum must lie in .*, found -0.1"),
        ({"micro_batch": 0}, "micro_batch must be a positive integer, found 0"),
        ({"seed": -1}, "seed must be an integer .*, found -1"),
        ({"seed": "a"}, "seed must be an integer .*, found 'a'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        adaptive(**options)


def test_bad_data_sets() -> None:
    for dataset in (3, [], (X, X[:3])):
        with pytest.raises(InvalidBatch) as caught:
            adaptive(dataset)
        assert isinstance(caught.value, StimulusError)
