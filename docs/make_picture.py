"""Draw the README's picture and print its table, from measured runs of auto and of tuned methods at equal passes.

    make picture                              # runs the demo if necessary, then this program
    python -m docs.make_picture runs/demo     # uses the demo's runs; the runs of the left panel take a few minutes

Left: the nonconvex logistic problem of benchmarks/problems.py (three sets of labels that no point fits, so that the
gradient noise does not vanish), Pareto stationarity against passes. Right: the demo (a small network that can fit its
digits), mean training loss. Every learning rate but that of auto is the best of a grid. On the left it is the best for
the final stationarity, with a seed that is not shown, and constant or falling to zero over the last half, as that of
auto does, whichever is better. On the right all learning rates fall to zero. Writes
docs/_static/picture-{light,dark}{,-narrow}.svg and docs/results/picture.json, and the curves of the left panel to
DIR/picture.json, which is reused if it exists.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks import report
from benchmarks.problems import CASES
from stimulus_moo import Progress, fit
from stimulus_moo.lab.demo import problems
from stimulus_moo.lab.experiments import EXPERIMENTS
from stimulus_moo.lab.methods import fit_options
from stimulus_moo.lab.report.curves import aggregate, loss_curve
from stimulus_moo.lab.report.drawing import DASHES
from stimulus_moo.lab.report.groups import group_runs
from stimulus_moo.lab.report.palette import STYLES
from stimulus_moo.lab.runs import load_runs
from stimulus_moo.lab.runs.decay import decay_of

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "picture.json"
TITLE = "The README's picture"
COLUMNS = ["method", "mean loss, digits", "stationarity, digits", "stationarity, logistic"]
LABELS = {**problems.NAMES, "auto": "auto (nothing tuned)"}
SHOWN = tuple(method for method in LABELS if method in problems.DIGITS.methods)
BETA2 = 0.99  # of auto, and of Adam in the last row
ADAM_GRID, GRID = (0.0003, 0.001, 0.003, 0.01), (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
PASSES, SEEDS, TUNING_SEED, POINTS = 300_000, (0, 1, 2), 100, 40


def run(method: str, lr: float | str, falls: bool, seed: int) -> list[list[float]]:
    """Return passes and stationarity along one run on the logistic problem."""
    case = CASES["logistic"]
    problem = case.make(seed)
    per_sample = {"smgd": 3, "upgrad-adam": 3, "stimulus-m": 12}.get(method, 1)  # roughly, anchors included

    def fall(told: Progress) -> None:
        for group in told.optimizer.param_groups:
            group["lr"] = lr * min(1.0, max(0.0, 2.0 - 2.0 * told.record["passes"] / PASSES))

    result = fit(
        problem.model,
        problem.losses,
        problem.data,
        **fit_options(method),
        lr=lr,
        batch_size=case.batch,
        passes=PASSES,
        evaluate_every=max(1, PASSES // (per_sample * case.batch) // POINTS),
        guard=lr == "auto",
        callbacks=[fall] if falls else [],
        seed=seed,
        progress=False,
    )
    seen = [(record["passes"], record["stationarity"]) for record in result.history if "stationarity" in record]
    seen.append((result.passes, result.stationarity))
    return [list(column) for column in zip(*seen, strict=True)]


def logistic() -> dict[str, Any]:
    """Tune and run every method on the logistic problem."""
    found = {}
    for method in SHOWN:
        grid = ADAM_GRID if "adam" in method else GRID
        choices = [("auto", False)] if method == "auto" else [*product(grid, (False, True))]
        ends = {choice: run(method, *choice, TUNING_SEED)[1][-1] for choice in choices}
        lr, falls = best = min(ends, key=ends.__getitem__)
        found[method] = {"lr": lr, "falls": falls, "runs": [run(method, *best, seed) for seed in SEEDS]}
        print(f"{method}: learning rate {lr}, falls {falls}, stationarity {ends[best]:.1e}", file=sys.stderr)
    return found


def short_memory() -> dict[str, Any]:
    """Return the mean losses on the digits of Adam with the memory of auto at its best learning rate."""
    experiment = EXPERIMENTS["digits"]
    settings = problems.DIGITS.settings(experiment)

    def end(lr: float, seed: int) -> float:
        torch.manual_seed(seed)
        problem = experiment.build(settings, seed, None)
        torch.manual_seed(seed)
        options = {**settings.for_method("scalarisation-adam"), "lr": lr, "evaluate_every": None}
        options["optimizer"] = lambda parameters: torch.optim.Adam(parameters, lr=lr, betas=(0.9, BETA2))
        options["callbacks"] = decay_of(settings, lr)
        found = fit(problem.model, problem.losses, problem.data, seed=seed, progress=False, **options)
        return float(np.mean(found.losses))

    rates = {lr: end(lr, TUNING_SEED) for lr in (0.003, 0.01, 0.03)}
    lr = min(rates, key=rates.__getitem__)
    return {"lr": lr, "losses": [end(lr, seed) for seed in range(problems.SEEDS)]}


def curves(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the curve of every method, for the left and for the right panel."""
    kept = folder / "picture.json"
    if not kept.exists():
        kept.write_text(json.dumps({**logistic(), "short memory": short_memory()}), encoding="utf-8")
    stored = json.loads(kept.read_text(encoding="utf-8"))
    left = {
        method: aggregate([(np.array(x), np.array(y)[:, None]) for x, y in stored[method]["runs"]]) for method in SHOWN
    }
    (group,) = group_runs([run for run in load_runs(folder / "digits") if run.method in SHOWN])
    right = {entry.method: loss_curve(entry, "passes") for entry in group.entries}
    return left, right


