"""Sentences about the demo's results, all of them generated from measured figures: what to use, why, and when not."""

from __future__ import annotations

from stimulus_moo.lab.demo.result import Result, steps_of
from stimulus_moo.lab.report.curves import weight_curve
from stimulus_moo.lab.report.groups import Entry
from stimulus_moo.lab.report.scores import Score, counter

#: Gradients whose lengths differ by this factor have different scales, as in ``diagnose``.
DIFFERENT = 10.0
#: The noise of a batch's gradient has vanished if at most this share of it is left.
VANISHED = 0.1
#: A method's steps are cheap if it takes at least this share of the steps of the one that takes most.
MANY = 0.8


def advice(found: Result) -> tuple[str, str]:
    """Return what to use on a problem and why, and the figures behind it: a sentence each."""
    problem = found.comparison.short
    (best, score), *others = found.ranked
    if not others:
        return f"On {problem}, only {best.label} was trained to the end.", f"It ends at {part(score)} of its start."
    (second, rival), *rest = others
    ends = [f"The worst loss ends at {part(score)} of its start", f"with {second.label} at {part(rival)}"]
    ends += [f"with {entry.label} at {part(other)}" for entry, other in rest if entry.method == "auto"]
    if not score.apart(rival):
        head = f"On {problem}, {best.label} and {second.label} are level: the ranges of their seeds overlap."
    else:
        head = f"On {problem}, use {best.label}, {why(found)}."
    return head, f"{'; '.join(ends)}."


def why(found: Result) -> str:
    """Return the reason, from the scales of the losses, or else from the noise and the number of steps."""
    best = found.ranked[0][0]
    ratio, large, small = found.scales
    if ratio >= DIFFERENT:
        return _scales(best, ratio, large, small, found.group.tasks)
    noise, most = found.noise_left, max(steps_of(entry) for entry, _ in found.ranked)
    cheap = [entry.label for entry, _ in found.ranked if steps_of(entry) >= MANY * most]
    ahead = [entry.label for entry, _ in found.ranked[: len(cheap)]]
    if noise <= VANISHED and cheap == ahead and len(cheap) < len(found.ranked):
        return (
            f"because cheap steps are ahead ({', '.join(cheap)}): as the network fits its data, the noise of a batch's "
            f"gradient falls to {part(noise)} of its start, and many steps count more than precise ones"
        )
    if noise > VANISHED and best.ours:
        return f"because precise gradients count: {part(noise)} of the noise of a batch's gradient is left at the end"
    return (
        f"although neither noise nor cost explains it: {part(noise)} of the noise of a batch's gradient is left at the "
        f"end, and it takes {steps_of(best):,.0f} steps, another method {most:,.0f}"
    )


def costs(found: Result) -> str:
    """Return what a step of each method costs on a problem."""
    steps = [f"{entry.label} {_per_step(entry)}" for entry, _ in found.ranked]
    return f"A step on {found.comparison.short}: {'; '.join(steps)}."


def limits(digits: Result, scaled: Result) -> list[str]:
    """Return when not to use the library, from the figures of both problems."""
    adam = {found.comparison.experiment: _named(found, "scalarisation-adam") for found in (digits, scaled)}
    before, after = adam[digits.comparison.experiment], adam[scaled.comparison.experiment]
    sentences = []
    if before is not None:
        sentences.append(
            f"Your losses have the same scale, and a good fit is enough. On the first problem, Adam on the mean loss "
            f"with a tuned learning rate brings both losses to {part(before)} of their start or lower."
        )
    if before is not None and after is not None and after.mean > before.mean:
        sentences.append(
            f"You know the scales of your losses. Divide each loss by its scale: the second problem is then the first, "
            f"and Adam on the mean loss ends at {part(before)} in place of {part(after)}."
        )
    stimulus, best = _named(digits, "stimulus-m"), digits.ranked[0][1]
    if stimulus is not None and stimulus.mean > best.mean:
        sentences.append(
            f"You want a method of the paper for a network that fits its data. STIMULUS-M ends at {part(stimulus)} on "
            f"the first problem, where the best ends at {part(best)}; it is for problems whose gradient noise stays."
        )
    return [
        *sentences,
        "You tune Adam's beta2, too. It can be ahead of auto then (measured on these digits by: make picture).",
    ]


def part(value: float | Score) -> str:
    """Return a share as a percentage or, if it is small, as a fraction.

    >>> part(0.134), part(0.0000062)
    ('13%', '1/160,000')
    """
    share = value.mean if isinstance(value, Score) else value
    if share >= 0.01 or share <= 0.0:
        return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"
    return f"1/{float(f'{1 / share:.2g}'):,.0f}"


def _per_step(entry: Entry) -> str:
    passes, seconds = counter(entry, "passes"), counter(entry, "seconds")
    assert passes is not None  # complete runs have both
    assert seconds is not None
    steps = steps_of(entry)
    return f"{passes.mean / steps:.0f} passes, {1e3 * seconds.mean / steps:.1f} ms"


def _scales(best: Entry, ratio: float, large: int, small: int, tasks: tuple[str, ...]) -> str:
    differ = f"the gradient of {tasks[large]!r} is {ratio:.0f} times as long as that of {tasks[small]!r} at the start"
    curve = weight_curve(best)
    assert curve is not None  # complete runs have weights
    weights = curve.mean.mean(axis=0)
    balance = float(weights[small] / max(weights[large], 1e-12))
    if balance < ratio**0.5:
        return f"although {differ}, and its weights do not make up for that"
    return f"because {differ}, and its weights make up for that: on average they differ by a factor of {balance:.0f}"


def _named(found: Result, method: str) -> Score | None:
    return next((score for entry, score in found.ranked if entry.method == method), None)
