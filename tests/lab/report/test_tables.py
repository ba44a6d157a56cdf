"""Tables as data, scores over seeds, and the verdict in words."""

import math

import pytest

from stimulus_moo.lab.report import scores
from stimulus_moo.lab.report.charts import Chart, experiment_charts
from stimulus_moo.lab.report.curves import AXES, loss_curve
from stimulus_moo.lab.report.data import experiment_data
from stimulus_moo.lab.report.groups import Group, group_runs
from stimulus_moo.lab.report.scores import Score
from stimulus_moo.lab.report.tables import ablation_table, comparison_table, sample_table, test_tables
from stimulus_moo.lab.report.verdict import missing, verdict

from ..fake_runs import fake_run, fake_runs

TASKS = ("left", "right")
test_tables.__test__ = False  # a table of test metrics, not a test


@pytest.fixture(scope="module")
def group() -> Group:
    return group_runs(fake_runs(2, ("mgd", "smgd", "stimulus", "scalarisation"), 3, steps=100))[0]


def with_losses(method: str, seed: int, losses: list[float], **changes: object) -> object:
    run = fake_run(method, seed, TASKS, steps=20, **changes)
    for row in (*run.records, run.summary):
        if "full_losses" in row:
            row["full_losses"] = losses
    return run


def test_score_is_mean_and_sample_deviation() -> None:
    score = Score.of([1.0, 2.0, 3.0, math.nan, None])
    assert score is not None
    assert (score.mean, score.std) == (2.0, 1.0)
    assert Score.of([math.inf]) is None
    assert Score.of([5.0]) == Score((5.0,))


def test_comparison_marks_the_lowest_loss_and_the_highest_accuracy() -> None:
    runs = [with_losses("mgd", 0, [0.1, 0.5]), with_losses("smgd", 0, [0.2, 0.2])]
    runs[0].summary["test"] = {"accuracy": [0.9, 0.8]}
    runs[1].summary["test"] = {"accuracy": [0.7, 0.6]}
    table = comparison_table(group_runs(runs)[0])
    mean, accuracy = table.columns.index("Loss, mean over tasks"), table.columns.index("Test accuracy")
    assert [row[mean].best for row in table.rows] == [False, True]
    assert [row[accuracy].best for row in table.rows] == [True, False]
    assert [row[table.columns.index("Loss, left")].best for row in table.rows] == [True, False]


def test_error_metrics_are_better_when_lower() -> None:
    runs = [with_losses("mgd", 0, [1, 1]), with_losses("smgd", 0, [1, 1])]
    for run, error in zip(runs, (0.3, 0.1), strict=True):
        run.summary["test"] = {"error": [error, error]}
    (table,) = test_tables(group_runs(runs)[0])
    assert [row[1].best for row in table.rows] == [False, True]
    assert table.note.startswith("Lower")


def test_sample_table_counts_as_the_paper_does(group: Group) -> None:
    table = sample_table(group)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert table.columns[-3:] == ("Share of MGD", "Passes", "Seconds")
    assert rows["MGD"] == ["100", "12,800", "12,800", "100.0%", "25,600", "2.5 ± 1.0"]
    assert rows["SMGD"][1:3] == ["800", "800"]
    assert rows["SMGD"][4] == "1,600"  # two tasks
    assert rows["Scalarisation, SGD"][1:3] == ["800", "800"]
    assert rows["Scalarisation, SGD"][4] == "800"  # one pass for the weighted loss
    assert rows["STIMULUS"][1:3] == ["2,000", "2,720"]  # 10 * 128 + 90 * 8 and 10 * 128 + 90 * 16


def test_equal_budget_is_the_cheapest_run(group: Group) -> None:
    assert scores.equal_budget(group) == 800
    assert "Mean loss at 800 passes" in comparison_table(group).columns


