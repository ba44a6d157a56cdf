"""The losses against their literal twins, their derivatives, and lists that tell nothing."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from stimulus_moo import InvalidBatch, InvalidLosses
from stimulus_moo.ranking import LOSSES, approx_ndcg_loss, lambda_loss, ndcg, pairs, ranknet_loss
from tests.ranking.twins import TWINS, informative

LENGTHS = [4, 0, 1, 7, 2, 13, 3]
EVERY_LOSS = pytest.mark.parametrize("name", list(LOSSES))


def draw(seed: int = 0, labels: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Ragged lists with an empty one, a single document, tied scores and tied grades; list 3 is all tied in label 1."""
    generator = torch.Generator().manual_seed(seed)
    rows = sum(LENGTHS)
    scores = torch.randn(rows, generator=generator, dtype=torch.float64)
    scores[7], scores[20] = scores[8], scores[21]
    grades = torch.randint(0, 4, (rows, labels), generator=generator).double()
    grades[5:12, 1:2] = 2.0
    grades[0:4, 2:3] = 0.0
    return scores, grades, torch.tensor(LENGTHS)


def twin(name: str, scores: Tensor, labels: Tensor, lengths: Tensor) -> list[float]:
    ends = [0, *itertools.accumulate(lengths.tolist())]
    totals = []
    for label in labels.T:
        total = 0.0
        for start, stop in itertools.pairwise(ends):
            grades = label[start:stop].tolist()
            if informative(grades):
                total += TWINS[name](scores[start:stop].tolist(), grades)
        totals.append(total / len(lengths))
    return totals


@EVERY_LOSS
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_literal_twin(name: str, seed: int) -> None:
    scores, labels, lengths = draw(seed)
    assert LOSSES[name](scores, labels, lengths).tolist() == pytest.approx(
        twin(name, scores, labels, lengths), rel=1e-12
    )


@pytest.mark.parametrize("k", [1, 3, 100])
def test_lambda_loss_equals_its_twin_at_every_cut(k: int) -> None:
    scores, labels, lengths = draw(9, labels=1)
    expected = sum(
        TWINS["lambdaloss"](s.tolist(), y[:, 0].tolist(), k)
        for s, y in zip(scores.split(LENGTHS), labels.split(LENGTHS), strict=True)
        if informative(y[:, 0].tolist())
    )
    assert float(lambda_loss(scores, labels, lengths, k)) == pytest.approx(expected / len(LENGTHS), rel=1e-12)


@EVERY_LOSS
def test_derivative_is_that_of_the_value(name: str) -> None:
    scores, labels, lengths = draw(1)
    # apart from ties and crossings, where the lambda loss jumps
    scores = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0)).double() / 7
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: LOSSES[name](s, labels, lengths), (scores,), atol=1e-7)


@EVERY_LOSS
def test_lists_that_tell_nothing_have_no_loss_and_no_gradient_and_still_count(name: str) -> None:
    scores = torch.tensor([0.3, -0.2, 1.0, 2.0, 5.0], requires_grad=True)
    nothing = torch.tensor([[0.0], [0.0], [3.0], [2.0], [2.0]])  # no relevant one; a single one; all tied; none
    lengths = torch.tensor([2, 1, 2, 0])
    (loss,) = LOSSES[name](scores, nothing, lengths)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert loss.item() == 0.0
    assert gradient.tolist() == [0.0] * 5

    some = torch.tensor([[1.0], [0.0], [3.0], [2.0], [2.0]])
    alone = LOSSES[name](scores[:2], some[:2], torch.tensor([2])).item()
    assert LOSSES[name](scores, some, lengths).item() == pytest.approx(alone / 4, rel=1e-6)


@EVERY_LOSS
def test_mean_over_batches_is_the_mean_over_all(name: str) -> None:
    scores, labels, lengths = draw(2)
    whole = LOSSES[name](scores, labels, lengths)
    first = LOSSES[name](scores[:12], labels[:12], lengths[:4])
    second = LOSSES[name](scores[12:], labels[12:], lengths[4:])
    torch.testing.assert_close((4 * first + 3 * second) / 7, whole, rtol=1e-12, atol=0)


@EVERY_LOSS
def test_large_scores_and_grades_stay_finite(name: str) -> None:
    scores = torch.tensor([1e4, -1e4, 0.0, 1e4], requires_grad=True)
    labels = torch.tensor([[0.0, 500.0], [4.0, 0.0], [1.0, 499.0], [0.0, 0.0]])
    losses = LOSSES[name](scores, labels, torch.tensor([4]))
    assert torch.isfinite(losses).all()
    for loss in losses:
        (gradient,) = torch.autograd.grad(loss, scores, retain_graph=True)
        assert torch.isfinite(gradient).all()


@EVERY_LOSS
def test_a_batch_of_empty_lists_is_zero(name: str) -> None:
    scores = torch.zeros(0, requires_grad=True)
    losses = LOSSES[name](scores, torch.zeros(0, 2), torch.tensor([0, 0]))
    assert losses.tolist() == [0.0, 0.0]
    assert losses.requires_grad


