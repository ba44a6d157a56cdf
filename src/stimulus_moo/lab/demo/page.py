"""The demo's page: what to use on each problem, the tables and charts behind it, the front, and when not to use it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stimulus_moo import MissingDependency
from stimulus_moo.errors import DOCS
from stimulus_moo.fronts import Front
from stimulus_moo.lab.demo.advice import advice, costs, limits
from stimulus_moo.lab.demo.problems import PASSES
from stimulus_moo.lab.demo.result import Result
from stimulus_moo.lab.report import scores
from stimulus_moo.lab.report.charts import Chart, experiment_charts
from stimulus_moo.lab.report.data import experiment_data, study_data
from stimulus_moo.lab.report.groups import Entry
from stimulus_moo.lab.report.page import render
from stimulus_moo.lab.report.scores import Score
from stimulus_moo.lab.report.sections import about, command
from stimulus_moo.lab.report.tables import Cell, Table, by_entry
from stimulus_moo.lab.runs.storage import write_text

#: How the page shows the choice of a model from the front, with the bound as it is given to ``Front.choose``.
BOUND = {0: "5%"}


def write_page(folder: Path, results: Sequence[Result], front: Front) -> Path:
    """Write ``demo.html`` into a folder that has the front in ``front/``, and return its path.

    The page contains all data and scripts and makes no network requests.

    Raises:
        MissingDependency: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingDependency("the demo's page needs plotly: pip install 'stimulus-moo[lab]'") from None
    path = folder / "demo.html"
    write_text(path, page(results, front, get_plotlyjs()))
    return path


def page(results: Sequence[Result], front: Front, plotly_js: str) -> str:
    """Return the HTML page."""
    data: dict[str, list[Any]] = {
        "experiments": [experiment_data(found.group) for found in results],
        "studies": [study_data({"charts": [front_chart(front)]})],
    }
    return render(
        "demo.html",
        data,
        plotly_js,
        advice=[advice(found) for found in results],
        problems=[_problem(*pair) for pair in zip(results, data["experiments"], strict=True)],
        front={
            "sentence": front_sentence(front),
            "figures": [Chart("chart", "The front", panels=[(0, "")])],
            "bound": BOUND[0],
            "chosen": ", ".join(f"{loss:.3g}" for loss in front.choose(bounds=BOUND).losses),
        },
        costs=[costs(found) for found in results],
        limits=limits(*results),
        passes=PASSES,
        seeds=len(results[0].group.seeds),
        docs=DOCS,
        about=about([found.group for found in results]),
    )


def results_table(found: Result) -> Table:
    """Return the ends of all methods on one problem, and what they cost."""
    left = {entry.label: score for entry, score in zip(found.group.entries, found.left, strict=True)}
    columns: list[Any] = [("Worst loss, relative to its start", lambda entry: left[entry.label], False)]
    columns += [(f"Test accuracy, {task}", _accuracy(s), True) for s, task in enumerate(found.group.tasks)]
    columns += [("Steps", scores.iterations, None)]
    columns += [(key.capitalize(), _counter(key), None) for key in ("passes", "seconds")]
    note = "Losses over the whole training set at the end. Mean ± standard deviation over the seeds, best in bold."
    return by_entry(found.group, found.group.title, columns, note)


def front_table(front: Front) -> Table:
    """Return the losses of every point, in the order of the first one; the chosen point is marked."""
    chosen = front.choose(bounds=BOUND).number
    points = sorted(front.points, key=lambda point: point.losses[0])
    rows = [
        (Cell(str(point.number)), *(Cell(f"{loss:.4f}", loss, point.number == chosen) for loss in point.losses))
        for point in points
    ]
    note = (
        f"In bold: choose(bounds={BOUND!r}), the first loss at most {BOUND[0]} above its least, the second one least."
    )
    return Table("Pareto front of two groups of patients", ("Point", *front.names), tuple(rows), note)


def front_chart(front: Front) -> dict[str, Any]:
    """Return the front as a chart of a study."""
    chosen = front.choose(bounds=BOUND)
    points = sorted(front.points, key=lambda point: point.losses[0])
    x, y = ([point.losses[s] for point in points] for s in (0, 1))
    series = [
        {"name": f"{len(front)} models", "x": x, "y": y, "mode": "markers"},
        {
            "name": f"first loss at most {BOUND[0]} above its least",
            "x": [chosen.losses[0]],
            "y": [chosen.losses[1]],
            "mode": "markers",
        },
    ]
    return {"title": "The front", "x": {"label": front.names[0]}, "y": {"label": front.names[1]}, "series": series}


def front_sentence(front: Front) -> str:
    """Return how far the losses go, and what the front costs."""
    first, second = front.losses.min(0), front.losses.max(0)
    spans = " and ".join(
        f"the {name} lies between {low:.3g} and {high:.3g}"
        for name, low, high in zip(front.names, first, second, strict=True)
    )
    ends = [run.passes for run in (*front.points, *front.left_out) if run.number == 0]
    times = f", {front.passes / ends[0]:.1f} times those of the first model, which starts from scratch" if ends else ""
    return (
        f"{len(front)} models, {int(front.nondominated.sum())} of which no other one dominates: {spans}. "
        f"All runs together take {front.passes:,} passes{times}."
    )


def _problem(found: Result, data: dict[str, Any]) -> dict[str, Any]:
    loss = next(chart for chart in experiment_charts(found.group, data) if not isinstance(chart, str))
    return {
        "title": found.group.title,
        "about": found.comparison.about,
        "table": results_table(found),
        "entries": found.group.entries,
        "figures": [loss],
        "command": command(found.group, "runs/demo"),
    }


def _accuracy(task: int) -> Any:
    return lambda entry: scores.test_score(entry, "accuracy", task)


def _counter(key: str) -> Any:
    def count(entry: Entry) -> Score | None:
        return scores.counter(entry, key)

    return count
