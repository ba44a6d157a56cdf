"""Calls with invalid arguments: they must raise a typed error or return a valid object, and never change the model.

Arguments of every public constructor and function are replaced by random invalid values, and so are the words of the
command line. Hypothesis draws and shrinks the values. The tests run a part of this with every change.
"""

from __future__ import annotations

import contextlib
import functools
import math
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import stimulus_moo as sm
from stimulus_moo.lab.cli.setting_options import OPTIONS

TITLE = "Calls"
TEXT = """
One or several arguments of a public constructor, of `fit` or of the command line are replaced by invalid values. A call
must return or raise a `StimulusError` (on the command line: exit with 0, 1, 2 or 3 and print no traceback). A call that
raises must not change the model. A run that diverges, for example at an extreme step size, counts as returned.
"""
COLUMNS = ("what is called", "calls", "returned", "refused with a typed error", "other exceptions", "models changed")
EXAMPLES = 1000

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [10**9, 10**30, -(10**30), 0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e308, True, False, 1j]
    ),
    st.floats(),
)
JUNK = st.one_of(
    st.none(),
    NUMBERS,
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(NUMBERS, max_size=3),
    st.dictionaries(st.text(max_size=2), NUMBERS, max_size=2),
    st.builds(object),
    st.sampled_from([torch.float32, torch.device("meta")]),
    st.sampled_from([(0,), (2,), (3, 2), ()]).map(torch.zeros),
    st.builds(lambda: iter([1, 2])),
    st.builds(lambda: torch.full((2, 2), math.nan)),
)


def losses(model: Any, batch: Any) -> Any:
    return (model(batch[0]) - batch[1]).square().mean(0)


def _loader() -> Any:
    return [(X[:6], Y[:6]), (X[6:], Y[6:])]


def _estimators() -> st.SearchStrategy[Any]:
    return st.sampled_from([sm.MiniBatch(), sm.Recursive(_loader(), 2), sm.Storm(0.5)])


