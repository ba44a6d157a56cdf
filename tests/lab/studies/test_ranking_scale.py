import json
import os

import numpy as np
import pytest

from stimulus_moo import METHODS, InvalidOption
from stimulus_moo.lab.experiments.ranking import EXPERIMENT, NDCG
from stimulus_moo.lab.runs.runner import run_one
from stimulus_moo.lab.studies import lambdarank, ranking_runs, ranking_scale
from stimulus_moo.lab.studies.ranking_scale import STUDY, best_stationarity
from stimulus_moo.lab.synthetic.conflicting_queries import conflicting_queries

TINY = {
    **STUDY.settings,
    "sets": ["generated"],
    "methods": ["smgd", "stimulus-m+", "scalarisation-adam"],
    "grid": [0.1, 1e30],
    "gradients": 300,
    "queries": 60,
    "test_queries": 30,
    "documents": 8,
    "features": 6,
    "trees": 3,
}
QUERIES = {"documents": 20, "features": 8, "labels": 3, "correlation": -0.3, "interaction": 0.5, "noise": 0.5}


def plain(key, compute):
    return json.loads(json.dumps(compute()))


def test_labels_conflict_as_asked_and_are_one_function_of_the_features():
    bent = conflicting_queries(2000, **QUERIES, seed=0)
    assert (np.corrcoef(bent.Y.T)[np.triu_indices(3, 1)] < -0.1).all()  # noise and interaction weaken the -0.3
    one, other = (conflicting_queries(2000, **{**QUERIES, "interaction": 0.0}, seed=seed) for seed in (0, 1))
    assert np.unique(one.Y).tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose((one.Y == 0).mean(0), 0.5, atol=1e-3)
    slopes = [np.linalg.lstsq(part.X, part.Y - part.Y.mean(0), rcond=None)[0] for part in (one, other)]
    assert not np.array_equal(one.X, other.X)
    np.testing.assert_allclose(*slopes, atol=0.03)  # 40,000 rows
    cosines = (slopes[0].T @ slopes[0]) / np.linalg.norm(slopes[0], axis=0) ** 2
    np.testing.assert_allclose(cosines[np.triu_indices(3, 1)], -0.3, atol=0.05)


@pytest.mark.parametrize("wrong", [{"labels": 1}, {"features": 5}, {"correlation": -0.5}, {"correlation": 1.0}])
def test_queries_that_cannot_be_made_are_refused(wrong):
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        conflicting_queries(10, **{**QUERIES, **wrong}, seed=0)


def runs(**stationarity):
    kept = {name.replace("_", "-").replace("-plus", "+"): values for name, values in stationarity.items()}
    return {name: (0.1, [{"stationarity": value, "ndcg": [0.5, 0.6]} for value in kept[name]]) for name in kept}


def test_the_verdict_compares_means_with_the_stochastic_methods_only():
    assert best_stationarity(runs(stimulus_m_plus=[1, 3], smgd=[2, 2.1], mgd=[0, 0]))
    assert best_stationarity(runs(stimulus_m_plus=[1, 3], stimulus_m=[1, 2.99], smgd=[9, 9]))  # rounding
    assert best_stationarity(runs(stimulus_m_plus=[1, 3], smgd=[0, None]))  # diverged
    assert not best_stationarity(runs(stimulus_m_plus=[1, 3], smgd=[1, 2.95]))
    assert not best_stationarity(runs(stimulus_m_plus=[1, None], smgd=[9, 9]))
    assert not best_stationarity(runs(smgd=[9, 9]))


def test_without_lightgbm_the_table_says_so(monkeypatch):
    monkeypatch.setattr(ranking_scale, "installed", lambda: False)
    page = ranking_scale.run(TINY, 2, plain)
    (table,) = page["tables"]
    assert table["columns"][2:8] == ["mean", "worst", "label 0", "label 1", "label 2", "step size"]
    assert table["columns"][8:] == ["queries drawn", "multi-gradients", "passes"]
    drawn, gradients, passes = zip(*(row[8:] for row in table["rows"][:3]), strict=True)
    assert passes[:2] == (3 * gradients[0], 3 * gradients[1])  # three labels
    assert drawn[2] == gradients[2] == passes[2]  # the scalarisation
    assert [row[0] for row in table["rows"][:3]] == [METHODS[name].title for name in TINY["methods"]]
    assert [row[7] for row in table["rows"][:3]] == [0.1, 0.1, 0.1]  # 1e30 diverges or is far worse
    assert all(row[2:7] == ["not installed"] * 5 for row in table["rows"][3:])
    assert len(table["rows"]) == 3 + 3 + 1
    assert all("±" in value for row in table["rows"][:3] for value in row[2:7])
    assert page["verdict"] in ("holds", "does not hold")
    assert any("STIMULUS-M+ ends at stationarity" in finding for finding in page["findings"])
    assert {series["name"] for series in page["charts"][0]["series"]} == {row[0] for row in table["rows"][:3]}


def test_lightgbm_stands_in_the_same_table():
    pytest.importorskip("lightgbm")
    page = ranking_scale.run({**TINY, "methods": ["stimulus-m+"]}, 1, plain)
    rows = {row[0]: row[4:7] for row in page["tables"][0]["rows"]}
    alone = [float(rows[f"LightGBM on label {s} alone"][s]) for s in range(3)]
    others = [float(rows[f"LightGBM on label {s} alone"][(s + 1) % 3]) for s in range(3)]
    assert min(alone) > max(others)  # a model of its own label is good at that label only
    assert set(rows) >= {"LightGBM on the label sum", "STIMULUS-M+"}
    assert sum("LightGBM" in finding for finding in page["findings"]) == 2


def test_all_methods_of_the_paper_and_the_baselines_are_in_the_study():
    assert set(STUDY.settings["methods"]) == set(EXPERIMENT.methods)
    assert STUDY.settings["queries"] == 100_000
    assert lambdarank.PARAMETERS["objective"] == "lambdarank"


def test_a_run_that_diverges_has_no_numbers():
    found = ranking_runs.train({**TINY, "gradients": 100}, "generated", "smgd", 0, 1e38)
    assert found["ndcg"] is None
    (row,) = ranking_scale._table("generated", ["a", "b", "c"], {"smgd": (1e38, [found])}, {})["rows"]
    assert row[2:7] == ["diverged"] * 5


@pytest.mark.skipif("STIMULUS_MOO_DATA" not in os.environ, reason="STIMULUS_MOO_DATA names no folder with real data")
def test_on_the_shared_data_the_study_repeats_the_experiment(tmp_path):
    settings = {**TINY, "gradients": 600}
    lr = ranking_runs.tuned(plain, settings, "shared", "stimulus-m+")
    study = ranking_runs.train(settings, "shared", "stimulus-m+", 1, lr)
    summary = run_one(EXPERIMENT, "stimulus-m+", EXPERIMENT.settings.override({"gradients": 600}), 1, tmp_path / "run")
    assert study["ndcg"] == summary["test"][NDCG]
    assert study["stationarity"] == summary["stationarity"]
