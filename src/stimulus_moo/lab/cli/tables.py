"""Tables printed by the commands: the catalogue, the results of an experiment, the findings of a study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stimulus_moo import PAPER_METHODS, WEIGHTINGS
from stimulus_moo.lab.experiment import Experiment
from stimulus_moo.lab.methods import LAB_METHODS
from stimulus_moo.lab.report.groups import Group, group_runs, step_size
from stimulus_moo.lab.report.tables import Table as Results
from stimulus_moo.lab.report.tables import comparison_table
from stimulus_moo.lab.runs import RecordedRun
from stimulus_moo.lab.study import Study
from stimulus_moo.plugins import load_installed


def print_catalogue(console: Console, experiments: Iterable[Experiment], studies: Iterable[Study]) -> None:
    """Print the experiments, studies, methods and weightings."""
    for title, entries in (("Experiments: methods x seeds", experiments), ("Studies: one claim each", studies)):
        table = Table("Name", "Title", "Claim", title=title, title_justify="left", show_lines=True)
        for entry in entries:
            table.add_row(Text(entry.name), Text(entry.title), Text(entry.claim, style="dim"))
        console.print(table)
    table = Table("Name", "Title", "From", title="Methods", title_justify="left")
    for method in LAB_METHODS.values():
        table.add_row(method.name, method.title, "the paper" if method.name in PAPER_METHODS else "beyond the paper")
    console.print(table)
    load_installed()
    console.print(Text(f"Weightings, for --weighting: {', '.join(WEIGHTINGS)}"))


def print_results(console: Console, runs: Sequence[RecordedRun]) -> None:
    """Print one table per experiment, followed by its data, seeds and step sizes."""
    for group in group_runs(runs):
        results = comparison_table(group)
        print_table(console, replace(results, title=group.title))
        for sentence in _facts(group, results.note):
            console.print(sentence, markup=False, highlight=False, style="dim")


def print_table(console: Console, results: Results) -> None:
    """Print a table under its title, on several pages if the console is too narrow; the best cells are bold."""
    console.print(Text(f"\n{results.title}", style="bold"))
    for columns in _pages(results, console.width):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i in columns:
            longest = max((len(row[i].text) for row in results.rows), default=0)
            name = Text(results.columns[i])
            table.add_column(name, justify="right" if i else "left", no_wrap=not i, min_width=longest)
        for row in results.rows:
            table.add_row(*(Text(row[i].text, style="bold" if row[i].best else "") for i in columns))
        console.print(table)


def print_study(console: Console, study: dict[str, Any]) -> None:
    """Print a study's verdict, findings and tables."""
    title, verdict = study.get("title") or study["name"], study.get("verdict") or "no verdict"
    console.print(Text(f"{title}: {verdict}", style="bold"))
    console.print(f"Claim: {study.get('claim') or '-'}", markup=False, highlight=False, style="dim")
    for finding in study.get("findings") or ():
        console.print(f"- {finding}", markup=False, highlight=False)
    for data in study.get("tables") or ():
        table = Table(title=Text(str(data.get("title") or "")), title_justify="left")
        for column in data.get("columns") or ():
            table.add_column(Text(str(column)))
        for row in data.get("rows") or ():
            table.add_row(*(Text(_cell(value)) for value in row))
        console.print(table)


def _pages(results: Results, width: int) -> list[list[int]]:
    """Split the columns into pages that fit the width without wrapping a number; each page starts with the method."""

    def needed(i: int) -> int:
        words = results.columns[i].split() if i else [results.columns[i]]
        return max(map(len, (*words, *(row[i].text for row in results.rows)))) + 3  # and its margins

    pages: list[list[int]] = [[0]]
    for i in range(1, len(results.columns)):
        if len(pages[-1]) > 1 and sum(map(needed, (*pages[-1], i))) > width:
            pages.append([0])
        pages[-1].append(i)
    return pages


def _facts(group: Group, note: str) -> Iterable[str]:
    seeds = ", ".join(map(str, group.seeds))
    many = f"{len(group.seeds)} seeds ({seeds}), mean ± standard deviation" if len(group.seeds) > 1 else f"seed {seeds}"
    sizes = {int(run.settings["n_train"]) for run in group.runs if run.settings.get("n_train")}
    samples = " or ".join(f"{size:,}" for size in sorted(sizes))
    yield f"{note} Training set: {samples or 'unknown'} samples; {many}. Seconds are wall-clock time of the steps."
    yield f"Data: {group.fact('data') or 'not named'}{' (synthetic: made by a program)' if group.synthetic else ''}."
    rates: dict[Any, list[str]] = {}
    for run in group.runs:
        rates.setdefault(step_size(run), [])
        if run.method not in rates[step_size(run)]:
            rates[step_size(run)].append(run.method)
    yield "Step sizes: " + "; ".join(f"{rate} for {', '.join(methods)}" for rate, methods in rates.items()) + "."


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