def rows(folder: Path) -> list[list[str]]:
    """Return the ends of all runs, as means over the seeds."""
    stored = json.loads((folder / "picture.json").read_text(encoding="utf-8"))
    runs = load_runs(folder / "digits")
    table = []
    for method in SHOWN:
        ends = [run.summary for run in runs if run.method == method]
        loss, digits = (np.mean([end[name] for end in ends]) for name in ("full_losses", "stationarity"))
        left = np.mean([y[-1] for _, y in stored[method]["runs"]])
        table.append([LABELS[method], f"{loss:.2g}", f"{digits:.1e}", f"{left:.1e}"])
    short = stored["short memory"]
    label = f"Adam with beta2 = {BETA2:g}, mean loss, lr = {short['lr']}"
    return [*table, [label, f"{np.mean(short['losses']):.2g}", "", ""]]


def keep(folder: Path) -> None:
    """Print the table, and write it as a results file, from which pages take their figures."""
    table = rows(folder)
    print(report.table(COLUMNS, table))
    RESULTS.parent.mkdir(exist_ok=True)
    sections = {"picture": report.section(sys.modules[__name__], table, 0.0, quick=False)}
    RESULTS.write_text(json.dumps({"sections": sections}, indent=1) + "\n", encoding="utf-8")


def draw(left: dict[str, Any], right: dict[str, Any], *, dark: bool, narrow: bool) -> Figure:
    """Return the picture for a light or a dark page, side by side or, for a phone, one above the other."""
    ink, faint = ("#d7dde5", "#39424e") if dark else ("#1b2330", "#d9dee5")
    figure = Figure(figsize=(4.6, 7.6) if narrow else (9.6, 4.1), layout="constrained")
    figure.patch.set_facecolor("none")
    panels = figure.subplots(2 if narrow else 1, 1 if narrow else 2)
    titles = (
        ("The noise of a batch stays", "Pareto stationarity", "logistic regression, three sets of labels", 0),
        ("The network can fit its data", "mean training loss", "two overlapping digits, small network", -2),
    )
    for panel, found, (title, label, about, column) in zip(panels, (left, right), titles, strict=True):
        panel.set_facecolor("none")
        for method in reversed(SHOWN):
            curve, style = found[method], STYLES[method]
            colour = style.dark if dark else style.light
            x, mean = curve.x, curve.mean[:, column]
            panel.plot(x, mean, color=colour, lw=0.8 * style.width, ls=DASHES[style.dash], label=LABELS[method])
            panel.fill_between(x, curve.low[:, column], curve.high[:, column], color=colour, alpha=0.15, lw=0)
        panel.set_yscale("log")
        panel.set_xlim(0, PASSES if found is left else problems.PASSES)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
        panel.set_title(f"{title}\n", loc="left", color=ink, fontweight="bold", fontsize=12)
        panel.text(0, 1.02, f"{label}; {about}", transform=panel.transAxes, color=ink, fontsize=9.5)
        panel.set_xlabel("passes (derivatives of one loss for one sample)", color=ink)
        panel.tick_params(colors=ink, which="both")
        panel.grid(color=faint, lw=0.6)
        for side, spine in panel.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(faint)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=2 if narrow else 5, frameon=False, labelcolor=ink
    )
    return figure


def main() -> None:
    """Write the four variants."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    left, right = curves(folder)
    keep(folder)
    with matplotlib.rc_context({"font.size": 10.5, "svg.fonttype": "none", "svg.hashsalt": "picture"}):
        for dark in (False, True):
            for narrow in (False, True):
                name = f"picture-{'dark' if dark else 'light'}{'-narrow' if narrow else ''}.svg"
                path = HERE / "_static" / name
                draw(left, right, dark=dark, narrow=narrow).savefig(path, metadata={"Date": None})
                print(f"{path}: {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
