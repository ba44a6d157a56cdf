"""What an experiment's numbers say in words: who is ahead at the end and at equal cost, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stimulus_moo.lab.report import scores
from stimulus_moo.lab.report.curves import evaluations
from stimulus_moo.lab.report.scores import MEAN, Score

if TYPE_CHECKING:
    from stimulus_moo.lab.report.groups import Entry, Group

_Scored = tuple["Entry", Score]


@dataclass(frozen=True)
class Verdict:
    """A short label (``ahead``, ``level``, ``behind``, ``mixed`` or ``no comparison``) and the sentences behind it."""

    label: str
    sentences: tuple[str, ...]


def verdict(group: Group) -> Verdict:
    """Compare the best STIMULUS variant with the best other method and the best scalarisation.

    One is ahead of another if every seed is better than every seed of the other; where the ranges touch they are level.
    """
    sentences, labels = [], []
    final = _ranked(group, lambda entry: scores.final_loss(entry, MEAN))
    if not final:
        return Verdict(
            "no comparison", ("No loss over the whole training set was evaluated: nothing can be compared.",)
        )
    best, score = final[0]
    sentences.append(f"Lowest mean training loss at the end: {best.label}, {_words(score)}.")
    budget = scores.equal_budget(group)
    labels += _against(final, "at the end" if budget else "at the end, and at equal cost", sentences)
    if budget is not None:
        equal = _ranked(group, lambda entry: scores.loss_at(entry, "gradients", budget))
        labels += _against(equal, f"at equal cost ({budget:,.0f} gradient evaluations)", sentences)
    if not labels:
        return Verdict("no comparison", tuple(sentences))
    return Verdict(labels[0] if len(set(labels)) == 1 else "mixed", tuple(sentences))


def missing(group: Group) -> list[str]:
    """Return what a reader must know about gaps: single seeds, divergence, unfinished runs, nothing evaluated."""
    found = []
    if group.synthetic:
        found.append("The data is synthetic: made by a program, not measured.")
    found += _about_seeds(group)
    for entry in group.entries:
        for run in entry.diverged:
            why = run.summary.get("error") or "a loss became infinite or not a number"
            found.append(
                f"{entry.label}, seed {run.seed}, diverged: {why}. Its curves stop there and it is not ranked."
            )
        cut = [str(run.seed) for run in entry.runs if not run.summary]
        if cut:
            found.append(f"{entry.label}, seed {', '.join(cut)}, was not finished: it has no summary.")
    for key, name in (("full_losses", "loss over the whole training set"), ("stationarity", "stationarity")):
        without = [entry.label for entry in group.entries if not any(evaluations(run, key) for run in entry.runs)]
        if without:
            found.append(f"No {name} was evaluated for {_some(without, group)}.")
    if not scores.test_metrics(group):
        found.append("No test metric was measured.")
    if not any(entry.scalarisation for entry in group.entries):
        found.append("No scalarisation baseline was run, so this says nothing about fixed weights.")
    return found


def _about_seeds(group: Group) -> list[str]:
    if len(group.seeds) == 1:
        return [f"Only one seed ({group.seeds[0]}) was run: there is no band, and differences may be chance."]
    fewer = [entry.label for entry in group.entries if len(entry.runs) < len(group.seeds)]
    return [f"Fewer than {len(group.seeds)} seeds: {_some(fewer, group)}."] if fewer else []


def _some(labels: Sequence[str], group: Group) -> str:
    return "any method" if len(labels) == len(group.entries) else ", ".join(labels)


def _ranked(group: Group, score_of: Callable[[Entry], Score | None]) -> list[_Scored]:
    scored = [(entry, score_of(entry)) for entry in group.entries if not entry.diverged]
    known = [(entry, score) for entry, score in scored if score is not None]
    return sorted(known, key=lambda pair: pair[1].mean)


def _against(ranked: Sequence[_Scored], when: str, sentences: list[str]) -> list[str]:
    """Add a sentence per rival of the best STIMULUS variant, and return the labels."""
    ours = next((pair for pair in ranked if pair[0].family), None)
    if ours is None:
        return []
    others = [pair for pair in ranked if not pair[0].family]
    rivals = [next((pair for pair in others if pair[0].scalarisation is kind), None) for kind in (False, True)]
    names = ("the best other multi-objective method", "the best scalarisation")
    labels = []
    for name, rival in zip(names, rivals, strict=True):
        if rival is None:
            continue
        label, how = _compare(ours[1], rival[1])
        labels.append(label)
        sentences.append(
            f"{when.capitalize()}, {ours[0].label} ({_words(ours[1])}) is {how} "
            f"{rival[0].label} ({_words(rival[1])}), {name}."
        )
    return labels


def _compare(ours: Score, rival: Score) -> tuple[str, str]:
    if len(ours.values) > 1 and not ours.apart(rival):
        return "level", "level, within the spread of the seeds, with"
    if ours.mean == rival.mean:
        return "level", "level with"
    ahead = ours.mean < rival.mean
    share = abs(ours.mean - rival.mean) / abs(rival.mean) if rival.mean else 0.0
    if not ahead and share >= 1:
        return "behind", f"{ours.mean / rival.mean:.1f} times that of"
    size = f"{share:.0%}" if share >= 0.005 else "just"
    return ("ahead", f"{size} below") if ahead else ("behind", f"{size} above")


def _words(score: Score) -> str:
    return f"{score.mean:.4g} ± {score.std:.2g}" if len(score.values) > 1 else f"{score.mean:.4g}, one seed"
