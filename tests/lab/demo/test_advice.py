"""What the demo says follows from the figures, whoever is ahead."""

from dataclasses import replace

import pytest

from stimulus_moo.diagnosis.gradients import Look
from stimulus_moo.lab.demo.advice import advice, costs, limits, part
from stimulus_moo.lab.demo.problems import DIGITS, NAMES, SCALED
from stimulus_moo.lab.demo.result import Result
from stimulus_moo.lab.report.groups import group_runs
from stimulus_moo.lab.report.scores import Score

from ..fake_runs import fake_run

AUTO, ADAM, SMGD, STIMULUS = "auto", "scalarisation-adam", "smgd", "stimulus-m"


def look(signal=(1.0, 1.0), noise=(1.0, 1.0)):
    return Look([2.0, 2.0], [*signal], [*noise], [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], 0.0, [True, True])


def result(ends, comparison=DIGITS, signal=(1.0, 1.0), noise_left=0.001, weights=None, steps=None):
    """A result with these ends, a pair of seeds each, best first; ``steps`` of single methods."""
    runs = [
        fake_run(method, seed, ("left", "right"), steps=(steps or {}).get(method, 60))
        for method in ends
        for seed in (0, 1)
    ]
    for run in runs:
        for record in run.records if weights else ():
            record["weights"] = weights
    (group,) = group_runs(runs)
    entries = [replace(entry, name=NAMES[entry.method]) for entry in group.entries]
    entries.sort(key=lambda entry: list(ends).index(entry.method))
    left = tuple(Score(pair) for pair in ends.values())
    return Result(comparison, replace(group, entries=tuple(entries)), left, look(signal), look(noise=[noise_left] * 2))


def test_the_best_method_is_advised_with_its_figures():
    head, ends = advice(result({AUTO: (1e-6, 3e-6), ADAM: (0.1, 0.2), SMGD: (0.3, 0.4)}, steps={SMGD: 30}))
    assert head == (
        "On two overlapping digits, use auto, because cheap steps are ahead (auto, Adam on the mean loss): as the "
        "network fits its data, the noise of a batch's gradient falls to 1/1,000 of its start, and many steps count "
        "more than precise ones."
    )
    assert ends == "The worst loss ends at 1/500,000 of its start; with Adam on the mean loss at 15%."


def test_where_auto_is_behind_the_sentences_say_so():
    ends = {ADAM: (0.001, 0.002), SMGD: (0.01, 0.02), AUTO: (0.3, 0.5)}
    head, figures = advice(result(ends, steps={SMGD: 30, AUTO: 30}))
    assert "use Adam on the mean loss, because cheap steps are ahead (Adam on the mean loss)" in head
    assert figures.endswith("with SMGD at 1.5%; with auto at 40%.")
    assert "use Adam on the mean loss, although neither" in advice(result(ends, steps={SMGD: 30}))[0]


def test_overlapping_seeds_are_level():
    head, _ = advice(result({AUTO: (0.1, 0.3), ADAM: (0.2, 0.25)}))
    assert head == (
        "On two overlapping digits, auto and Adam on the mean loss are level: the ranges of their seeds overlap."
    )


def test_noise_that_stays_is_a_reason_for_variance_reduction_only():
    stays = {"noise_left": 0.4}
    assert (
        "because precise gradients count: 40% of the noise"
        in advice(result({STIMULUS: (0.1,), ADAM: (0.2,)}, **stays))[0]
    )
    assert "although neither noise nor cost" in advice(result({ADAM: (0.1,), STIMULUS: (0.2,)}, **stays))[0]


def test_few_steps_are_not_called_cheap():
    found = result({SMGD: (0.1,), ADAM: (0.2,)}, steps={SMGD: 30})
    assert "it takes 30 steps, another method 60" in advice(found)[0]


@pytest.mark.parametrize(
    ("ends", "weights", "said"),
    [
        (
            {AUTO: (0.1,), ADAM: (0.2,)},
            [0.02, 1.0],
            "and its weights make up for that: on average they differ by a factor of 50",
        ),
        ({AUTO: (0.1,), ADAM: (0.2,)}, [0.5, 0.5], "although the gradient of 'left' is 100 times as long"),
        ({ADAM: (0.1,), AUTO: (0.2,)}, [0.5, 0.5], "and its weights do not make up for that"),
    ],
)
def test_scales_are_a_reason_if_the_weights_follow_them(ends, weights, said):
    assert said in advice(result(ends, SCALED, signal=(1.0, 0.01), weights=weights))[0]


def test_limits_have_the_figures_of_the_rivals_and_leave_out_what_does_not_hold():
    digits = result({AUTO: (1e-6,), ADAM: (1e-4,), STIMULUS: (0.14,)})
    scaled = result({AUTO: (1e-6,), ADAM: (0.13,)}, SCALED)
    same, known, paper, _ = limits(digits, scaled)
    assert "1/10,000" in same
    assert "1/10,000 in place of 13%" in known
    assert "STIMULUS-M ends at 14%" in paper
    assert len(limits(result({STIMULUS: (1e-6,), ADAM: (0.1,)}), result({ADAM: (0.01,), AUTO: (0.1,)}, SCALED))) == 2


def test_costs_are_per_step():
    run = fake_run(ADAM, 0, ("a", "b"), steps=60)
    said = costs(result({ADAM: (0.1,), SMGD: (0.2,)}))
    assert f"Adam on the mean loss {run.summary['passes'] / 60:.0f} passes" in said


@pytest.mark.parametrize(
    ("share", "text"), [(1.2, "120%"), (0.0, "0%"), (0.0101, "1%"), (0.0099, "1/100"), (1e-7, "1/10,000,000")]
)
def test_shares_are_percentages_or_fractions(share, text):
    assert part(share) == text
