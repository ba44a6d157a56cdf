"""The paper's claims as rules: each returns the measured figures and whether the claim holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stimulus_moo import METHODS
from stimulus_moo.lab.report.groups import Entry, Group
from stimulus_moo.lab.report.palette import FAMILY
from stimulus_moo.lab.report.scores import MEAN, counter, final_loss


@dataclass(frozen=True)
class Finding:
    """Result of a rule: the figures as text, and whether the claim holds, or None if a method was not run."""

    figures: str
    holds: bool | None


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


def lower(better: Sequence[str], worse: Sequence[str]) -> Callable[[Group], Finding]:
    """Return the rule that every method in ``better`` ends with a lower mean loss than every method in ``worse``."""

    def rule(group: Group) -> Finding:
        left, right = _losses(group, better), _losses(group, worse)
        complete = len(left) == len(better) and len(right) == len(worse)
        holds = max(left.values()) < min(right.values()) if complete else None
        return Finding(f"final mean loss: {_words(left)}; against {_words(right)}", holds)

    return rule


def alike(first: str, second: str, within: float) -> Callable[[Group], Finding]:
    """Return the rule that two methods end with mean losses within a factor ``1 + within`` of each other."""

    def rule(group: Group) -> Finding:
        found = _losses(group, (first, second))
        holds = max(found.values()) <= (1 + within) * min(found.values()) if len(found) == 2 else None
        return Finding(f"final mean loss: {_words(found)} (alike: within {within:.0%})", holds)

    return rule


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
        Claim("SMGD is the slowest, MoCo slightly faster", lower(("moco",), ("smgd",))),
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
        Claim("The STIMULUS family has much lower losses than SMGD and MoCo", lower(FAMILY, ("smgd", "moco"))),
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