def test_a_budget_in_passes_or_seconds_is_the_cost_of_the_comparison() -> None:
    methods = ("smgd", "scalarisation")
    for budget in ("passes", "seconds"):
        group = group_runs(fake_runs(2, methods, 2, steps=100, **{budget: 900}))[0]
        assert scores.cost_of(group) == budget
    mixed = [*fake_runs(2, ("smgd",), 1, seconds=900), *fake_runs(2, ("scalarisation",), 1)]
    assert scores.cost_of(group_runs(mixed)[0]) == "passes"
    for values in (mixed[0].summary, *mixed[0].records):
        del values["passes"]  # as of early versions
    assert scores.cost_of(group_runs(mixed)[0]) == "gradients"
    group = group_runs(fake_runs(2, methods, 2, steps=100, passes=900))[0]
    assert scores.equal_budget(group) == 800  # of the scalarisation; SMGD has 1,600
    assert "Mean loss at 800 passes" in comparison_table(group).columns
    smgd, scalar = group.entries
    at = scores.loss_at(smgd, "passes", 800)
    assert at.mean == pytest.approx(scores.loss_at(smgd, "gradients", 400).mean)
    assert scores.loss_at(scalar, "passes", 800).mean == scores.final_loss(scalar, scores.MEAN).mean
    ours = group_runs(fake_runs(2, ("stimulus", "scalarisation"), 2, steps=100, passes=900))[0]
    assert any("At equal cost (800 passes)" in sentence for sentence in verdict(ours).sentences)


def test_runs_of_an_older_version_have_no_passes() -> None:
    runs = fake_runs(2, ("mgd", "smgd"), 1, steps=20)
    for run in runs:
        for row in (*run.records, run.summary):
            del row["passes"], row["seconds"]
        run.summary["seconds"] = 1.0  # was in the summary alone
    older = group_runs(runs)[0]
    assert sample_table(older).columns[-2:] == ("Share of MGD", "Seconds")
    assert "Passes" not in comparison_table(older).columns
    assert loss_curve(older.entries[0], "passes") is None
    assert loss_curve(older.entries[0], "seconds") is None
    assert [axis for axis, _ in _axes_shown(older)] == ["iterations", "samples", "gradients"]
    assert [axis for axis, _ in _axes_shown(group_runs(fake_runs(2, ("mgd",), 1, steps=20))[0])] == list(AXES)


def test_charts_begin_with_the_axis_on_which_methods_have_equal_budgets() -> None:
    def first(**settings: int) -> list[str | None]:
        group = group_runs(fake_runs(2, ("mgd", "smgd"), 1, steps=20, **settings))[0]
        charts = [chart for chart in experiment_charts(group, experiment_data(group)) if isinstance(chart, Chart)]
        return [chart.axis for chart in charts if chart.kind in ("loss", "stationarity")]

    assert first() == ["passes", "passes"]
    assert first(passes=800) == ["passes", "passes"]


def _axes_shown(group: Group) -> list[tuple[str, str]]:
    charts = [chart for chart in experiment_charts(group, experiment_data(group)) if isinstance(chart, Chart)]
    (shown,) = {tuple(chart.axes) for chart in charts if chart.axes}
    return list(shown)


def test_loss_before_the_first_evaluation_is_not_invented(group: Group) -> None:
    mgd = group.entries[0]
    assert scores.loss_at(mgd, "gradients", 800) is None  # its first evaluation is at 1280
    found = scores.loss_at(mgd, "iterations", 100)
    assert found is not None
    assert found.mean == pytest.approx(scores.final_loss(mgd, scores.MEAN).mean)


def test_diverged_methods_are_named_and_not_ranked() -> None:
    runs = [with_losses("mgd", 0, [9.0, 9.0]), with_losses("smgd", 0, [0.1, 0.1], diverge=True)]
    runs.append(with_losses("stimulus", 0, [5.0, 5.0]))
    table = comparison_table(group_runs(runs)[0])
    column = table.columns.index("Loss, mean over tasks")
    found = {row[0].text: row[column].best for row in table.rows}
    assert found == {"MGD": False, "SMGD (diverged: 1 of 1)": False, "STIMULUS": True}


def test_normalised_losses_divide_by_the_largest_and_leave_out_the_diverged() -> None:
    runs = [with_losses("mgd", 0, [4.0, 1.0]), with_losses("smgd", 0, [2.0, 2.0])]
    runs.append(with_losses("stimulus", 0, [100.0, 100.0], diverge=True))
    assert scores.normalised_losses(group_runs(runs)[0]) == {"MGD": [1.0, 0.5], "SMGD": [0.5, 1.0]}


def test_ablation_groups_by_momentum_and_reads_the_iterations() -> None:
    runs = [fake_run("stimulus-m", s, TASKS, steps=300, momentum=m) for m in (0.1, 0.8) for s in (0, 1)]
    group = group_runs(runs)[0]
    assert [entry.label for entry in group.entries] == ["STIMULUS-M, momentum 0.1", "STIMULUS-M, momentum 0.8"]
    table = ablation_table(group)
    assert table is not None
    assert table.columns[:3] == ("Method", "Momentum", "left, 100")
    at_100 = runs[0].records[99]["full_losses"][0], runs[1].records[99]["full_losses"][0]
    assert table.rows[0][2].value == pytest.approx(sum(at_100) / 2)
    assert table.rows[0][5].text == "not run"  # 500 iterations
    assert [row[2].best for row in table.rows] == [False, True]


