"""Draw the scoreboard's picture and keep its table as a results file, from the figures of ``stimulus-moo board``.

    make board                                 # runs the board, then this program
    python -m docs.board_picture runs/board    # from DIR/board.json

The picture has the mean rank of every method over the problems at equal CPU seconds, and its rank on each of them.
Writes docs/_static/board-{light,dark}{,-narrow}.svg and docs/results/board.json, from which pages take two tables: all
methods over the problems, and on each problem ``auto``, Adam on the mean loss and the best method.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks import report
from stimulus_moo.lab.board.board import PASSES, SECONDS
from stimulus_moo.lab.board.markdown import LINE, number, problem_lines
from stimulus_moo.lab.board.rivals import AUTO, MEAN

HERE = Path(__file__).parent
TITLE = "The scoreboard"
COLUMNS = ["method", "mean rank, equal seconds", "Delta m %, equal seconds", "mean rank, equal passes",
           "Delta m %, equal passes", "problems"]  # fmt: skip
_STRONG = {AUTO: ("#1f4fd8", "#7da6ff"), MEAN: ("#84622f", "#cfae7c")}  # colours on a light and on a dark page
_OTHER = ("#8a939d", "#6b7682")


def rows(board: Mapping[str, Any]) -> list[list[str]]:
    """Return one row per method, the best mean rank at equal seconds first."""
    by_passes = {row["rival"]: row for row in board["overall"][PASSES]}
    table = []
    for row in board["overall"][SECONDS]:
        other = by_passes[row["rival"]]
        own = (f"{row['rank']:.2f}", number(row["delta_m"], 2))
        table.append([row["rival"], *own, f"{other['rank']:.2f}", number(other["delta_m"], 2), str(row["problems"])])
    return table


def draw(board: Mapping[str, Any], *, dark: bool, narrow: bool) -> Figure:
    """Return the picture for a light or a dark page, wide or for a phone."""
    ink, faint = ("#d7dde5", "#39424e") if dark else ("#1b2330", "#d9dee5")
    overall = board["overall"][SECONDS]
    names = [row["rival"] for row in overall]
    figure = Figure(figsize=(4.6, 5.4) if narrow else (9.6, 4.9), layout="constrained")
    figure.patch.set_facecolor("none")
    panel = figure.subplots()
    panel.set_facecolor("none")
    for place, row in enumerate(overall):
        colour = _STRONG.get(row["rival"], _OTHER)[int(dark)]
        panel.scatter(row["ranks"], [place] * len(row["ranks"]), s=14, color=colour, alpha=0.35, lw=0)
        panel.scatter([row["rank"]], [place], s=70, color=colour, zorder=3)
        where, beside = (row["rank"], place), {"textcoords": "offset points", "va": "center"}
        panel.annotate(f"{row['rank']:.1f}", where, (8, 0), color=ink, fontsize=8, **beside)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xlim(0.5, len(names) + 1.5)  # room for the last number
    about = "equal CPU seconds, test data; large: mean, small: one problem each"
    title = "Rank among all methods, left is better"
    panel.set_title(f"{title}\n", loc="left", color=ink, fontweight="bold", fontsize=10 if narrow else 12)
    panel.text(0, 1.01, about, transform=panel.transAxes, color=ink, fontsize=6.5 if narrow else 9.5)
    panel.set_xlabel(f"rank of Delta m over {len(board['problems'])} problems", color=ink)
    panel.tick_params(colors=ink)
    panel.grid(color=faint, lw=0.6)
    panel.set_axisbelow(True)
    for side, spine in panel.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(faint)
    return figure


def keep(board: Mapping[str, Any], path: Path) -> None:
    """Write the tables as a results file; their commit and date are those of the board."""
    section = report.section(sys.modules[__name__], rows(board), 0.0, quick=board["quick"])
    section |= {"commit": board["commit"], "date": board["date"]}
    by_problem = section | {"columns": list(LINE), "rows": problem_lines(board)}
    path.parent.mkdir(exist_ok=True)
    sections = {"board": section, "board by problem": by_problem}
    path.write_text(json.dumps({"sections": sections}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Write the results file and the four variants of the picture."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/board")
    board = json.loads((folder / "board.json").read_text(encoding="utf-8"))
    keep(board, HERE / "results" / "board.json")
    with matplotlib.rc_context({"font.size": 10.5, "svg.fonttype": "none", "svg.hashsalt": "board"}):
        for dark in (False, True):
            for narrow in (False, True):
                name = f"board-{'dark' if dark else 'light'}{'-narrow' if narrow else ''}.svg"
                draw(board, dark=dark, narrow=narrow).savefig(HERE / "_static" / name, metadata={"Date": None})


if __name__ == "__main__":
    main()
