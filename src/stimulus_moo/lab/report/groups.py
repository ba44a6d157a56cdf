"""Grouping of runs: one group per experiment, with one entry per method and variant, over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stimulus_moo.lab.methods import LAB_METHODS
from stimulus_moo.lab.report.palette import FAMILY, Style, styles_for

if TYPE_CHECKING:
    from stimulus_moo.lab.runs import RecordedRun

#: Settings that distinguish variants of a method, with their names in labels.
VARIED = {
    "momentum": "momentum",
    "lr": "step size",
    "batch_size": "batch",
    "period": "period",
    "n": "n",
    "steps": "steps",
    "gradients": "gradients",
    "passes": "passes",
    "seconds": "seconds",
    "decay": "decay",
    "reweigh": "reweigh",
    "epsilon": "epsilon",
    "sigma2": "sigma2",
    "c_gamma": "c_gamma",
    "c_epsilon": "c_epsilon",
    "alpha": "alpha",
    "beta": "beta",
    "gamma": "gamma",
    "rho": "rho",
}


@dataclass(frozen=True)
class Entry:
    """A method, or a method with one value of a setting, and its runs, one per seed. One line in every figure.

    ``name`` replaces the title of the method, if it is given.
    """

    method: str
    variant: str
    style: Style
    runs: tuple[RecordedRun, ...]
    name: str = ""

    @property
    def label(self) -> str:
        """Title of the method, and the variant if there are several."""
        title = self.name or (LAB_METHODS[self.method].title if self.method in LAB_METHODS else self.method)
        return f"{title}, {self.variant}" if self.variant else title

    @property
    def family(self) -> bool:
        """Whether the method is one of the STIMULUS variants."""
        return self.method in FAMILY

    @property
    def ours(self) -> bool:
        """Whether verdicts are about the method: a STIMULUS variant, or auto, which is built on them."""
        return self.family or self.method == "auto"

    @property
    def scalarisation(self) -> bool:
        """Whether the method has fixed weights."""
        fixed = self.runs[0].settings.get("weighting") in (None, "equal")
        return "scalarisation" in self.method and fixed

    @property
    def diverged(self) -> tuple[RecordedRun, ...]:
        """The runs that diverged, with a non-finite loss or gradient."""
        return tuple(run for run in self.runs if _diverged(run))


@dataclass(frozen=True)
class Group:
    """All runs of one experiment."""

    name: str
    tasks: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """All runs, in the order of the entries."""
        return tuple(run for entry in self.entries for run in entry.runs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds."""
        return tuple(sorted({run.seed for run in self.runs}))

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods, without duplicates."""
        return tuple(dict.fromkeys(entry.method for entry in self.entries))

    @property
    def synthetic(self) -> bool:
        """Whether any run used generated data."""
        return any(bool(run.settings.get("synthetic")) for run in self.runs)

    def fact(self, key: str) -> str:
        """Return the value of a setting as text; different values are joined."""
        found = dict.fromkeys(str(run.settings[key]) for run in self.runs if run.settings.get(key) not in (None, ""))
        return "; ".join(found)

    @property
    def title(self) -> str:
        """Title of the experiment."""
        return self.fact("title") or self.name


def group_runs(runs: Iterable[RecordedRun]) -> list[Group]:
    """Group runs by experiment, method and variant, in the order of ``LAB_METHODS``."""
    found: dict[tuple[str, tuple[str, ...]], list[RecordedRun]] = {}
    for run in runs:
        found.setdefault((run.experiment, task_names(run)), []).append(run)
    return [Group(name, tasks, _entries(members)) for (name, tasks), members in sorted(found.items())]


def task_names(run: RecordedRun) -> tuple[str, ...]:
    """Return the names of the tasks of a run, or numbers if they are not stored."""
    named = run.settings.get("tasks")
    if named:
        return tuple(str(name) for name in named)
    sizes = [len(row.get("full_losses") or row.get("losses") or ()) for row in (*run.records, run.summary)]
    return tuple(f"task {s}" for s in range(max(sizes, default=0)))


def step_size(run: RecordedRun) -> Any:
    """Return the learning rate of a run."""
    own = run.settings.get("lr_of")
    return (own if isinstance(own, dict) else {}).get(run.method, run.settings.get("lr"))


def _entries(runs: Sequence[RecordedRun]) -> tuple[Entry, ...]:
    order = list(LAB_METHODS)
    methods = sorted({run.method for run in runs}, key=lambda m: (order.index(m) if m in order else len(order), m))
    keyed: dict[tuple[str, str], list[RecordedRun]] = {}
    for method in methods:
        mine = [run for run in runs if run.method == method]
        varied = [key for key in VARIED if len({str(_setting(run, key)) for run in mine}) > 1]
        for run in sorted(mine, key=lambda run: ([_rank(_setting(run, key)) for key in varied], run.seed)):
            weighting = run.settings.get("weighting")
            named = [] if weighting is None else [f"{weighting} weights"]
            variant = ", ".join([*named, *(f"{VARIED[key]} {_setting(run, key)}" for key in varied)])
            keyed.setdefault((method, variant), []).append(run)
    styles = styles_for(keyed)
    return tuple(Entry(*key, style, tuple(keyed[key])) for key, style in zip(keyed, styles, strict=True))


def _setting(run: RecordedRun, key: str) -> Any:
    return step_size(run) if key == "lr" else run.settings.get(key)


def _rank(value: Any) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (math.inf, str(value))


def _diverged(run: RecordedRun) -> bool:
    last = run.summary.get("full_losses") or ()
    return bool(run.summary.get("diverged")) or any(value is None or not math.isfinite(value) for value in last)
