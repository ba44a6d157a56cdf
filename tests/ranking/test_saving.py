"""Saved rankers: the same numbers again, nothing executed, and a typed error for whatever else a file holds."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from stimulus_moo import InvalidOption
from stimulus_moo.ranking import (
    FeatureLabels,
    InvalidModelFile,
    MultiLabelRanker,
    load_ranker,
    save_ranker,
    softmax_loss,
)

RNG = np.random.default_rng(0)
X, QID = RNG.normal(size=(80, 4)), np.repeat(np.arange(8), 10)
Y = np.column_stack([X[:, 0] > 0, X[:, 1] - X[:, 0] > 0])


def fitted(data: Any = X, **options: Any) -> MultiLabelRanker:
    return MultiLabelRanker(**{"epochs": 1, "random_state": 0, **options}).fit(data, Y, QID)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model.json"
    save_ranker(fitted(hidden=[3]), path, FeatureLabels([1], grades=3).fit(X))
    return path.read_text()


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (X, {}),
        (X, {"hidden": (5, 3), "loss": "softmax"}),
        (scipy.sparse.csr_matrix(X), {"lr": np.float64(0.1), "batch_size": np.int64(3)}),
        (X, {"bounds": {1: 0.5}, "early_stopping": "hypervolume", "preference": [1, 2], "validation_fraction": 0.25}),
    ],
)
def test_the_model_read_back_scores_as_the_one_saved(tmp_path: Path, data: Any, options: dict[str, Any]) -> None:
    ranker = fitted(data, **options)
    save_ranker(ranker, tmp_path / "model")
    again = load_ranker(tmp_path / "model").ranker
    np.testing.assert_array_equal(again.predict(data), ranker.predict(data))
    for name in (
        "samples_",
        "gradients_",
        "passes_",
        "losses_",
        "stationarity_",
        "lr_",
        "best_",
        "floors_",
        "n_labels_",
        "bounds",
    ):
        assert getattr(again, name) == getattr(ranker, name), name
    assert again.fit(data, Y, QID).predict(data).tolist() == ranker.predict(data).tolist()  # the same settings


def test_a_file_without_passes_is_read(tmp_path: Path) -> None:
    save_ranker(fitted(X), tmp_path / "model")
    content = json.loads((tmp_path / "model").read_text())
    del content["run"]["passes_"], content["parameters"]["max_passes"]  # as an older version wrote it
    (tmp_path / "model").write_text(json.dumps(content))
    again = load_ranker(tmp_path / "model").ranker
    assert (again.passes_, again.max_passes) == (None, None)


def test_the_rule_of_the_labels_is_kept(tmp_path: Path) -> None:
    rule = FeatureLabels([2, 0], grades=4).fit(X)
    save_ranker(fitted(), tmp_path / "model", rule)
    again = load_ranker(tmp_path / "model").rule
    assert again is not None
    for one, other in zip(again.apply(X, Y[:, 0]), rule.apply(X, Y[:, 0]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_truncation_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model"
    for stop in range(0, len(text.rstrip()), 37):
        path.write_text(text[:stop])
        with pytest.raises(InvalidModelFile, match="truncated file"):
            load_ranker(path)


@pytest.mark.parametrize(
    "key", ["parameters", "features", "feature_names", "labels", "scaler", "scorer", "run", "rule"]
)
@pytest.mark.parametrize("value", ["absent", None, 7, -1, "x", [], {}, [[1]], {"a": {}}])
def test_a_damaged_value_is_refused_or_harmless(tmp_path: Path, text: str, key: str, value: Any) -> None:
    content = json.loads(text)
    if value == "absent":
        del content[key]
    else:
        content[key] = value
    (tmp_path / "model").write_text(json.dumps(content))
    try:
        saved = load_ranker(tmp_path / "model")
    except InvalidModelFile:
        assert (key, value) != ("labels", 7)
    else:
        assert key in ("feature_names", "rule", "labels")  # what may be left out, or is a number that fits as well
        assert np.isfinite(saved.ranker.predict(X)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "expected version 1 of saved rankers, found 2"),
        ({"format": "other"}, "found other JSON"),
        ({"features": 5}, "is not"),
        ({"scaler": {"mean": None, "scale": [1.0, float("nan"), 1.0, 1.0]}}, "scaler.scale"),
        ({"parameters": {"hidden": [10**12]}}, "is not"),
        ({"parameters": {"colour": 1}}, "colour"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, change: dict[str, Any], message: str) -> None:
    (tmp_path / "model").write_text(json.dumps({**json.loads(text), **change}))
    with pytest.raises(InvalidModelFile, match=message):
        load_ranker(tmp_path / "model")


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("trapped",)


def test_foreign_files_are_refused_and_nothing_in_them_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InvalidModelFile, match="model: expected a saved ranker"):
        load_ranker("model")
    assert not Path("trapped").exists()
    for content, message in (
        (b"[" * 100_000, "truncated file"),
        (b"[1]", "other JSON"),
        (b"\xff\x00", "not text"),
    ):
        Path("model").write_bytes(content)
        with pytest.raises(InvalidModelFile, match=message):
            load_ranker("model")
    with pytest.raises(InvalidModelFile, match="No such file"):
        load_ranker("nowhere")
    with pytest.raises(InvalidModelFile, match="Is a directory"):
        load_ranker(tmp_path)


def test_a_loss_of_ones_own_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="loss must be a plain value to be saved"):
        save_ranker(fitted(loss=softmax_loss), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    save_ranker(fitted(), path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        save_ranker(fitted(epochs=2), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
