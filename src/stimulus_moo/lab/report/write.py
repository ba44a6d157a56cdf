"""Writing of the report: figures, and one self-contained HTML page."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

from stimulus_moo import MissingDependency
from stimulus_moo.lab.report.figures import write_figures
from stimulus_moo.lab.report.groups import group_runs
from stimulus_moo.lab.report.page import page
from stimulus_moo.lab.report.paths import without_paths
from stimulus_moo.lab.runs import RunError, load_runs, load_studies
from stimulus_moo.lab.runs.storage import write_text


def write_report(folder: Path) -> Path:
    """Write ``figures/`` and ``report.html`` into a folder, from every run and study below it.

    The page contains all data and scripts, no local path, and makes no network requests.

    Returns:
        The path of the page.

    Raises:
        InvalidOption: there is no such folder.
        MissingDependency: plotly or matplotlib is not installed.
        RunError: every run and study is damaged, or ``figures`` is a symbolic link to another folder, whose files are
            not replaced.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingDependency("the report needs plotly: pip install 'stimulus-moo[lab]'") from None
    folder = Path(folder)
    figures = folder / "figures"
    if figures.is_symlink():
        raise RunError(f"{figures} is a symbolic link, and the files in its target are not replaced; remove the link")
    with warnings.catch_warnings(record=True) as damaged:
        warnings.simplefilter("always")
        runs, studies = load_runs(folder), load_studies(folder)
    for warning in damaged:
        warnings.warn(warning.message, stacklevel=2)
    if damaged and not runs and not studies:
        raise RunError(f"{folder} holds nothing that can be reported: {damaged[0].message}")
    write_figures(runs, studies, figures)
    path = folder / "report.html"
    shown = [replace(run, settings=without_paths(run.settings), summary=without_paths(run.summary)) for run in runs]
    write_text(path, page(group_runs(shown), without_paths(studies), get_plotlyjs()))
    return path
