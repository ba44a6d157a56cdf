"""Missing labels: NaN for documents and for whole lists, in losses, metrics and the ranker."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stimulus_moo.ranking import (
    LOSSES,
    InvalidRankingData,
    MultiLabelRanker,
    QueryBatch,
    counted_queries,
    labelled_queries,
    mean_average_precision,
    mrr,
    ndcg,
    skip_missing,
    training,
)
from tests.ranking.test_losses import LENGTHS, draw, twin
from tests.ranking.test_ranker import QID, X, Y

RNG = np.random.default_rng(0)
MISSING = RNG.random(Y.shape) < 0.3  # documents
MISSING[:, 1] |= np.isin(QID, np.unique(QID)[::2])  # whole lists
GAPS = np.where(MISSING, np.nan, Y)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_over_the_labelled_documents_of_the_labelled_lists(name: str) -> None:
    scores, labels, lengths = draw()
    labels[torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) < 0.3] = torch.nan
    labels[5:12, 0] = torch.nan  # a whole list
    scores.requires_grad_()
    found = skip_missing(LOSSES[name])(scores, labels, lengths)
    counts = labelled_queries(QueryBatch(lengths, labels, labels)).tolist()
    for s, column in enumerate(labels.T):
        known = ~column.isnan()
        sizes = [int(part.sum()) for part in known.split(LENGTHS)]
        kept = [size for size, length in zip(sizes, LENGTHS, strict=True) if size or not length]
        own = scores.detach()[known].requires_grad_()
        expected = LOSSES[name](own, column[known][:, None], torch.tensor(kept))
        assert counts[s] == len(kept)
        assert found[s].item() == pytest.approx(twin(name, own, column[known][:, None], torch.tensor(kept))[0])
        slopes = torch.autograd.grad(found[s], scores, retain_graph=True)[0]
        assert torch.equal(slopes[known], torch.autograd.grad(expected[0], own)[0])
        assert not slopes[~known].any()


def test_a_label_without_a_list_has_the_count_0() -> None:
    labels = torch.tensor([[1.0, torch.nan], [0.0, torch.nan]])
    found = skip_missing(LOSSES["listnet"])(torch.zeros(2), labels, torch.tensor([2]))
    assert found[1] == 0.0
    assert labelled_queries(QueryBatch(torch.tensor([2]), labels, labels)).tolist() == [1, 0]


@pytest.mark.parametrize("metric", [ndcg, mean_average_precision, mrr])
def test_metrics_are_over_the_labelled_documents(metric: object) -> None:
    assert callable(metric)
    scores = RNG.integers(0, 5, len(X)).astype(float)
    each, means, counted = metric(GAPS, scores, QID, per_query=True), metric(GAPS, scores, QID), []
    for s in range(Y.shape[1]):
        known = ~MISSING[:, s]
        assert means[s] == pytest.approx(metric(Y[known, s], scores[known], QID[known]), rel=1e-14)
        counted.append(counted_queries(Y[known, s], QID[known]))
    assert (~np.isnan(each)).sum(0).tolist() == counted == counted_queries(GAPS, QID).tolist()
    assert np.isnan(each[~np.isin(list(dict.fromkeys(QID)), QID[~MISSING[:, 1]]), 1]).all()


@pytest.mark.parametrize("method", ["mgd", "stimulus", "auto"])
def test_losses_of_the_ranker_are_means_over_labelled_lists(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "pass_size", lambda data: 7)  # anchors and evaluations in several pieces
    ranker = MultiLabelRanker(method=method, epochs=3, random_state=0).fit(X, GAPS, QID)
    scores = ranker.predict(X)
    for s in range(Y.shape[1]):
        order = np.argsort(QID)
        known = order[~MISSING[order, s]]
        lengths = np.unique(QID[known], return_counts=True)[1]
        grades = torch.from_numpy(Y[known][:, [s]].astype(float))
        expected = LOSSES["listnet"](torch.from_numpy(scores[known]), grades, torch.from_numpy(lengths))
        assert ranker.losses_[s] == pytest.approx(expected.item(), rel=1e-5)  # scores are float32


def test_the_ranker_learns_nearly_the_same_from_half_of_the_labels() -> None:
    whole, part = (MultiLabelRanker(epochs=10, random_state=0).fit(X, labels, QID) for labels in (Y, GAPS))
    found = [ndcg(Y, ranker.predict(X), QID) for ranker in (whole, part)]
    np.testing.assert_allclose(found[1], found[0], atol=0.03)


def test_bounds_and_early_stopping_take_missing_labels() -> None:
    ranker = MultiLabelRanker(bounds={1: 0.2}, early_stopping=0, epochs=4, random_state=0).fit(X, GAPS, QID)
    assert ranker.best_["ndcg"][1] >= ranker.floors_[1] > 0.5
    assert ranker.score(X, GAPS, QID) > 0.7


def test_a_label_that_is_missing_everywhere_is_refused() -> None:
    message = "y must have each label in some row, found label 1 missing in all 60 training queries"
    with pytest.raises(InvalidRankingData, match=message):
        MultiLabelRanker().fit(X, Y * [1.0, np.nan], QID)
