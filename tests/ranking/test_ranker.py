"""MultiLabelRanker: what it learns, what it keeps, and what it refuses."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold

from stimulus_moo import METHODS, InvalidOption, StimulusWarning
from stimulus_moo.ranking import LOSSES, InvalidRankingData, MultiLabelRanker, ndcg, softmax_loss
from stimulus_moo.ranking.lists import QueryDataset
from stimulus_moo.ranking.scorer import smoothness


def problem(seed: int = 0, queries: int = 60, docs: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two labels that conflict in feature 0 and agree in feature 1, over features of very different scales."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(queries * docs, 6))
    first, second = X[:, 0] + X[:, 1], X[:, 1] - X[:, 0]
    Y = np.column_stack([np.digitize(v, [0.5, 1.5, 2.5]) for v in (first, second)])
    order = rng.permutation(len(X))
    qid = np.repeat(np.arange(queries), docs)
    return X[order] * [1, 100, 1e-3, 1, 1, 1] + [0, 1e4, 0, 0, 0, 5], Y[order], qid[order]


X, Y, QID = problem()


def reach(ranker: MultiLabelRanker) -> np.ndarray:
    return ndcg(Y, ranker.predict(X), QID)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_every_loss_learns_to_rank(loss: str) -> None:
    ranker = MultiLabelRanker(loss=loss, random_state=0).fit(X, Y, QID)
    chance = ndcg(Y, np.random.default_rng(0).normal(size=len(X)), QID)
    assert (reach(ranker) > chance + 0.1).all()


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_learns_to_rank(method: str) -> None:
    ranker = MultiLabelRanker(method=method, epochs=6, random_state=0).fit(X, Y, QID)
    assert reach(ranker).mean() > 0.65
    assert len(ranker.losses_) == 2
    assert ranker.stationarity_ >= 0


def test_one_label_is_learnt_nearly_perfectly() -> None:
    test = problem(seed=1)
    for labels in (Y[:, 0], Y[:, [0]]):
        ranker = MultiLabelRanker(epochs=30, random_state=0).fit(X, labels, QID)
        assert ranker.score(test[0], test[1][:, 0], test[2]) > 0.97
        assert ranker.n_labels_ == 1


def test_a_perceptron_learns_what_a_line_cannot() -> None:
    label = (np.abs(X[:, 0]) > 1).astype(float)
    line = MultiLabelRanker(random_state=0).fit(X, label, QID).score(X, label, QID)
    bent = MultiLabelRanker(hidden=(16,), epochs=60, lr=0.3, method="smgd", random_state=0).fit(X, label, QID)
    assert bent.score(X, label, QID) > line + 0.1


def test_counters_are_in_queries() -> None:
    ranker = MultiLabelRanker(method="smgd", epochs=3, batch_size=20, random_state=0).fit(X, Y, QID)
    assert (ranker.samples_, ranker.gradients_, len(ranker.history_)) == (3 * 60, 3 * 60, 9)
    ranker = MultiLabelRanker(method="stimulus", epochs=3, batch_size=20, period=3, random_state=0).fit(X, Y, QID)
    assert (ranker.samples_, ranker.gradients_) == (3 * (60 + 40), 3 * (60 + 80))
    ranker = MultiLabelRanker(method="mgd", epochs=3, max_gradients=100, random_state=0).fit(X, Y, QID)
    assert (ranker.gradients_, ranker.passes_, ranker.stopped_) == (120, 240, "gradients")
    ranker = MultiLabelRanker(method="mgd", epochs=3, max_passes=100, random_state=0).fit(X, Y, QID)
    assert (ranker.gradients_, ranker.passes_, ranker.stopped_) == (60, 120, "passes")
    ranker = MultiLabelRanker(method="scalarisation", epochs=1, random_state=0).fit(X, Y, QID)
    assert ranker.passes_ == ranker.gradients_  # one pass for the weighted loss


def test_sparse_input_gives_the_model_of_the_same_scaling() -> None:
    rng = np.random.default_rng(3)
    dense = rng.random((720, 8)) * (rng.random((720, 8)) < 0.3)
    labels = (dense[:, :2] > 0.3).astype(float)
    sparse = scipy.sparse.csr_matrix(dense)
    fitted = MultiLabelRanker(epochs=10, random_state=0).fit(sparse, labels, QID)
    # standardising moves dense features by a constant, which no linear ranking loss sees
    same = MultiLabelRanker(epochs=10, random_state=0).fit(dense, labels, QID)
    shift = fitted.predict(sparse) - same.predict(dense)
    assert np.ptp(shift) < 1e-4
    np.testing.assert_allclose(fitted.predict(sparse), fitted.predict(scipy.sparse.csr_array(dense)))


def test_scale_and_offset_of_features_do_not_matter() -> None:
    plain = MultiLabelRanker(epochs=5, random_state=0).fit(X, Y, QID)
    moved = MultiLabelRanker(epochs=5, random_state=0).fit(X * 1e3 - 1e6, Y, QID)
    np.testing.assert_allclose(moved.predict(X * 1e3 - 1e6), plain.predict(X), atol=1e-3)


def test_order_of_rows_within_and_between_queries_does_not_matter_for_a_full_gradient() -> None:
    order = np.random.default_rng(0).permutation(len(X))
    settings = MultiLabelRanker(method="mgd", epochs=2, random_state=0)
    plain = clone(settings).fit(X, Y, QID).predict(X)
    np.testing.assert_allclose(clone(settings).fit(X[order], Y[order], QID[order]).predict(X), plain, atol=1e-5)


def test_same_seed_same_model_and_global_random_states_untouched() -> None:
    settings = MultiLabelRanker(hidden=(4,), epochs=2, early_stopping="hypervolume")
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = clone(settings).set_params(random_state=3).fit(X, Y, QID).predict(X)
    again = clone(settings).set_params(random_state=3).fit(X, Y, QID).predict(X)
    other = clone(settings).set_params(random_state=np.random.RandomState(4)).fit(X, Y, QID).predict(X)
    fresh = clone(settings).fit(X, Y, QID).predict(X)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, fresh)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_pickle_and_clone() -> None:
    ranker = MultiLabelRanker(epochs=2, random_state=0, early_stopping=0, patience=2).fit(X, Y, QID)
    again = pickle.loads(pickle.dumps(ranker))
    np.testing.assert_array_equal(again.predict(X), ranker.predict(X))
    assert again.validation_ == ranker.validation_
    assert clone(ranker).get_params() == ranker.get_params()
    assert not hasattr(clone(ranker), "scorer_")


def test_early_stopping_keeps_the_best_measured_model() -> None:
    ranker = MultiLabelRanker(
        early_stopping=1, patience=3, epochs=200, lr=1.0, method="smgd", batch_size=4, random_state=0
    ).fit(X, Y, QID)
    measured = [record["ndcg"][1] for record in ranker.validation_]
    assert ranker.stopped_ == "callback"
    assert len(measured) == int(np.argmax(measured)) + 1 + 3
    assert ranker.best_["ndcg"][1] == max(measured)
    held_out = np.random.default_rng(np.random.RandomState(0).randint(2**31 - 1)).permutation(60)[:12]
    seen = dict.fromkeys(QID.tolist())
    rows = np.isin(QID, np.array(list(seen))[held_out])
    assert ndcg(Y[rows], ranker.predict(X[rows]), QID[rows])[1] == pytest.approx(max(measured), abs=1e-6)
    np.testing.assert_allclose(ranker.scaler_.scale, X[~rows].std(0), rtol=1e-9)  # held-out rows are not looked at


def test_hypervolume_is_the_product() -> None:
    ranker = MultiLabelRanker(early_stopping="hypervolume", epochs=8, patience=8, random_state=0).fit(X, Y, QID)
    products = [np.prod(record["ndcg"]) for record in ranker.validation_]
    assert np.prod(ranker.best_["ndcg"]) == max(products)


def test_a_preference_moves_the_labels() -> None:
    for method in ("scalarisation", "stimulus-m"):
        settings = MultiLabelRanker(method=method, random_state=0)
        left = reach(clone(settings).set_params(preference=(9, 1)).fit(X, Y, QID))
        right = reach(clone(settings).set_params(preference=(1, 9)).fit(X, Y, QID))
        assert left[0] > right[0] + 0.05
        assert right[1] > left[1] + 0.05


def test_a_bound_is_kept_where_the_preference_would_break_it() -> None:
    settings = MultiLabelRanker(preference=(1, 20), method="scalarisation", epochs=30, random_state=0)
    free = clone(settings).set_params(early_stopping="hypervolume", patience=30).fit(X, Y, QID)
    bound = clone(settings).set_params(bounds={0: 0.05}).fit(X, Y, QID)
    assert bound.floors_[0] > 0.85
    assert free.validation_[-1]["ndcg"][0] < bound.floors_[0]
    assert bound.best_["ndcg"][0] >= bound.floors_[0]
    assert bound.best_["floors_kept"]


def test_bounds_that_cannot_be_kept_together_warn_and_keep_the_nearest() -> None:
    with pytest.warns(StimulusWarning, match="no measured model met every bound.*label [01]: 0"):
        ranker = MultiLabelRanker(bounds={0: 0.001, 1: 0.001}, epochs=5, random_state=0).fit(X, Y, QID)
    short = [max(f - r["ndcg"][s] for s, f in ranker.floors_.items()) for r in ranker.validation_]
    assert max(f - ranker.best_["ndcg"][s] for s, f in ranker.floors_.items()) == min(short)


def test_a_loss_of_ones_own() -> None:
    mine = MultiLabelRanker(loss=softmax_loss, epochs=2, random_state=0).fit(X, Y, QID)
    named = MultiLabelRanker(loss="softmax", epochs=2, random_state=0).fit(X, Y, QID)
    np.testing.assert_array_equal(mine.predict(X), named.predict(X))


def test_default_step_is_half_the_inverse_smoothness() -> None:
    ranker = MultiLabelRanker(method="stimulus-m+", epochs=1, random_state=0).fit(X, Y, QID)
    Z = (X - X.mean(0)) / X.std(0)
    within = [np.cov(Z[q == QID].T, bias=True) for q in range(60)]
    largest = np.linalg.eigvalsh(np.mean(within, axis=0)).max()
    ratio = 2 * largest * ranker.lr_
    assert ratio > 0.999  # power iteration comes from below
    assert ratio < 1.1
    assert smoothness(QueryDataset(np.ones((4, 2)), np.zeros(4), [0, 0, 1, 1])) == 0.0


def test_grid_search_by_query() -> None:
    with config_context(enable_metadata_routing=True):
        ranker = MultiLabelRanker(epochs=2, random_state=0).set_fit_request(qid=True).set_score_request(qid=True)
        search = GridSearchCV(ranker, {"loss": ["softmax", "ranknet"]}, cv=GroupKFold(2), refit=False)
        search.fit(X, Y, qid=QID, groups=QID)
    train, test = next(GroupKFold(2).split(X, Y, QID))
    for i, loss in enumerate(["softmax", "ranknet"]):
        fitted = MultiLabelRanker(loss=loss, epochs=2, random_state=0).fit(X[train], Y[train], QID[train])
        assert search.cv_results_["split0_test_score"][i] == fitted.score(X[test], Y[test], QID[test])


class Broken:
    """A loss that fails in the middle of training."""

    calls = 0

    def __call__(self, scores: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 5:
            raise KeyboardInterrupt
        return softmax_loss(scores, labels, lengths)


@pytest.mark.parametrize(
    ("fault", "features", "error"),
    [
        ({"method": "nothing"}, X[:, :3], InvalidOption),
        ({"lr": -1.0}, X[:, :3], InvalidOption),
        ({"loss": "hinge", "hidden": (8,)}, X[:, :3], InvalidOption),
        ({"loss": Broken()}, X[:, :3], KeyboardInterrupt),
        ({}, X[:, :3] * np.nan, InvalidRankingData),
    ],
)
def test_a_failed_fit_keeps_the_earlier_model(
    fault: dict[str, Any], features: np.ndarray, error: type[BaseException]
) -> None:
    ranker = MultiLabelRanker(epochs=2, random_state=0).fit(X, Y, QID)
    before = ranker.predict(X)
    with pytest.raises(error):
        ranker.set_params(**fault).fit(features, Y, QID)
    np.testing.assert_array_equal(ranker.predict(X), before)
    assert ranker.n_features_in_ == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "loss must be a function or one of softmax.*found 'hinge'"),
        ({"method": "stimulos"}, "did you mean 'stimulus'"),
        ({"lr": 0.0}, "lr must be a finite number above 0, or 'auto', found 0.0"),
        ({"hidden": 8}, "hidden must be a sequence of widths, found 8"),
        ({"hidden": (8, 0)}, r"hidden\[1\] must be a positive integer, found 0"),
        ({"epochs": 0}, "epochs must be a positive integer, found 0"),
        ({"batch_size": 61}, "batch_size must be at most the number of samples, 60, found 61"),
        ({"early_stopping": 2}, "label from 0 to 1, found 2"),
        ({"early_stopping": "ndcg"}, "early_stopping must be None, 'hypervolume'"),
        ({"early_stopping": True}, "early_stopping must be None"),
        ({"early_stopping": 0, "validation_fraction": 1.0}, "validation_fraction must lie in \\(0, 1\\)"),
        ({"early_stopping": 0, "patience": 0}, "patience must be a positive integer"),
        ({"bounds": {2: 0.1}}, "bounds must name labels from 0 to 1, found 2"),
        ({"bounds": {0: 1.5}}, r"bounds\[0\] must lie in \(0, 1\), found 1.5"),
        ({"preference": (1.0,)}, r"one positive number per label \(2\)"),
        ({"random_state": "seed"}, "random_state must be an int"),
        ({"max_gradients": 0}, "gradients must be a positive integer"),
        ({"max_passes": 0}, "passes must be a positive integer"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        MultiLabelRanker(**options).fit(X, Y, QID)


def test_data_that_cannot_work() -> None:
    with pytest.raises(InvalidRankingData, match="y must have 720 rows"):
        MultiLabelRanker().fit(X, Y[:-1], QID)
    with pytest.raises(InvalidRankingData, match="at least 0"):
        MultiLabelRanker().fit(X, Y - 1, QID)
    with pytest.raises(InvalidRankingData, match=r"one id per row \(720\)"):
        MultiLabelRanker().fit(X, Y, QID[:3])
    with pytest.raises(InvalidRankingData, match="holds out 0: early stopping and bounds need queries on both sides"):
        MultiLabelRanker(early_stopping=0).fit(X, Y)
    with pytest.raises(InvalidRankingData, match="label 1 has no relevant document in the 12 validation queries"):
        MultiLabelRanker(early_stopping=0, random_state=0).fit(X, Y * [1, 0], QID)


def test_labels_and_lists_that_tell_nothing_leave_the_start() -> None:
    ranker = MultiLabelRanker(epochs=2, random_state=0).fit(X, np.zeros_like(Y), QID)
    assert not ranker.predict(X).any()
    assert np.isnan(ranker.score(X, np.zeros_like(Y), QID))
    alone = MultiLabelRanker(epochs=2, random_state=0).fit(X, Y, np.arange(len(X)))
    assert not alone.predict(X).any()
