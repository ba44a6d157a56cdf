"""Rows grouped by query in any order, and batches counted in queries."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.utils.data import DataLoader

from stimulus_moo import MultiGradient, Recursive, fit
from stimulus_moo.ranking import InvalidRankingData, Queries, QueryBatch, QueryDataset, softmax_loss

QID = np.array([5, 2, 5, 9, 2, 5, 9])


def dataset(sparse: bool = False) -> QueryDataset:
    X = np.arange(21.0).reshape(7, 3)
    return QueryDataset(scipy.sparse.csr_array(X) if sparse else X, np.arange(14.0).reshape(7, 2), QID)


def test_queries_are_numbered_by_first_appearance() -> None:
    queries = Queries(QID)
    assert queries.ids.tolist() == [5, 2, 9]
    assert queries.lengths.tolist() == [3, 2, 2]
    assert queries.query.tolist() == [0, 1, 0, 2, 1, 0, 2]
    assert queries.rows([2, 0]).tolist() == [3, 6, 0, 2, 5]


def test_grouped_and_shuffled_rows_give_the_same_lists() -> None:
    rng = np.random.default_rng(0)
    grouped = np.repeat(rng.permutation(20), rng.integers(1, 6, 20))
    order = rng.permutation(len(grouped))
    queries = Queries(grouped[order])
    for number, name in enumerate(queries.ids):
        assert sorted(order[queries.rows([number])]) == np.flatnonzero(grouped == name).tolist()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_batch_holds_the_rows_of_its_queries(sparse: bool) -> None:
    batch = dataset(sparse).__getitems__([2, 0])
    assert batch.lengths.tolist() == [2, 3]
    assert batch.features[:, 0].tolist() == [9.0, 18.0, 0.0, 6.0, 15.0]
    assert batch.labels[:, 1].tolist() == [7.0, 13.0, 1.0, 5.0, 11.0]
    assert batch.features.dtype == torch.float32


def test_a_subset_shares_the_features() -> None:
    data = dataset()
    part = data.subset([2, 1]).subset([1])
    assert len(part) == 1
    assert part[0].features[:, 0].tolist() == [3.0, 12.0]
    assert part.features is data.features
    assert part.rows().tolist() == [1, 4]


def test_features_are_not_copied() -> None:
    X = np.zeros((7, 3))
    assert QueryDataset(X, np.zeros(7), QID).features is X


def losses(model: torch.nn.Module, batch: QueryBatch) -> torch.Tensor:
    return softmax_loss(model(batch.features).squeeze(1), batch.labels, batch.lengths)


def test_counters_count_queries() -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    loader = DataLoader(dataset(), batch_size=2, collate_fn=QueryDataset.collate)
    mg = MultiGradient(model, losses, Recursive(loader, period=2))
    mg.backward(dataset().__getitems__([0]))
    mg.backward(dataset().__getitems__([1, 2]))
    assert (mg.samples, mg.gradients) == (3 + 2, 3 + 4)


def test_every_way_to_feed_fit_takes_queries() -> None:
    for method in ("mgd", "stimulus-m+", "page-moo"):
        model = torch.nn.Linear(3, 1, bias=False)
        data = dataset()
        result = fit(
            model, losses, data, method=method, lr=1e-3, steps=2, batch_size=1, collate_fn=QueryDataset.collate
        )
        assert result.samples <= 2 * 3 + 2
        assert len(result.losses) == 2


@pytest.mark.parametrize(
    ("features", "labels", "qid", "message"),
    [
        (np.zeros((3, 2)), np.zeros(2), [1, 1, 1], "labels must have 3 rows"),
        (np.zeros((3, 2)), np.zeros(3), [1, 1], r"qid must be one id per row \(3\)"),
        (np.zeros((3, 2)), np.zeros(3), [1, None, 1], "qid must not be missing"),
        (np.zeros(3), np.zeros(3), [1, 1, 1], r"rows x features, found shape \[3\]"),
        (np.zeros((0, 2)), np.zeros(0), [], "at least one row"),
    ],
)
def test_data_that_does_not_fit_is_refused(features: object, labels: object, qid: object, message: str) -> None:
    with pytest.raises(InvalidRankingData, match=message):
        QueryDataset(features, labels, qid)