@EVERY_LOSS
def test_descent_along_the_gradient_puts_the_relevant_first(name: str) -> None:
    scores = torch.zeros(6, requires_grad=True)
    labels = torch.tensor([[0.0], [3.0], [1.0], [0.0], [0.0], [2.0]])
    lengths = torch.tensor([3, 3])
    for _ in range(200):
        (gradient,) = torch.autograd.grad(LOSSES[name](scores, labels, lengths).sum(), scores)
        scores = (scores - 0.5 * gradient).detach().requires_grad_()
    assert ndcg(labels[:, 0].numpy(), scores.detach().numpy(), [0, 0, 0, 1, 1, 1]) == 1.0


@EVERY_LOSS
def test_batched_backward_gives_the_same_rows(name: str) -> None:
    scores, labels, lengths = draw(3)
    scores.requires_grad_()
    losses = LOSSES[name](scores, labels, lengths)
    one_by_one = torch.stack([torch.autograd.grad(loss, scores, retain_graph=True)[0] for loss in losses])
    (together,) = torch.autograd.grad(losses, scores, torch.eye(3, dtype=torch.float64), is_grads_batched=True)
    torch.testing.assert_close(together, one_by_one, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["ranknet", "approx-ndcg", "lambdaloss"])
def test_blocks_of_pairs_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels, lengths = draw(4)
    scores.requires_grad_()
    whole = LOSSES[name](scores, labels, lengths)
    (gradient,) = torch.autograd.grad(whole.sum(), scores)
    monkeypatch.setattr(pairs, "_PAIRS", 20)
    cut = LOSSES[name](scores, labels, lengths)
    (cut_gradient,) = torch.autograd.grad(cut.sum(), scores)
    torch.testing.assert_close(cut, whole, rtol=1e-13, atol=0)
    torch.testing.assert_close(cut_gradient, gradient, rtol=1e-12, atol=1e-15)


def test_one_block_never_holds_more_than_its_share_of_pairs() -> None:
    lengths = torch.tensor([3000, 5, 2000])
    sizes = [partners.numel() for _, partners, _ in pairs.blocks(pairs.Segments(lengths, 5005))]
    assert max(sizes) <= 1 << 20
    assert sum(sizes) >= 3000**2 + 2000**2


def test_approximate_ndcg_nears_ndcg_as_the_temperature_falls() -> None:
    scores, labels, lengths = draw(5)
    scores = torch.arange(len(scores)).double() % 11  # no ties within a list, all gaps at least 1
    scores[14:27] = torch.randperm(13, generator=torch.Generator().manual_seed(0)).double()
    qid = torch.repeat_interleave(torch.arange(len(lengths)), lengths).numpy()
    exact = ndcg(labels.numpy(), scores.numpy(), qid, k=None, per_query=True)
    for s in range(3):
        parts = [g[:, s].unique().numel() > 1 for g in labels.split(LENGTHS) if len(g)]
        expected = (1 - exact[parts, s]).sum() / len(LENGTHS)
        found = approx_ndcg_loss(scores, labels[:, [s]], lengths, temperature=0.01).item()
        assert found == pytest.approx(expected, abs=1e-9)


def test_rho_sums_to_what_a_rank_loses() -> None:
    """1 - D(rank_i) is the sum of rho over the documents above i: the identity behind the lambda loss, cut at k."""
    for k in (1, 4, 30):
        discount = [1 / torch.log2(torch.tensor(1.0 + r)).item() if r <= k else 0.0 for r in range(1, 13)]
        rho = [0.0, *(a - b for a, b in itertools.pairwise(discount))]
        for rank in range(1, 12):
            assert sum(rho[rank - above] for above in range(1, rank)) == pytest.approx(1 - discount[rank - 1])


def test_second_derivatives_are_refused() -> None:
    scores, labels, lengths = draw(6)
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = ranknet_loss(scores * factor, labels, lengths).sum()
    (gradient,) = torch.autograd.grad(loss, factor, create_graph=True)
    with pytest.raises(InvalidLosses, match="first derivatives only"):
        torch.autograd.grad(gradient, factor)


def test_half_precision_scores_are_computed_in_float32() -> None:
    scores = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    loss = ranknet_loss(scores, torch.tensor([[1.0], [0.0]]), torch.tensor([2]))
    assert loss.dtype == torch.float32
    assert torch.autograd.grad(loss, scores)[0].dtype == torch.bfloat16


@EVERY_LOSS
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(InvalidBatch, match="scores \\[rows\\], labels \\[rows, K\\]"):
        LOSSES[name](torch.zeros(3), torch.zeros(3), torch.tensor([3]))
    with pytest.raises(InvalidBatch, match="add up to the number of rows, 3, found 2"):
        LOSSES[name](torch.zeros(3), torch.zeros(3, 1), torch.tensor([2]))
