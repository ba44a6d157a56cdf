"""The result of ``diagnose``: its figures, as text for a terminal and as a self-contained page."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stimulus_moo.diagnosis.findings import Finding
from stimulus_moo.training.files import write_whole

_STYLE = """
:root { --paper: #ffffff; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --accent: #1f4fd8; --good: 33, 121, 76;
  --bad: 190, 60, 40; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181e; --ink: #e6e9ee; --soft: #98a2ae; --line: #3d444d;
  --accent: #7da6ff; --good: 70, 190, 120; --bad: 240, 110, 90; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 960px; padding: 16px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5em; margin: 0 0 8px; } h2 { font-size: 1.15em; margin: 28px 0 6px; }
p { margin: 4px 0 12px; } .soft { color: var(--soft); }
.finding { border-left: 4px solid var(--accent); padding: 2px 0 2px 12px; margin: 12px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 0; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); } th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--paper); }
"""
_COLUMNS = (
    *("loss", "at the start", "gradient", "noise", "weight"),
    *("alone", "shuffled", "mean", "auto"),
)
_LEGEND = (
    "at the start: training loss; gradient: norm of its mean gradient; noise: of a batch's gradient, divided by that "
    "norm; weight: what auto gives it at the end. Held-out losses after equal steps: alone: trained on this loss only; "
    "shuffled: trained with inputs in a random order; mean: all losses, Adam on their mean; auto: all losses, "
    "method auto."
)


@dataclass(frozen=True)
class TaskFigures:
    """The figures of one loss; a figure that could not be measured is NaN.

    Attributes:
        name: of the loss.
        start: training loss at the start.
        gradient: norm of the mean gradient at the start, without noise.
        noise: noise of a batch's gradient, divided by ``gradient``.
        weight: final weight by auto.
        alone, shuffled, mean, auto: held-out losses after a short training; see ``diagnose``.
    """

    name: str
    start: float
    gradient: float
    noise: float
    weight: float
    alone: float
    shuffled: float
    mean: float
    auto: float

    def numbers(self) -> list[float]:
        """Return the figures in the order of the table."""
        return [getattr(self, name) for name in self.__dataclass_fields__ if name != "name"]


@dataclass(frozen=True)
class Diagnosis:
    """The result of ``diagnose``. ``print(diagnosis)`` shows it; ``save`` writes a page.

    Attributes:
        findings: what was found, the most serious first.
        tasks: figures of the losses.
        cosines: S x S cosines between the mean gradients at the start.
        conflict_rate: share of negative cosines between two losses, over batches, pairs and points of the run.
        choices: what auto would choose, and why, as sentences.
        verdict: whether multi-objective training pays here.
        steps, batch_size: of every run.
    """

    findings: list[Finding]
    tasks: list[TaskFigures]
    cosines: list[list[float]]
    conflict_rate: float
    choices: list[str]
    verdict: str
    steps: int
    batch_size: int

    @property
    def cause(self) -> str:
        """The kind of the most serious finding."""
        return self.findings[0].kind

    def __str__(self) -> str:
        lines = [f"Diagnosis: {self.cause}. {self.verdict}", ""]
        for finding in self.findings:
            lines += [f"- {finding.kind}: {finding.text}", f"  {finding.advice}"]
        lines += ["", *_columns([_COLUMNS, *(_row(task) for task in self.tasks)]), "", _LEGEND, ""]
        lines += [f"Conflict rate: {_show(100 * self.conflict_rate)} % of the cosines between two losses are negative."]
        return "\n".join([*lines, *self.choices])

    def save(self, path: str | Path) -> None:
        """Write a self-contained HTML page.

        Raises:
            NotWritten: the file could not be written.
        """
        text = self._page().encode()
        write_whole(path, lambda file: file.write(text))

    def _page(self) -> str:
        found = "".join(
            f'<div class="finding"><b>{one.kind}</b><br>{html.escape(one.text)}<br>{html.escape(one.advice)}</div>'
            for one in self.findings
        )
        names = [html.escape(task.name) for task in self.tasks]
        rows = [
            [
                f"<td>{name}</td>",
                *(f"<td>{_show(cosine)}</td>" if math.isnan(cosine) else _coloured(cosine) for cosine in row),
            ]
            for name, row in zip(names, self.cosines, strict=True)
        ]
        figures = [[f"<td>{html.escape(cell)}</td>" for cell in _row(task)] for task in self.tasks]
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
            f'<link rel="icon" href="data:,"><title>Diagnosis</title><style>{_STYLE}</style></head><body>'
            f"<h1>Diagnosis: {self.cause}</h1><p>{html.escape(self.verdict)}</p>{found}<h2>The losses</h2>"
            f'{_table(_COLUMNS, figures)}<p class="soft">{html.escape(_LEGEND)} Every run has {self.steps} steps with '
            f"batches of {self.batch_size}.</p><h2>Cosines between gradients at the start</h2>"
            f"<p>{_show(100 * self.conflict_rate)} % of the cosines on single batches, at three points of a run, are "
            f"negative.</p>{_table(('', *names), rows)}<h2>What auto would choose</h2>"
            f"{''.join(f'<p>{html.escape(choice)}</p>' for choice in self.choices)}</body></html>\n"
        )


def _row(task: TaskFigures) -> list[str]:
    return [task.name, *map(_show, task.numbers())]


def _show(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _coloured(cosine: float) -> str:
    colour = "--good" if cosine > 0 else "--bad"
    return f'<td style="background: rgba(var({colour}), {0.6 * abs(cosine):.2f})">{cosine:.2f}</td>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[f"<th>{column}</th>" for column in columns], *rows]
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f'<div class="scroll"><table>{body}</table></div>'


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines, the first column aligned left."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
