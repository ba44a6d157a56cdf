import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from stimulus_moo import InvalidOption, fit
from stimulus_moo.lab import cli
from stimulus_moo.lab.data import load_ltr
from stimulus_moo.lab.experiment import ExperimentSettings
from stimulus_moo.lab.experiments.ranking import EXPERIMENT, NDCG, SETTINGS, build, standardised
from stimulus_moo.lab.report import scores, tables
from stimulus_moo.lab.report.groups import group_runs
from stimulus_moo.lab.runs.reading import load_runs
from stimulus_moo.ranking import MultiLabelRanker, load_letor, ndcg

from ..ltr_files import write_letor


@pytest.fixture
def settings(tmp_path):
    changes = {"files": str(write_letor(tmp_path / "files")), "columns": [4, 1], "grades": 3, "batch_size": 6}
    return SETTINGS.override(changes)


def test_samples_are_queries_and_the_losses_their_means(settings):
    problem = build(settings, 0, None)
    assert problem.tasks == ("grade", "feature 4", "feature 1")
    assert len(problem.data) == 30
    with torch.no_grad():
        problem.model.layers[0].weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
    one_by_one = torch.stack([problem.losses(problem.model, torch.tensor([j])) for j in range(30)])
    torch.testing.assert_close(problem.losses(problem.model, problem.data), one_by_one.mean(0))
    assert one_by_one.std(0).min() > 0.1


def test_n_takes_the_first_queries(settings):
    problem, whole = (build(settings.override({"n": n}), 0, None) for n in (7, None))
    assert len(problem.data) == 7
    few = torch.arange(7)
    torch.testing.assert_close(problem.losses(problem.model, few), whole.losses(whole.model, few))


def test_it_trains_as_the_ranker_of_the_library_does(settings):
    problem = build(settings, 0, None)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))  # what the ranker makes of random_state=0
    options = {**settings.for_method("stimulus-m+"), "steps": 25, "gradients": None, "evaluate_every": None}
    fit(problem.model, problem.losses, problem.data, seed=seed, **options)
    (inputs, y, qid), (test, y_test, qid_test) = (load_letor(f"{settings.files}/{n}.txt") for n in ("train", "test"))
    labels = np.column_stack([y, *(np.digitize(inputs[:, [c]].toarray()[:, 0], _thirds(inputs, c)) for c in (4, 1))])
    same = {name: options[name] for name in ("method", "lr", "momentum", "batch_size", "period")}
    ranker = MultiLabelRanker(**same, epochs=5, random_state=0).fit(inputs[:, [0, 2, 3]], labels, qid)
    found = ndcg(y_test, ranker.predict(test[:, [0, 2, 3]]), qid_test)
    assert ranker.history_.last()["step"] == 24
    np.testing.assert_allclose(problem.test(problem.model)[NDCG][0], found[0], rtol=1e-6)
    weights = [module.layers[0].weight.detach().numpy() for module in (problem.model, ranker.scorer_)]
    np.testing.assert_allclose(*weights, rtol=1e-4)  # float32 over 25 steps


def _thirds(inputs, column):
    return np.quantile(inputs[:, [column]].toarray(), [1 / 3, 2 / 3], method="higher")


def test_validation_queries_are_scaled_as_the_others(tmp_path):
    splits = load_ltr(columns=(4,), files=write_letor(tmp_path))
    assert standardised(splits).validation is None
    scaled = standardised(replace(splits, validation=splits.test))
    np.testing.assert_array_equal(scaled.validation.X, scaled.test.X)


def test_wrong_settings_are_refused(settings):
    with pytest.raises(InvalidOption, match=r"loss must be one of softmax, listnet, .*, found 'hinge'"):
        build(settings.override({"loss": "hinge"}), 0, None)
    with pytest.raises(InvalidOption, match="settings must be RankingSettings, found ExperimentSettings"):
        build(ExperimentSettings(0.1, 0.5, 4, 4), 0, None)


@pytest.fixture
def runs(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", "ranking", "--methods", "stimulus-m+,smgd", "--seeds", "2", "--out", "out"]
    own = ["--files", settings.files, "--set", "columns=[4,1]", "--set", "hidden=[3]", "--gradients", "150"]
    result = CliRunner().invoke(cli.app, [*arguments, *own, "--batch-size", "6", "--period", "5"])
    assert result.exit_code == 0, result.output
    assert "Test NDCG@10" in result.stdout
    return load_runs(tmp_path / "out")


def test_the_command_line_compares_at_equal_queries_with_a_score_per_label(runs):
    assert len(runs) == 2 * 4
    for run in runs:
        assert (run.settings["columns"], run.settings["hidden"]) == ([4, 1], [3])
        assert 150 <= run.summary["gradients"] < 150 + 30 + 12  # the last step may be an anchor
        assert len(run.summary["test"][NDCG]) == 3
        assert run.summary["stationarity"] > 0
    (group,) = group_runs(runs)
    assert scores.equal_budget(group) is None or scores.equal_budget(group) >= 150
    assert f"Test {NDCG}" in tables.comparison_table(group).columns
    (table,) = tables.test_tables(group)
    assert table.columns == ("Method", "grade", "feature 4", "feature 1", "mean")
    assert json.loads((runs[0].folder / "settings.json").read_text())["tasks"] == list(group.tasks)


def test_the_highest_ndcg_is_the_best():
    assert NDCG in scores.HIGHER_IS_BETTER


def test_every_method_has_the_same_budget_and_a_step_size_from_one_grid():
    assert EXPERIMENT.settings.gradients
    assert EXPERIMENT.settings.steps is None
    grid = {0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0}
    assert {SETTINGS.for_method(method)["lr"] for method in EXPERIMENT.methods} <= grid
