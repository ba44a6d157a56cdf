"""Labels that are missing for some documents or whole lists: NaN in the labels."""

from __future__ import annotations

import torch
from torch import Tensor

from stimulus_moo.ranking.lists import QueryBatch
from stimulus_moo.ranking.losses import RankingLoss
from stimulus_moo.ranking.segments import Segments


def skip_missing(loss: RankingLoss) -> RankingLoss:
    """Return the loss over the labelled documents, for labels with NaN.

    The loss of a label is the mean over the queries that have it, each with only the documents that have it. Use it
    with ``counts=labelled_queries``. The loss of a label without a query is 0 and has the count 0.

    Args:
        loss: a function of ``LOSSES``, or any ``loss(scores, labels, lengths)`` that returns one mean per label.

    >>> import torch
    >>> from stimulus_moo.ranking import softmax_loss
    >>> labels = torch.tensor([[1.0, torch.nan], [0.0, torch.nan], [0.0, 1.0], [torch.nan, 0.0]])
    >>> skip_missing(softmax_loss)(torch.zeros(4), labels, torch.tensor([2, 2]))  # log(2) / 2 and log(2)
    tensor([0.3466, 0.6931])
    """

    def labelled_loss(scores: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
        known = ~labels.isnan()
        if bool(known.all()):
            return loss(scores, labels, lengths)
        sizes, present = _labelled(labels, lengths)
        found = []
        for s in range(labels.shape[1]):
            rows, queries = known[:, s], present[:, s]
            own = loss(scores[rows], labels[rows, s, None], sizes[queries, s]) if queries.any() else scores[:1] * 0.0
            found.append(own.reshape(()))
        return torch.stack(found)

    return labelled_loss


def labelled_queries(batch: QueryBatch) -> Tensor:
    """Return the number of queries that have each label, for ``counts=``.

    >>> import torch
    >>> labels = torch.tensor([[1.0, torch.nan], [0.0, torch.nan], [0.0, 1.0], [torch.nan, 0.0]])
    >>> labelled_queries(QueryBatch(torch.tensor([2, 2]), torch.zeros(4, 3), labels))
    tensor([2, 1])
    """
    _, present = _labelled(batch.labels, batch.lengths)
    return present.sum(0)


def _labelled(labels: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labelled documents of each list per label, and whether it has the label: an empty list does."""
    sizes = Segments(lengths, len(labels)).sums((~labels.isnan()).to(lengths.dtype))
    return sizes, (sizes > 0) | (lengths == 0)[:, None]
