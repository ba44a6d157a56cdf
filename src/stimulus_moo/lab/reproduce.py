"""``make reproduce``: run every experiment and study of the paper, and write the page of results. Resumable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from stimulus_moo.lab.experiments import EXPERIMENTS
from stimulus_moo.lab.report.reproduction import BEYOND, write_page
from stimulus_moo.lab.runs.interrupts import Interrupted
from stimulus_moo.lab.runs.runner import compare, run_study, with_baselines
from stimulus_moo.lab.runs.watch import Watch
from stimulus_moo.lab.studies import STUDIES

SEEDS = 3


@dataclass(frozen=True)
class Part:
    """One block of runs: an experiment with the paper's settings or with changes."""

    experiment: str
    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()  # default: those of the experiment; the baselines are added


#: Methods that the safeguard affects, and SMGD for comparison. Other methods evaluate one point per step: no effect.
GUARDED = ("smgd", "moco+", "stimulus", "stimulus-m", "stimulus+", "stimulus-m+")

#: The paper's settings with the published methods unchanged, a step size at which training is stable and makes
#: progress, and the paper's step size with the safeguard.
PARTS = (
    Part("digits", "ours"),
    Part("riverflow", "paper", {"guard": False}),
    Part("riverflow", "other-step", {"lr": 0.03, "guard": False}),
    Part("riverflow", "guarded", methods=GUARDED),
    Part("multimnist", "paper", {"guard": False}),
    Part("multimnist", "other-step", {"lr": 0.03, "guard": False}),
    Part("multimnist", "guarded", methods=GUARDED),
    Part("attributes", "paper", {"guard": False}),
    Part("attributes", "guarded", methods=GUARDED),
)


def reproduce(out: Path, page: Path | None, *, seeds: int, data: Path | None, only: Sequence[str]) -> None:
    """Run the missing runs below ``out``, then write the page."""
    with Watch(Console(stderr=True), "reproduction", None) as watch:
        for part in PARTS:
            if only and part.experiment not in only:
                continue
            experiment = EXPERIMENTS[part.experiment]
            settings = experiment.settings.override(part.changes)
            methods = with_baselines(part.methods or experiment.methods)
            folder = out / part.label
            compare(experiment, methods, settings, range(seeds), folder, resume=True, data=data, progress=watch)
        for name, study in STUDIES.items():
            if name not in only if only else name in BEYOND:
                continue
            settings_of_study = {**study.settings, **({"data": str(data)} if data and "data" in study.settings else {})}
            run_study(study, settings_of_study, seeds, out / "studies" / name, resume=True, progress=watch)
    if page is not None:
        write_page(out, page)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/reproduction"))
    parser.add_argument("--page", type=Path, default=None, help="file of the page; default: no page")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", nargs="*", default=[], help="experiments and studies to run; default: all")
    given = parser.parse_args()
    try:
        reproduce(given.out, given.page, seeds=given.seeds, data=given.data, only=given.only)
    except Interrupted as stopped:
        print(f"stopped by {stopped}; all results so far are saved, run the same command to resume", file=sys.stderr)
        raise SystemExit(stopped.code) from None


if __name__ == "__main__":
    main()