#: the callables, with valid values for their arguments
CALLS: dict[str, tuple[Callable[..., Any], Mapping[str, st.SearchStrategy[Any]]]] = {
    "MultiGradient": (
        sm.MultiGradient,
        {
            "model": st.builds(lambda: torch.nn.Linear(3, 2)),
            "losses": st.just(losses),
            "estimator": _estimators(),
            "weighting": st.sampled_from([None, sm.MinNorm()]),
            "shared": st.none(),
            "micro_batch": st.sampled_from([None, 3]),
            "batch_size": st.none(),
            "engine": st.sampled_from(["auto", "rowwise"]),
            "rows_dtype": st.sampled_from([None, torch.float64]),
            "rows_device": st.sampled_from([None, "cpu"]),
            "on_nonfinite": st.sampled_from(["raise", "skip"]),
        },
    ),
    "Recursive": (sm.Recursive, {"anchor": st.builds(_loader), "period": st.just(3)}),
    "Page": (sm.Page, {"anchor": st.builds(_loader), "probability": st.just(0.5), "seed": st.just(0)}),
    "Full": (sm.Full, {"anchor": st.builds(_loader)}),
    "Storm": (sm.Storm, {"beta": st.just(0.5)}),
    "Tracking": (sm.Tracking, {"beta": st.just(0.5)}),
    "AdaptiveBatch": (
        sm.AdaptiveBatch,
        {
            "dataset": st.just((X, Y)),
            "epsilon": st.just(0.1),
            "sigma2": st.sampled_from(["auto", 1.0]),
            "c_gamma": st.just(8.0),
            "c_epsilon": st.just(1.0),
            "momentum": st.just(0.5),
            "micro_batch": st.just(4),
            "seed": st.just(0),
        },
    ),
    "MinNorm": (sm.MinNorm, {"preference": st.just([1.0, 2.0]), "normalise": st.booleans()}),
    "Fixed": (sm.Fixed, {"weights": st.just([1.0, 2.0])}),
    "Smoothed": (sm.Smoothed, {"weighting": st.builds(sm.MinNorm), "alpha": st.just(0.5)}),
    "ProjectedDescent": (
        sm.ProjectedDescent,
        {"gamma": st.just(0.1), "rho": st.just(0.0), "projection": st.just("simplex"), "normalise": st.booleans()},
    ),
    "HeavyBall": (
        sm.HeavyBall,
        {
            "params": st.builds(lambda: list(torch.nn.Linear(3, 2).parameters())),
            "lr": st.just(0.1),
            "momentum": st.just(0.5),
            "weight_decay": st.just(0.0),
        },
    ),
    "RandomClock": (
        sm.RandomClock,
        {
            "parameters": st.builds(lambda: list(torch.nn.Linear(3, 2).parameters())),
            "mu": st.just(0.5),
            "lr": st.just(0.1),
            "seed": st.just(0),
        },
    ),
    "fit": (
        sm.fit,
        {
            "model": st.builds(lambda: torch.nn.Linear(3, 2)),
            "losses": st.just(losses),
            "dataset": st.just((X, Y)),
            "lr": st.just(0.01),
            "method": st.sampled_from(list(sm.METHODS)),
            "momentum": st.just(0.5),
            "batch_size": st.sampled_from([None, 3]),
            "period": st.sampled_from([None, 2]),
            "steps": st.just(2),
            "gradients": st.none(),
            "tolerance": st.none(),
            "evaluation": st.none(),
            "evaluate_every": st.none(),
            "weighting": st.none(),
            "optimizer": st.none(),
            "scheduler": st.none(),
            "shared": st.none(),
            "micro_batch": st.none(),
            "engine": st.just("auto"),
            "anchor_batch": st.just(5),
            "collate_fn": st.none(),
            "workers": st.just(0),
            "mu": st.none(),
            "seed": st.just(0),
            "on_nonfinite": st.just("raise"),
            "callbacks": st.just([lambda told: told.step >= 2]),
            "progress": st.just(False),
            "checkpoint_every": st.just(1),
            "checkpoint_keep": st.just(1),
            "resume": st.just(False),
            "epsilon": st.just(0.1),
            "sigma2": st.just("auto"),
            "alpha": st.just(0.5),
            "beta": st.just(0.5),
            "gamma": st.just(0.5),
            "rho": st.just(0.0),
            "probability": st.none(),
            "weights": st.none(),
        },
    ),
    "measure": (
        sm.measure,
        {
            "model": st.builds(lambda: torch.nn.Linear(3, 2)),
            "losses": st.just(losses),
            "batches": st.builds(_loader),
            "micro_batch": st.none(),
            "batch_size": st.none(),
        },
    ),
    "min_norm_weights": (sm.min_norm_weights, {"gramian": st.just(torch.eye(2))}),
    "project_simplex": (sm.project_simplex, {"vector": st.just(torch.ones(2))}),
    "kkt_residual": (sm.kkt_residual, {"gramian": st.just(torch.eye(2)), "weights": st.just(torch.ones(2) / 2)}),
}

#: arguments for which an invalid value would make the call endless or harmful
_SPARED = {("fit", "callbacks")}


class Tally:
    """Counts the results of the calls."""

    def __init__(self) -> None:
        self.calls = self.returned = self.refused = self.changed = 0
        self.other: list[str] = []

    def row(self, name: str) -> list[object]:
        other = f"{len(self.other)}: {self.other[0]}" if self.other else 0
        return [name, self.calls, self.returned, self.refused, other, self.changed]


