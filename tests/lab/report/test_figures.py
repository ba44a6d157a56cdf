"""Static figures: what is drawn, and files that are the same every time."""

from pathlib import Path

import numpy as np
import pytest

from stimulus_moo.lab.report import figures
from stimulus_moo.lab.report.figures import write_figures
from stimulus_moo.lab.report.groups import Group, group_runs

from ..fake_runs import EVIL, fake_run, fake_runs, fake_study

pytest.importorskip("matplotlib")
METHODS = ("mgd", "stimulus", "scalarisation")


def group(tasks: int, seeds: int = 2, **options: object) -> Group:
    return group_runs(fake_runs(tasks, METHODS, seeds, steps=40, **options))[0]


def test_losses_have_a_panel_per_task_and_axis() -> None:
    figure = figures.loss_figure(group(2))
    assert figure is not None
    assert len(figure.axes) == 10
    assert all(len(panel.lines) == len(METHODS) for panel in figure.axes)
    assert all(len(panel.collections) == len(METHODS) for panel in figure.axes)  # bands
    names = ["Iterations", "Samples drawn", "Gradient evaluations", "Passes", "Seconds"]
    assert [panel.get_xlabel() for panel in figure.axes] == 2 * names


def test_costs_that_were_not_recorded_have_no_panel() -> None:
    older = group(2)
    for run in older.runs:
        for row in (*run.records, run.summary):
            del row["passes"], row["seconds"]
    assert [len(draw(older).axes) for draw in (figures.loss_figure, figures.stationarity_figure)] == [6, 3]


def test_many_tasks_show_mean_and_worst() -> None:
    figure = figures.loss_figure(group(40, 1))
    assert figure is not None
    assert [panel.get_title() for panel in figure.axes[::5]] == ["Mean over tasks", "Worst task"]


def test_one_seed_has_no_band_and_says_so() -> None:
    figure = figures.loss_figure(group(2, 1))
    assert figure is not None
    assert not any(panel.collections for panel in figure.axes)
    assert "one seed, no band" in figure.get_suptitle()


def test_synthetic_data_is_named_in_the_title() -> None:
    figure = figures.stationarity_figure(group(2))
    assert figure is not None
    assert "[synthetic data]" in figure.get_suptitle()
    assert all(panel.get_yscale() == "log" for panel in figure.axes)


def test_radar_needs_three_tasks_and_stays_within_one() -> None:
    assert figures.radar_figure(group(2)) is None
    figure = figures.radar_figure(group(8))
    assert figure is not None
    values = np.concatenate([line.get_ydata() for line in figure.axes[0].lines])
    assert values.max() == pytest.approx(1)
    assert values.min() > 0


def test_weights_are_drawn_raw_and_smoothed() -> None:
    figure = figures.weight_figure(group(2))
    assert figure is not None
    assert len(figure.axes[0].lines) == 2 * len(METHODS) - 1  # fixed weights need no faint line


def test_what_was_not_evaluated_has_no_figure() -> None:
    bare = group(2, every=1000)
    assert figures.loss_figure(bare) is None
    assert figures.stationarity_figure(bare) is None


def test_stationarity_of_zero_is_drawn() -> None:
    runs = fake_runs(2, ("mgd",), 1, steps=20)
    for row in runs[0].records:
        row.update({"stationarity": 0.0} if "stationarity" in row else {})
    figure = figures.stationarity_figure(group_runs(runs)[0])
    assert figure is not None
    assert figure.axes[0].get_yscale() == "linear"


def test_files_are_written_twice_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURES", {"radar": figures.radar_figure})
    tasks = (f"{EVIL} $x$ 数", "b", "c")
    runs = [fake_run(method, 0, tasks, steps=20, experiment="odd/name") for method in ("mgd", EVIL)]
    paths = write_figures(runs, [fake_study()], tmp_path / "a")
    again = write_figures(runs, [fake_study()], tmp_path / "b")
    names = [path.name for path in paths]
    assert names == ["odd-name-radar.png", "odd-name-radar.pdf", "scaling-law-1.png", "scaling-law-1.pdf"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert all(path.read_bytes()[:4] == {".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix] for path in paths)


def test_no_runs_write_nothing(tmp_path: Path) -> None:
    assert write_figures([], [], tmp_path) == []
