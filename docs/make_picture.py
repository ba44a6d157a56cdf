"""Draw the README's picture from measured runs: where variance reduction pays off, and where it does not.

    make picture                              # runs the demo if necessary, then this program
    python docs/make_picture.py runs/demo     # uses the demo's runs; the runs of the left panel take a few minutes

Left: the fairness problem of examples/fairness.py (a linear model on bundled data, so that the gradient noise does not
vanish), Pareto stationarity against gradient evaluations. Right: the demo (a small network that can fit its digits),
mean training loss. Every step size is constant and the best of a grid; on the left the best for the final stationarity,
with a seed that is not shown. Writes docs/_static/picture-{light,dark}{,-narrow}.svg, and the numbers of the left panel
to DIR/picture.json, which is reused if it exists.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from stimulus_moo import METHODS, fit
from stimulus_moo.lab.report.curves import aggregate, loss_curve
from stimulus_moo.lab.report.drawing import DASHES
from stimulus_moo.lab.report.groups import group_runs
from stimulus_moo.lab.report.palette import STYLES
from stimulus_moo.lab.runs import load_runs

HERE = Path(__file__).parent
SHOWN = ("mgd", "smgd", "moco", "stimulus-m", "scalarisation-adam")
GRID = {"scalarisation-adam": (0.0001, 0.0003, 0.001, 0.003, 0.01)}
GRADIENTS, SEEDS, TUNING_SEED, POINTS = 40_000, (0, 1, 2), 100, 40


def run(problem: dict[str, Any], method: str, lr: float, seed: int) -> list[list[float]]:
    """Return gradient evaluations and stationarity along one run."""
    torch.manual_seed(seed)
    model, data = torch.nn.Linear(10, 1), problem["load"]()
    per_step = {"mgd": len(data[0]), "stimulus-m": 3 * 22}.get(method, 22)
    result = fit(
        model,
        problem["losses"],
        data,
        method=method,
        lr=lr,
        gradients=GRADIENTS,
        evaluate_every=max(1, GRADIENTS // per_step // POINTS),
        guard=False,
        seed=seed,
        progress=False,
    )
    seen = [(record["gradients"], record["stationarity"]) for record in result.history if "stationarity" in record]
    return [list(column) for column in zip(*seen, strict=True)]


def fairness() -> dict[str, Any]:
    """Tune and run every method on the fairness problem."""
    problem = runpy.run_path(str(HERE.parent / "examples" / "fairness.py"), run_name="example")
    found = {}
    for method in SHOWN:
        grid = GRID.get(method, (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0))
        ends = {lr: run(problem, method, lr, TUNING_SEED)[1][-1] for lr in grid}
        lr = min(ends, key=ends.__getitem__)
        found[method] = {"lr": lr, "runs": [run(problem, method, lr, seed) for seed in SEEDS]}
        print(f"{method}: step size {lr:g} of {grid}, stationarity {ends[lr]:.1e}", file=sys.stderr)
    return found


def curves(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the curve of every method, for the left and for the right panel."""
    kept = folder / "picture.json"
    if not kept.exists():
        kept.write_text(json.dumps(fairness()), encoding="utf-8")
    stored = json.loads(kept.read_text(encoding="utf-8"))
    left = {
        method: aggregate([(np.array(x), np.array(y)[:, None]) for x, y in stored[method]["runs"]]) for method in SHOWN
    }
    (group,) = group_runs([run for run in load_runs(folder / "digits") if run.method in SHOWN])
    right = {entry.method: loss_curve(entry, "gradients") for entry in group.entries}
    return left, right


def draw(left: dict[str, Any], right: dict[str, Any], *, dark: bool, narrow: bool) -> Figure:
    """Return the picture for a light or a dark page, side by side or, for a phone, one above the other."""
    ink, faint = ("#d7dde5", "#39424e") if dark else ("#1b2330", "#d9dee5")
    figure = Figure(figsize=(4.6, 7.6) if narrow else (9.6, 4.1), layout="constrained")
    figure.patch.set_facecolor("none")
    panels = figure.subplots(2 if narrow else 1, 1 if narrow else 2)
    titles = (
        ("The noise of a batch stays", "Pareto stationarity", "fairness on tabular data, linear model", 0),
        ("The network can fit its data", "mean training loss", "two overlapping digits, small network", -2),
    )
    for panel, found, (title, label, about, column) in zip(panels, (left, right), titles, strict=True):
        panel.set_facecolor("none")
        for method in SHOWN:
            curve, style = found[method], STYLES[method]
            colour = style.dark if dark else style.light
            x, mean = curve.x, curve.mean[:, column]
            panel.plot(x, mean, color=colour, lw=0.8 * style.width, ls=DASHES[style.dash], label=METHODS[method].title)
            panel.fill_between(x, curve.low[:, column], curve.high[:, column], color=colour, alpha=0.15, lw=0)
        panel.set_yscale("log")
        panel.set_xlim(0, GRADIENTS)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
        panel.set_title(f"{title}\n", loc="left", color=ink, fontweight="bold", fontsize=12)
        panel.text(0, 1.02, f"{label}; {about}", transform=panel.transAxes, color=ink, fontsize=9.5)
        panel.set_xlabel("gradient evaluations", color=ink)
        panel.tick_params(colors=ink, which="both")
        panel.grid(color=faint, lw=0.6)
        for side, spine in panel.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(faint)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if narrow else 5, frameon=False, labelcolor=ink)
    return figure


def main() -> None:
    """Write the four variants."""
    left, right = curves(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
    with matplotlib.rc_context({"font.size": 10.5, "svg.fonttype": "none", "svg.hashsalt": "picture"}):
        for dark in (False, True):
            for narrow in (False, True):
                name = f"picture-{'dark' if dark else 'light'}{'-narrow' if narrow else ''}.svg"
                path = HERE / "_static" / name
                draw(left, right, dark=dark, narrow=narrow).savefig(path, metadata={"Date": None})
                print(f"{path}: {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