def arguments(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return arguments of a call, one or a few of them invalid."""
    _, sound = CALLS[name]
    spoilt = st.lists(st.sampled_from([key for key in sound if (name, key) not in _SPARED]), min_size=1, max_size=3)
    return spoilt.flatmap(
        lambda chosen: st.fixed_dictionaries({k: JUNK if k in chosen else strategy for k, strategy in sound.items()})
    )


def call(name: str, tally: Tally, given_: dict[str, Any]) -> None:
    """Make a call and record its result."""
    function, _ = CALLS[name]
    model = given_.get("model")
    before, refused = _copy(model), tally.refused
    tally.calls += 1
    try:
        function(**given_)
        tally.returned += 1
    except sm.NonFiniteError:
        tally.returned += 1  # the arguments were valid, and the run diverged
    except sm.StimulusError:
        tally.refused += 1
    except Exception as error:
        if any(frame.name == losses.__name__ for frame in traceback.extract_tb(error.__traceback__)):
            tally.refused += 1  # by the user's own losses, whose exceptions are passed on unchanged
        else:
            tally.other.append(f"{type(error).__name__}: {error} for {given_}")
    finally:
        tally.changed += tally.refused > refused and _copy(model) != before


def _copy(model: Any) -> Any:
    if not isinstance(model, torch.nn.Module):
        return None
    return [(name, tensor.tolist()) for name, tensor in model.state_dict().items()]


def command_lines() -> st.SearchStrategy[list[str]]:
    """Return words for the command line, mostly valid."""
    values = st.one_of(
        st.sampled_from(
            ["1", "0", "-1", "nan", "inf", "1e400", "0.5", "1,2", "a=b", "mgd=0.1", "auto", "{}", "[1", "tiny"]
        ),
        st.integers(-(10**20), 10**20).map(str),
        st.text(max_size=6),
    )
    names = [*OPTIONS, "method", "seed", "checkpoint-every", "workers", "on-nonfinite", "set", "data", "nonsense"]
    option = st.tuples(st.sampled_from(names), values).map(lambda pair: f"--{pair[0].replace('_', '-')}={pair[1]}")
    sound = st.sampled_from(
        ["--lr=0.1", "--momentum=0.5", "--batch-size=4", "--period=3", "--quick", "--method=MGD", "--seed=1", "--n=32"]
    )
    start = st.sampled_from(
        [
            ["run", "tiny"],
            ["compare", "tiny"],
            ["run", "squares"],
            ["run"],
            ["report"],
            ["data", "check"],
            ["data"],
            ["rank"],
        ]
    )
    return st.tuples(start, st.lists(st.one_of(sound, sound, option, values), max_size=4)).map(lambda p: [*p[0], *p[1]])


def command(words: list[str], place: Path, tally: Tally) -> None:
    """Run the command line with the tiny experiments in its own folder and record the result."""
    from typer.testing import CliRunner

    from stimulus_moo.lab import cli

    tally.calls += 1
    with tempfile.TemporaryDirectory(dir=place) as out:
        ends = ["--steps=2", f"--out={out}/x"] if words[:2] in (["run", "tiny"], ["compare", "tiny"]) else []
        result = CliRunner().invoke(cli.app, [*words, *ends])
    sound = result.exception is None or isinstance(result.exception, SystemExit)
    if sound and result.exit_code in (0, 1, 2, 3) and "Traceback" not in result.output:
        tally.returned += result.exit_code == 0
        tally.refused += result.exit_code != 0
    else:
        tally.other.append(f"exit code {result.exit_code}, {result.exception!r} for {words}: {result.output[-300:]}")


def repeated(strategy: st.SearchStrategy[Any], use: Callable[[Any], None], examples: int) -> None:
    """Draw the given number of examples and use each."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def test(example: Any) -> None:
        use(example)

    test()


def rows(*, quick: bool = False) -> list[list[object]]:
    """Return the results of the calls of each name, and of the command line."""
    examples = 20 if quick else EXAMPLES
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sm.StimulusWarning)
        for name in CALLS:
            tally = Tally()
            repeated(arguments(name), functools.partial(call, name, tally), examples)
            found.append(tally.row(name))
    tally = Tally()
    with tempfile.TemporaryDirectory() as place, tiny_laboratory(), contextlib.chdir(place):
        repeated(command_lines(), lambda words: command(words, Path(place), tally), examples)
    return [*found, tally.row("the command line")]


@contextlib.contextmanager
def tiny_laboratory() -> Iterator[None]:
    """Restrict the command line to the tiny experiment and study of the tests."""
    from stimulus_moo.lab.cli import arguments as cli_arguments
    from tests.lab import fake_lab

    usual = cli_arguments.catalogue
    cli_arguments.catalogue = fake_lab.catalogue
    try:
        yield
    finally:
        cli_arguments.catalogue = usual
