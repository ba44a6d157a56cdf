"""Scaling in blocks equals scaling at once, dense or sparse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from stimulus_moo.ranking import Scaler, scaler


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaler, "_ENTRIES", 40)


def table() -> np.ndarray:
    X = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))
    X[:, 1] *= np.random.default_rng(1).random(50) < 0.3
    X[:, 2] = 7.0
    X[:, 3] += 1e9  # a large offset, which float32 alone would not survive
    return X


def test_dense_columns_have_mean_0_and_deviation_1() -> None:
    X = table()
    scaled = Scaler().fit(X)(X).astype(np.float64)
    np.testing.assert_allclose(scaled.mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(0), [1, 1, 0, 1], atol=1e-6)


def test_sparse_columns_keep_their_zeros() -> None:
    X = table()[:, :3]
    sparse = scipy.sparse.csr_array(X)
    scaled = Scaler().fit(sparse)(sparse[10:20])
    np.testing.assert_allclose(scaled, X[10:20] / [*X[:, :2].std(0), 1.0], rtol=1e-5)


def test_only_the_rows_named_count() -> None:
    X = table()
    rows = np.arange(0, 50, 3)
    np.testing.assert_allclose(Scaler().fit(X, rows).scale, Scaler().fit(X[rows]).scale, rtol=1e-12)
