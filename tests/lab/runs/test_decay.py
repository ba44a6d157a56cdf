import pytest

from stimulus_moo.lab.methods import LAB_METHODS, UPGRAD
from stimulus_moo.lab.runs import load_runs
from stimulus_moo.lab.runs.runner import run_one

from ..fake_lab import TINY


@pytest.mark.parametrize("limit", [{"steps": 10}, {"steps": None, "passes": 10 * 8}])
def test_a_given_step_size_falls_linearly_to_zero_over_the_last_part(tmp_path, limit):
    settings = TINY.settings.override({**limit, "decay": 0.4, "lr": 0.5})
    run_one(TINY, "scalarisation", settings, 0, tmp_path)
    (run,) = load_runs(tmp_path)
    assert [row["lr"] for row in run.records] == pytest.approx([0.5] * 7 + [0.375, 0.25, 0.125])


def test_a_step_size_that_a_method_chooses_is_left_alone(tmp_path):
    for decay in (0.0, 1.0):
        run_one(TINY, "auto", TINY.settings.override({"steps": 10, "decay": decay}), 0, tmp_path / str(decay))
    constant, fallen = load_runs(tmp_path)
    assert [row["lr"] for row in constant.records] == [row["lr"] for row in fallen.records]


def test_upgrad_is_a_method_of_experiments_that_pays_for_every_loss(tmp_path):
    pytest.importorskip("torchjd")
    summary = run_one(TINY, UPGRAD, TINY.settings.override({"steps": 5}), 0, tmp_path)
    assert summary["passes"] == 5 * 8 * 2
    assert LAB_METHODS[UPGRAD].title == "UPGrad, Adam"
