"""The paper's claims as rules: each returns the measured figures and whether the claim holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stimulus_moo import METHODS
from stimulus_moo.lab.report.groups import Entry, Group
from stimulus_moo.lab.report.palette import FAMILY
from stimulus_moo.lab.report.scores import MEAN, counter, final_loss
from stimulus_moo.lab.study import NOT_SHOWN

#: A method counts as trained if its mean loss has fallen to this share of its value at the first step.
UNTRAINED = 0.95


@dataclass(frozen=True)
class Finding:
    """Result of a rule: the figures as text, and whether the claim holds.

    None if a method was not run, ``NOT_SHOWN`` if none of the methods was trained.
    """

    figures: str
    holds: bool | str | None


@dataclass(frozen=True)
class Claim:
    """One claim of the paper, and the rule that checks it on the runs of an experiment."""

    text: str
    rule: Callable[[Group], Finding]


def counts(key: str, expected: Mapping[str, int], below: Mapping[str, int]) -> Callable[[Group], Finding]:
    """Return the rule that counters of some methods equal ``expected``, and those of others are below ``below``."""

    def rule(group: Group) -> Finding:
        found = {method: _count(group, method, key) for method in (*expected, *below)}
        exact = all(found[method] == value for method, value in expected.items())
        fewer = all((found[method] or 0) < value for method, value in below.items())
        complete = None not in found.values()
        words = ", ".join(f"{METHODS[m].title} {_number(value)}" for m, value in found.items())
        return Finding(f"{key}: {words}", exact and fewer if complete else None)

    return rule


def lower(better: Sequence[str], worse: Sequence[str], factor: float = 1.0) -> Callable[[Group], Finding]:
    """Return the rule that each method in ``better`` ends below ``factor`` times the mean loss of each in ``worse``."""

    def rule(group: Group) -> Finding:
        left, right = _losses(group, better), _losses(group, worse)
        complete = len(left) == len(better) and len(right) == len(worse)
        holds = max(left.values()) < factor * min(right.values()) if complete else None
        much = "" if factor == 1.0 else f" (much lower: below {factor:g} times)"
        figures = f"final mean loss: {_words(left)}; against {_words(right)}{much}"
        return _judged(group, figures, holds, (*better, *worse))

    return rule


def slowest(order: Sequence[str], others: Sequence[str]) -> Callable[[Group], Finding]:
    """Return the rule that the methods in ``order`` end with the highest mean losses, the first with the highest."""

    def rule(group: Group) -> Finding:
        slow, rest = _losses(group, order), _losses(group, others)
        complete = len(slow) == len(order) and len(rest) == len(others)
        ends = [*slow.values(), max(rest.values(), default=math.nan)]
        holds = all(a > b for a, b in pairwise(ends)) if complete else None
        figures = f"final mean loss: {_words(slow)}; the others {_words(rest)}"
        return _judged(group, figures, holds, (*order, *others))

    return rule


def alike(first: str, second: str, within: float) -> Callable[[Group], Finding]:
    """Return the rule that two methods end with mean losses within a factor ``1 + within`` of each other."""

    def rule(group: Group) -> Finding:
        found = _losses(group, (first, second))
        holds = max(found.values()) <= (1 + within) * min(found.values()) if len(found) == 2 else None
        figures = f"final mean loss: {_words(found)} (alike: within {within:.0%})"
        return _judged(group, figures, holds, (first, second))

    return rule


def _judged(group: Group, figures: str, holds: bool | None, methods: Sequence[str]) -> Finding:
    """Return the finding; a comparison of methods none of which was trained shows nothing."""
    if holds is None or any(_trained(group, method) for method in methods):
        return Finding(figures, holds)
    return Finding(f"{figures} (none was trained: every loss above {UNTRAINED:.0%} of its start)", NOT_SHOWN)


def _trained(group: Group, method: str) -> bool:
    """Return whether a method has lowered its mean loss; True where the loss at the start is not known."""
    entry = _entry(group, method)
    first = [run.records[0] for run in entry.runs if run.records] if entry is not None else []
    starts = [sum(record["losses"]) / len(record["losses"]) for record in first if record["step"] == 0]
    if not starts:
        return True
    end = _losses(group, (method,))[method]
    return math.isfinite(end) and end <= UNTRAINED * sum(starts) / len(starts)


def _entry(group: Group, method: str) -> Entry | None:
    return next((entry for entry in group.entries if entry.method == method), None)


def _count(group: Group, method: str, key: str) -> float | None:
    entry = _entry(group, method)
    score = counter(entry, key) if entry is not None else None
    return None if score is None else score.mean


def _losses(group: Group, methods: Sequence[str]) -> dict[str, float]:
    """Return the final mean losses of the methods that were run; infinite for a diverged one."""
    found = {}
    for method in methods:
        entry = _entry(group, method)
        if entry is not None:
            score = final_loss(entry, MEAN)
            found[method] = math.inf if score is None or entry.diverged else score.mean
    return found


def _words(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{METHODS[method].title} {value:.4g}" for method, value in losses.items())


def _number(value: float | None) -> str:
    return "not run" if value is None else f"{value:,.0f}"


_NOISY = ("smgd", "moco", "cr-mogm")

#: The paper's claims about each experiment, in the order of the paper.
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "multimnist": (
        Claim("SMGD is the slowest, MoCo slightly faster", slowest(("smgd", "moco"), ("mgd", *FAMILY))),
        Claim("MGD and STIMULUS perform alike per iteration", alike("mgd", "stimulus", 0.05)),
        Claim("The STIMULUS family beats SMGD and MoCo per iteration", lower(FAMILY, ("smgd", "moco"))),
        Claim(
            "STIMULUS-M and STIMULUS-M+ beat MGD, STIMULUS and STIMULUS+ per iteration",
            lower(("stimulus-m", "stimulus-m+"), ("mgd", "stimulus", "stimulus+")),
        ),
        Claim(
            "MGD needs the most samples (307,200 by arithmetic), the + variants fewer than STIMULUS (56,640)",
            counts(
                "samples",
                {"mgd": 307_200, "stimulus": 56_640, "stimulus-m": 56_640},
                {"stimulus+": 56_640, "stimulus-m+": 56_640},
            ),
        ),
    ),
    "attributes": (
        Claim("MGD and the STIMULUS family beat SMGD, CR-MOGM and MoCo", lower(("mgd", *FAMILY), _NOISY)),
        Claim(
            "Samples: MGD 102,400, STIMULUS and STIMULUS-M 13,120, the + variants fewer (about 11,000)",
            counts(
                "samples",
                {"mgd": 102_400, "stimulus": 13_120, "stimulus-m": 13_120},
                {"stimulus+": 13_120, "stimulus-m+": 13_120},
            ),
        ),
    ),
    "riverflow": (
        Claim("The STIMULUS family has much lower losses than SMGD and MoCo", lower(FAMILY, ("smgd", "moco"), 0.5)),
        Claim(
            "Samples (our `gradients`): SMGD 8,000, MoCo 8,000, MGD 128,000, STIMULUS and STIMULUS-M 27,200, the + "
            "variants fewer (20,947 and 21,085)",
            counts(
                "gradients",
                {"smgd": 8_000, "moco": 8_000, "mgd": 128_000, "stimulus": 27_200, "stimulus-m": 27_200},
                {"stimulus+": 27_200, "stimulus-m+": 27_200},
            ),
        ),
    ),
}
