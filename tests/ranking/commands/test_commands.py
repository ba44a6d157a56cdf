import gzip
import json
import pickle

import numpy as np
import pytest
from typer.testing import CliRunner

from stimulus_moo.lab import cli
from stimulus_moo.ranking import load_letor, load_ranker, ndcg
from stimulus_moo.ranking.commands.files import Layout, read_files
from tests.lab.ltr_files import lines, write_letor


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return write_letor(tmp_path)


@pytest.fixture
def model(place):
    call("fit", "train.txt", "--model", "model.json", "--labels", "4,1", "--epochs", 3)
    return place / "model.json"


def call(*arguments, code=0):
    result = CliRunner().invoke(cli.app, ["rank", *(str(argument) for argument in arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def test_predict_prints_a_score_per_document_in_the_order_of_the_file(model):
    printed = [float(line) for line in call("predict", "test.txt", "--model", model).stdout.splitlines()]
    data = load_letor("test.txt")
    assert printed == load_ranker(model).ranker.predict(data.X[:, [0, 2, 3]]).tolist()
    call("predict", "test.txt", "--model", model, "--out", "scores.txt")
    assert np.loadtxt("scores.txt").tolist() == printed


def test_evaluate_prints_every_label_and_the_queries_that_count(model):
    said = call("evaluate", "test.txt", "--model", model, "--k", 5).stdout
    data = load_letor("test.txt")
    expected = ndcg(data.Y[:, 0], load_ranker(model).ranker.predict(data.X[:, [0, 2, 3]]), data.qid, k=5)
    (row,) = [line for line in said.splitlines() if line.startswith("│ label")]
    assert f"│ {expected:.4f} " in row
    assert "NDCG@5" in said
    assert "column 4" in said
    assert "column 1" in said
    counted = len({q for q, y in zip(data.qid, data.Y[:, 0], strict=True) if y > 0})
    assert row.split("│")[-2].strip() == str(counted)


def test_fit_says_what_it_consumed_and_keeps_its_options(place):
    said = call("fit", "train.txt", "--model", "m", "--method", "SMGD", "--hidden", "4,3", "--epochs", 2, "--seed", 5)
    ranker = load_ranker(place / "m").ranker
    assert (ranker.method, ranker.hidden, ranker.random_state, ranker.samples_) == ("smgd", [4, 3], 5, 60)
    assert "60 queries drawn, 60 multi-gradients, 60 passes" in said.stdout
    assert said.stdout.endswith("model: m\n")


def test_preferences_bounds_and_early_stopping_reach_the_ranker(place):
    call(
        "fit", "train.txt", "--model", "m", "--labels", "4", "--epochs", 2, "--bound", "1=0.9",
        "--preference", "1,2.5", "--early-stopping", "1", "--patience", 2,
    )  # fmt: skip
    ranker = load_ranker(place / "m").ranker
    assert (ranker.preference, ranker.bounds, ranker.early_stopping) == ([1.0, 2.5], {1: 0.9}, 1)
    assert set(ranker.floors_) == {1}


def test_all_layouts_give_the_same_rows(place):
    plain, lengths = lines(12, seed=1, with_qid=False)
    (place / "rank.test").write_text(plain)
    (place / "rank.test.query").write_text("\n".join(map(str, lengths)))
    (place / "test.gz").write_bytes(gzip.compress((place / "test.txt").read_bytes()))
    found = [read_files([place / name], Layout.AUTO) for name in ("test.txt", "rank.test", "test.gz")]
    for other in found[1:]:
        assert (other.X != found[0].X).nnz == 0
        np.testing.assert_array_equal(other.Y, found[0].Y)
        np.testing.assert_array_equal(other.qid, found[0].qid)


def test_queries_of_two_files_are_apart_and_the_wider_one_sets_the_features(place):
    (place / "wide.txt").write_text("1 qid:10 7:1\n0 qid:10 1:1\n")  # qid 10 is in train.txt too
    data = read_files([place / "train.txt", place / "wide.txt"], Layout.LETOR)
    assert data.X.shape[1] == 7
    assert len(np.unique(data.qid)) == 31
    assert data.qid[-1] == data.qid[-2] == 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "nowhere.txt", "--model", "m"], "nowhere.txt: expected a file of lines, found nothing"),
        (["fit", "train.txt", "--model", "no/such/m"], "--model must be in an existing directory"),
        (["fit", "train.txt", "--model", "m", "--labels", "4,x"], "--labels must be whole numbers, found 'x'"),
        (["fit", "train.txt", "--model", "m", "--labels", "9"], "column 9 does not exist"),
        (["fit", "train.txt", "--model", "m", "--hidden", "4,,3"], "--hidden must be whole numbers, found ''"),
        (["fit", "train.txt", "--model", "m", "--bound", "1"], "--bound must be numbers, found ''"),
        (["fit", "train.txt", "--model", "m", "--loss", "listnett"], "--loss must be one of "),
        (["fit", "train.txt", "--model", "m", "--method", "adam"], "method 'adam' is unknown"),
        (["fit", "train.txt", "--model", "m", "--early-stopping", "3"], "early_stopping must be"),
        (["fit", "train.txt", "--model", "m", "--layout", "lightgbm"], "train.txt.query: expected one list length"),
        (["predict", "test.txt", "--model", "nowhere"], "nowhere: expected a saved ranker, found No such file"),
        (["evaluate", "test.txt", "--model", "train.txt"], "train.txt: expected a saved ranker, found other text"),
        (["predict", "test.txt", "--model", "pickled"], "pickled: expected a saved ranker, found a file that is not"),
        (["predict", "wide.txt", "--model", "model.json"], "wide.txt: expected"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(place, model, arguments, said):
    (place / "pickled").write_bytes(pickle.dumps({"x": np.arange(3)}))
    (place / "wide.txt").write_text("1 qid:10 7:1\n0 qid:10 1:1\n")
    before = model.read_bytes()
    result = call(*arguments, code=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert result.stdout == ""
    assert not (place / "m").exists()
    assert model.read_bytes() == before


def test_a_truncated_model_is_refused(model):
    model.write_text(model.read_text()[:-30])
    assert "truncated file" in call("predict", "test.txt", "--model", model, code=2).stderr


def test_a_fit_that_diverges_ends_with_3_and_keeps_the_old_model(model):
    before = model.read_bytes()
    said = call(
        "fit", "train.txt", "--model", model, "--lr", "1e38", "--method", "smgd", "--hidden", "3", code=3
    ).stderr
    assert said.startswith("error: ")
    assert "a smaller --lr may help" in said
    assert model.read_bytes() == before


def test_the_model_is_plain_json_with_a_version(model):
    content = json.loads(model.read_text())
    assert (content["format"], content["version"], content["labels"]) == ("stimulus-moo ranker", 1, 3)