def test_ablation_marks_what_was_interpolated() -> None:
    runs = [fake_run("stimulus-m", 0, TASKS, steps=210, every=30, momentum=m) for m in (0.1, 0.8)]
    table = ablation_table(group_runs(runs)[0], steps=(90, 100))
    assert table is not None
    assert not table.rows[0][2].text.startswith("≈")
    assert table.rows[0][3].text.startswith("≈")


def test_no_ablation_table_without_several_momenta(group: Group) -> None:
    assert ablation_table(group) is None


def test_many_tasks_become_the_rows() -> None:
    (table,) = test_tables(group_runs(fake_runs(40, ("mgd", "smgd"), 1, steps=20))[0])
    assert table.columns == ("Task", "MGD", "SMGD")
    assert len(table.rows) == 41
    assert table.rows[-1][0].text == "mean"


def test_markdown_has_the_best_in_bold_and_escapes_bars(group: Group) -> None:
    text = comparison_table(group).markdown()
    assert text.count("\n") == 1 + len(group.entries)
    assert "**" in text
    odd = group_runs([fake_run("a|b", 0, TASKS, steps=20)])[0]
    assert "a\\|b" in sample_table(odd).markdown()


def test_verdict_is_ahead_only_if_every_seed_is() -> None:
    def label(ours: list[float], rival: list[float]) -> str:
        runs = [with_losses("stimulus", s, [v, v]) for s, v in enumerate(ours)]
        runs += [with_losses("smgd", s, [v, v]) for s, v in enumerate(rival)]
        return verdict(group_runs(runs)[0]).label

    assert label([0.1, 0.2], [0.3, 0.4]) == "ahead"
    assert label([0.1, 0.35], [0.3, 0.4]) == "level"
    assert label([0.5, 0.6], [0.3, 0.4]) == "behind"


def test_verdict_names_the_scalarisation_that_wins() -> None:
    runs = [with_losses("stimulus", s, [0.2, 0.2]) for s in (0, 1)]
    runs += [with_losses("smgd", s, [0.3, 0.3]) for s in (0, 1)]
    runs += [with_losses("scalarisation-adam", s, [0.1, 0.1]) for s in (0, 1)]
    said = verdict(group_runs(runs)[0])
    assert said.label == "mixed"
    assert said.sentences[0].startswith("Lowest mean training loss at the end: Scalarisation, Adam")
    assert any("2.0 times that of Scalarisation, Adam" in sentence for sentence in said.sentences)


def test_a_verdict_is_about_auto_where_it_is_the_best_of_ours() -> None:
    runs = [with_losses("stimulus", s, [0.5, 0.5]) for s in (0, 1)]
    runs += [with_losses("auto", s, [0.001, 0.001]) for s in (0, 1)]
    runs += [with_losses("smgd", s, [0.3, 0.3]) for s in (0, 1)]
    said = verdict(group_runs(runs)[0])
    assert (said.subject, said.label) == ("Auto", "ahead")
    behind = verdict(group_runs([run for run in runs if run.method != "auto"])[0])
    assert (behind.subject, behind.label) == ("STIMULUS", "behind")


def test_nothing_evaluated_is_no_comparison() -> None:
    group = group_runs([fake_run("mgd", 0, TASKS, steps=5)])[0]
    assert verdict(group).label == "no comparison"


def test_missing_pieces_are_said() -> None:
    runs = [fake_run("mgd", 3, TASKS, steps=20, every=100), fake_run("smgd", 3, TASKS, steps=20, diverge=True)]
    runs[0].summary.clear()
    said = " ".join(missing(group_runs(runs)[0]))
    assert "synthetic" in said
    assert "Only one seed (3)" in said
    assert "SMGD, seed 3, diverged: loss 0 is inf at step 300" in said
    assert "MGD, seed 3, was not finished" in said
    assert "No stationarity was evaluated for MGD" in said
    assert "No scalarisation baseline" in said


def test_equal_spending_is_compared_once() -> None:
    runs = [with_losses(m, s, [v, v]) for m, v in (("smgd", 0.4), ("cr-mogm", 0.5)) for s in (0, 1)]
    assert scores.equal_budget(group_runs(runs)[0]) is None
    assert not any("gradients" in name for name in comparison_table(group_runs(runs)[0]).columns if "loss" in name)
