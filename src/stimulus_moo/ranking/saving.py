"""Saving of fitted rankers as JSON. Loading executes no code and validates every number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from stimulus_moo import InvalidOption, StimulusError
from stimulus_moo.options import positive_integer
from stimulus_moo.ranking.binning import FeatureLabels
from stimulus_moo.ranking.errors import InvalidModelFile
from stimulus_moo.ranking.ranker import MultiLabelRanker
from stimulus_moo.ranking.scaler import Scaler
from stimulus_moo.ranking.scorer import Scorer
from stimulus_moo.training.files import write_whole

FORMAT = "stimulus-moo ranker"
VERSION = 1
_RUN = ("samples_", "gradients_", "passes_", "losses_", "stationarity_", "lr_", "stopped_", "best_", "floors_")


@dataclass(frozen=True)
class SavedRanker:
    """Content of a file.

    Attributes:
        ranker: fitted ranker, without ``history_`` and ``validation_``, which are not saved.
        rule: conversion of features to labels, or None.

    >>> SavedRanker(MultiLabelRanker()).rule is None
    True
    """

    ranker: MultiLabelRanker
    rule: FeatureLabels | None = None


def save_ranker(ranker: MultiLabelRanker, path: str | PathLike[str], rule: FeatureLabels | None = None) -> None:
    """Write a fitted ranker to a file atomically; an existing file is replaced.

    Args:
        ranker: fitted ranker.
        path: the file; its format is JSON for any name.
        rule: conversion of features to labels, saved with the ranker.

    Raises:
        InvalidOption: a parameter of the ranker is not a plain value, for example a custom loss function.

    >>> import pathlib, tempfile
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(60, 3)), np.repeat(np.arange(6), 10)
    >>> ranker = MultiLabelRanker(epochs=2, random_state=0).fit(X, X[:, :1] > 0, qid)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_ranker(ranker, pathlib.Path(folder, "model.json"))
    ...     again = load_ranker(pathlib.Path(folder, "model.json")).ranker
    >>> bool((again.predict(X) == ranker.predict(X)).all())
    True
    """
    check_is_fitted(ranker)
    parameters = {name: _plain(name, value) for name, value in ranker.get_params().items()}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "parameters": parameters,
        "features": ranker.n_features_in_,
        "feature_names": [str(name) for name in getattr(ranker, "feature_names_in_", ())] or None,
        "labels": ranker.n_labels_,
        "scaler": {"mean": _list(ranker.scaler_.mean), "scale": _list(ranker.scaler_.scale)},
        "scorer": {name: tensor.tolist() for name, tensor in ranker.scorer_.state_dict().items()},
        "run": {name: _plain(name, getattr(ranker, name)) for name in _RUN},
        "rule": None if rule is None else _of_rule(rule),
    }
    text = json.dumps(content, allow_nan=False) + "\n"
    write_whole(Path(path), lambda file: file.write(text.encode()))


def load_ranker(path: str | PathLike[str]) -> SavedRanker:
    """Read a file written by ``save_ranker``.

    Raises:
        InvalidModelFile: the file is missing, not a saved ranker, damaged, or has an unknown version.
    """
    path = Path(path)
    content = _read(path)
    try:
        return SavedRanker(_ranker(content), None if content["rule"] is None else _rule(content["rule"]))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, StimulusError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidModelFile(f"{path}: expected a complete saved ranker, found {found}; fit it again") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidModelFile(f"{path}: expected a saved ranker, found {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidModelFile(f"{path}: expected a saved ranker, found a file that is not text") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModelFile(
            f"{path}: expected a saved ranker, found other text or a truncated file ({error})"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidModelFile(f"{path}: expected a saved ranker, found other JSON")
    if content.get("version") != VERSION:
        raise InvalidModelFile(
            f"{path}: expected version {VERSION} of saved rankers, found {content.get('version')!r}; read it with the "
            "release that wrote it, or fit it again"
        )
    return content


def _ranker(content: Mapping[str, Any]) -> MultiLabelRanker:
    ranker = MultiLabelRanker(**{name: _restored(value) for name, value in content["parameters"].items()})
    features = positive_integer("features", content["features"])
    labels = positive_integer("labels", content["labels"])
    widths = [features, *(positive_integer("hidden", width) for width in ranker.hidden), 1]
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        shapes[f"layers.{2 * i}.weight"] = (outputs, inputs)
        if i < len(widths) - 2:  # the last layer has no bias
            shapes[f"layers.{2 * i}.bias"] = (outputs,)
    if set(content["scorer"]) != set(shapes):
        raise InvalidModelFile(f"a scorer of {sorted(content['scorer'])} where hidden is {list(ranker.hidden)}")
    state = {name: _array(name, content["scorer"][name], shape) for name, shape in shapes.items()}
    scaler = Scaler()
    mean = content["scaler"]["mean"]
    scaler.mean = None if mean is None else _array("scaler.mean", mean, (features,))
    scaler.scale = _array("scaler.scale", content["scaler"]["scale"], (features,))
    with torch.random.fork_rng(devices=[]):
        scorer = Scorer(features, ranker.hidden)
    scorer.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    ranker.scorer_, ranker.scaler_, ranker.n_labels_, ranker.n_features_in_ = scorer, scaler, labels, features
    names = content["feature_names"]
    if names is not None:
        if not isinstance(names, list) or len(names) != features or not all(isinstance(name, str) for name in names):
            raise InvalidModelFile(f"feature_names that are not {features} names")
        ranker.feature_names_in_ = np.array(names, dtype=object)
    run = {"passes_": None, **content["run"]}  # older files do not have it
    for name in _RUN:
        setattr(ranker, name, _restored(run[name]))
    return ranker


def _of_rule(rule: FeatureLabels) -> dict[str, Any]:
    return {"columns": rule.columns, "grades": rule.grades, "edges": [edges.tolist() for edges in rule.edges]}


def _rule(kept: Mapping[str, Any]) -> FeatureLabels:
    rule = FeatureLabels(kept["columns"], kept["grades"])
    rule.edges = [_array("rule.edges", edges, (len(edges),)) for edges in kept["edges"]]
    if len(rule.edges) != len(rule.columns):
        raise InvalidModelFile(f"edges of {len(rule.edges)} columns where there are {len(rule.columns)}")
    return rule


def _array(name: str, values: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise InvalidModelFile(f"{name} that is not {shape} finite numbers")
    return found


def _list(values: NDArray[np.float64] | None) -> list[float] | None:
    return None if values is None else np.asarray(values, dtype=np.float64).tolist()


def _plain(name: str, value: Any) -> Any:
    """Convert a value to JSON types; a mapping with non-string keys becomes a list of pairs."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        pairs = [[_plain(name, key), _plain(name, item)] for key, item in value.items()]
        return dict(pairs) if all(isinstance(key, str) for key, _ in pairs) else {"pairs": pairs}
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidOption(f"{name} must be a plain value to be saved, found {value!r}; use pickle, or another value")


def _restored(value: Any) -> Any:
    return dict(value["pairs"]) if isinstance(value, dict) and set(value) == {"pairs"} else value
