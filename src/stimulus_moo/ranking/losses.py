r"""Ranking losses over ragged lists: K mean losses from one score per document and K labels.

Every loss is called ``loss(scores, labels, lengths)`` and returns K means over the queries of the batch, one per label:

.. code-block:: text

    f_s = (1/n) sum_j f_sj,    j a query, s a label

A query without information about a label (no document, one document, all grades equal) has f_sj = 0 and gradient 0. It
still counts in n, so that the mean over a batch is an unbiased estimate of the mean over all queries.

The forward pass computes the derivatives of all labels in closed form, so that each of the K backward passes of a
multi-gradient costs one product. Only first derivatives are available.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stimulus_moo import InvalidBatch, InvalidLosses
from stimulus_moo.options import positive_integer
from stimulus_moo.ranking.pairs import logistic_pairs, soft_rank_slopes, soft_ranks
from stimulus_moo.ranking.segments import Segments, discounts

#: Function from scores [rows], labels [rows, K] and lengths [queries] to K mean losses.
RankingLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


def softmax_loss(scores: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    r"""Return the softmax cross-entropy; the target is the labels divided by their sum.

    .. code-block:: text

        f_sj = - sum_i (y_i / sum_m y_m) log p_i,    p = softmax of the scores in the list

    Convex in the scores; for one relevant document it bounds its reciprocal rank (Bruch et al. 2019).

    >>> import torch
    >>> softmax_loss(torch.zeros(3), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 2.0]]), torch.tensor([3]))
    tensor([1.0986, 1.0986])
    """
    scores_, labels, segments = _open(scores, labels, lengths)
    total = segments.sums(labels)[segments.list]
    return _cross_entropy(scores, scores_, labels / total.clamp_min(torch.finfo(total.dtype).tiny), labels, segments)


def listnet_loss(scores: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    r"""Return ListNet's top-one cross-entropy (Cao et al. 2007): the target is the softmax of the labels.

    .. code-block:: text

        f_sj = - sum_i q_i log p_i,    q = softmax of the labels, p = softmax of the scores, both in the list

    Convex in the scores; the recommended first choice. Difference from the paper: lists with equal grades have loss 0
    instead of favouring equal scores.

    >>> import torch
    >>> listnet_loss(torch.tensor([1.0, 0.0]), torch.tensor([[1.0], [0.0]]), torch.tensor([2]))
    tensor([0.5822])
    """
    scores_, labels, segments = _open(scores, labels, lengths)
    return _cross_entropy(scores, scores_, segments.log_softmax(labels).exp(), labels, segments)


def ranknet_loss(scores: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    r"""Return RankNet's pairwise logistic loss (Burges et al. 2005), the mean over a query's ordered pairs.

    .. code-block:: text

        f_sj = mean over pairs with y_i > y_m of  log(1 + exp(s_m - s_i))

    The mean over pairs keeps the smoothness of f_sj independent of the list's length. Pairs are visited in blocks, so
    memory is bounded; time grows with the squared length.

    >>> import torch
    >>> ranknet_loss(torch.zeros(3), torch.tensor([[2.0], [1.0], [0.0]]), torch.tensor([3]))
    tensor([0.6931])
    """
    scores_, labels, segments = _open(scores, labels, lengths)
    values, slopes, pairs = logistic_pairs(scores_, labels, segments, lambda gap: (gap > 0).to(scores_))
    return _mean(scores, segments.sums(values), slopes, segments.sums(pairs), segments)


def approx_ndcg_loss(scores: Tensor, labels: Tensor, lengths: Tensor, temperature: float = 0.1) -> Tensor:
    r"""Return 1 - NDCG with smooth approximations of the ranks (Qin et al. 2010).

    .. code-block:: text

        f_sj = 1 - (1/ideal) sum_i (2^y_i - 1) / log2(1 + r_i),    r_i = 1 + sum_{m != i} sigmoid((s_m - s_i) / T)

    Args:
        scores, labels, lengths: as for every loss.
        temperature: T; smaller is closer to NDCG and harder to train.

    >>> import torch
    >>> approx_ndcg_loss(torch.tensor([9.0, 0.0]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([2]))
    tensor([0.0000, 0.3691])
    """
    scores_, labels, segments = _open(scores, labels, lengths)
    gains, ideal = segments.gains(labels)
    ideal = torch.where(segments.differ(labels), ideal, 0.0)
    ranks = soft_ranks(scores_, segments, temperature)[:, None]
    logs = torch.log1p(ranks)
    values = ideal - segments.sums(gains * math.log(2.0) / logs)
    bends = _over(gains * math.log(2.0) / ((1.0 + ranks) * logs.square()), ideal[segments.list])
    slopes = soft_rank_slopes(scores_, bends, segments, temperature)
    return _mean(scores, _over(values, ideal), slopes, torch.ones_like(ideal), segments)


def lambda_loss(scores: Tensor, labels: Tensor, lengths: Tensor, k: int = 10) -> Tensor:
    r"""Return the LambdaLoss for NDCG@k (NDCG-Loss2 of Wang et al. 2018).

    .. code-block:: text

        f_sj = (1/ideal@k) sum over y_i > y_m of  rho(|rank_i - rank_m|) (2^y_i - 2^y_m) log2(1 + exp(s_m - s_i))
        rho(d) = D(d) - D(d + 1),    D(r) = 1 / log2(1 + r) for r <= k, else 0

    With the step function in place of the logarithm, and up to a term without the margins, this sum is 1 - NDCG@k:
    1 - D(rank_i) is the sum of rho over the documents above i. The cutoff of D at k is our addition; k = inf gives
    the published loss. Ranks are those of the current scores (ties in the order of the rows) and constant in the
    derivative, so the loss is discontinuous where two scores cross: variance reduction, which relies on smoothness,
    helps less.

    Args:
        scores, labels, lengths: as for every loss.
        k: cutoff of NDCG.

    >>> import torch
    >>> lambda_loss(torch.zeros(2), torch.tensor([[0.0], [1.0]]), torch.tensor([2]), k=1)
    tensor([1.])
    """
    scores_, labels, segments = _open(scores, labels, lengths)
    k = positive_integer("k", k)
    gains, ideal = segments.gains(labels, k)
    ranks = segments.ranks(scores_)
    longest = int(lengths.max()) if len(lengths) else 0
    table = discounts(torch.arange(longest + 1, device=scores.device), k).to(scores_)
    rho = torch.cat([table.new_zeros(1), table[:-1] - table[1:]]) / math.log(2.0)  # rho(d) at index d
    values, slopes, _ = logistic_pairs(
        scores_, gains, segments, torch.relu, lambda block, others: rho[(ranks[block, None] - ranks[others]).abs()]
    )
    ideal = torch.where(segments.differ(labels), ideal, 0.0)
    return _mean(scores, segments.sums(values), slopes, ideal, segments)


#: Every loss by its name in ``MultiLabelRanker``.
LOSSES: dict[str, RankingLoss] = {
    "softmax": softmax_loss,
    "listnet": listnet_loss,
    "ranknet": ranknet_loss,
    "approx-ndcg": approx_ndcg_loss,
    "lambdaloss": lambda_loss,
}


class _ClosedForm(torch.autograd.Function):
    """Autograd function whose derivative with respect to the scores is precomputed."""

    @staticmethod
    def forward(scores: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[2])

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        scores, slopes = ctx.saved_tensors
        found = (slopes @ outer).to(scores.dtype)
        if torch.is_grad_enabled():  # create_graph=True
            found = _FirstOnly.apply(scores, found)  # type: ignore[no-untyped-call]
        return found, None, None


class _FirstOnly(torch.autograd.Function):
    """First derivative that raises when differentiated again, instead of silently omitting a term."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, found: Tensor) -> Tensor:
        return found.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        raise InvalidLosses("a ranking loss has first derivatives only; found a request for a second derivative")


def _open(scores: Tensor, labels: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Segments]:
    """Return detached scores of at least float32, labels of the same type, and the lists."""
    rows = len(scores)
    if scores.dim() != 1 or labels.dim() != 2 or len(labels) != rows or lengths.dim() != 1 or len(lengths) == 0:
        raise InvalidBatch(
            "a ranking loss takes scores [rows], labels [rows, K] and lengths [queries], found shapes "
            f"{list(scores.shape)}, {list(labels.shape)} and {list(lengths.shape)}"
        )
    if int(lengths.sum()) != rows or int(lengths.min()) < 0:
        raise InvalidBatch(f"lengths must add up to the number of rows, {rows}, found {int(lengths.sum())}")
    detached = scores.detach().to(torch.promote_types(scores.dtype, torch.float32))
    return detached, labels.to(detached), Segments(lengths, rows)


def _cross_entropy(scores: Tensor, scores_: Tensor, target: Tensor, labels: Tensor, segments: Segments) -> Tensor:
    logs = segments.log_softmax(scores_)[:, None]
    values = -segments.sums(target * logs)
    return _mean(scores, values, logs.exp() - target, segments.differ(labels).to(values), segments)


def _mean(scores: Tensor, values: Tensor, slopes: Tensor, scale: Tensor, segments: Segments) -> Tensor:
    """Return the means over queries of values / scale, 0 if the scale is 0, with their derivatives."""
    means = _over(values, scale).sum(0) / segments.count
    slopes = _over(slopes, scale[segments.list]) / segments.count
    result: Tensor = _ClosedForm.apply(scores, means, slopes)  # type: ignore[no-untyped-call]
    return result


def _over(values: Tensor, scale: Tensor) -> Tensor:
    informative = scale > 0
    return torch.where(informative, values / torch.where(informative, scale, 1.0), 0.0)
