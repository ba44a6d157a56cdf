"""Settings of an experiment as command-line options: one row of a table each, parsed and checked."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from stimulus_moo import WEIGHTINGS, InvalidOption
from stimulus_moo.lab.cli.names import find, find_method
from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.study import Study
from stimulus_moo.options import positive_integer, positive_integer_or_auto, positive_or_auto, real
from stimulus_moo.plugins import load_installed

_LARGEST_COUNT = 10**12  # larger counts overflow
_PANEL = "Settings (default: the experiment's own)"


@dataclass(frozen=True)
class SettingOption:
    """Command-line form of one field of ``ExperimentSettings``.

    Attributes:
        kind: type of the value: bool, int (at least 1), float, or str for values with a parser.
        help: help text.
        low, high, open_low, open_high: range of a float.
        parse: from (name, text) to the value; raises InvalidOption.
    """

    kind: type
    help: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    parse: Callable[[str, str], Any] | None = None

    def check(self, name: str, value: Any) -> Any:
        """Return the parsed value; typer puts the option before the message of an invalid one."""
        if value is None or self.kind is bool:
            return value
        try:
            if self.parse is not None:
                return self.parse(name, value)
            return _count(name, value) if self.kind is int else self._real(name, value)
        except InvalidOption as error:
            raise typer.BadParameter(str(error)) from None

    def _real(self, name: str, text: str) -> float:
        return real(name, _number(text), low=self.low, high=self.high, open_low=self.open_low, open_high=self.open_high)


def _number(text: str) -> int | float | str:
    """Return the number in a text, or the text itself, which the check then refuses and names."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _count(name: str, text: str) -> int:
    count = positive_integer(name, _number(text))
    if count > _LARGEST_COUNT:
        raise InvalidOption(f"{name} must be at most {_LARGEST_COUNT:g}, found {text}")
    return count


def _rate(name: str, text: str) -> float | str:
    return positive_or_auto(name, _number(text))


def _period(name: str, text: str) -> int | str:
    return positive_integer_or_auto(name, _number(text))


def _reweigh(name: str, text: str) -> int | str:
    value = _number(text)
    if isinstance(value, str) and value not in ("anchor", "auto"):
        raise InvalidOption(f"{name} must be a positive integer, 'anchor' or 'auto', found {text!r}")
    return value if isinstance(value, str) else positive_integer(name, value)


def _weighting(name: str, text: str) -> str:
    load_installed()
    return find(text.strip().lower(), WEIGHTINGS, name)


def _sigma2(name: str, text: str) -> float | str:
    return text if text == "auto" else real(name, _number(text))


def _weights(name: str, text: str) -> list[float]:
    return [real(f"{name}[{s}]", _number(item)) for s, item in enumerate(text.split(","))]


def _rates(name: str, text: str) -> dict[str, float | str]:
    return {method: _rate(f"{name}[{method!r}]", rate) for method, rate in _by_method(name, text, "rate").items()}


def _variances(name: str, text: str) -> dict[str, float]:
    found = _by_method(name, text, "value")
    return {method: real(f"{name}[{method!r}]", _number(value)) for method, value in found.items()}


def _by_method(name: str, text: str, what: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",")]
    if not all(equals for _, equals, _ in pairs):
        raise InvalidOption(f"{name} must read method={what},method={what}, found {text!r}")
    return {find_method(method): value for method, _, value in pairs}


def _text(name: str, text: str) -> str:
    return text


OPTIONS: dict[str, SettingOption] = {
    "lr": SettingOption(str, "Step size, for every method, or auto.", parse=_rate),
    "lr_of": SettingOption(
        str, "Step sizes of single methods: method=rate,method=rate; a rate may be auto.", parse=_rates
    ),
    "momentum": SettingOption(float, "Momentum of the heavy-ball methods.", 0, 1, open_high=True),
    "batch_size": SettingOption(int, "Samples per mini-batch.", 1),
    "period": SettingOption(str, "Steps between two anchors, q in the paper, or auto.", parse=_period),
    "guard": SettingOption(
        bool, "Shorten or reject steps that are too long; --no-guard runs the published method unchanged."
    ),
    "steps": SettingOption(int, "Number of steps.", 1),
    "gradients": SettingOption(int, "Stop after this number of per-sample multi-gradient evaluations.", 1),
    "passes": SettingOption(
        int,
        "Stop after this number of per-sample derivatives of one scalar, instead of at the experiment's own limits: a "
        "multi-gradient takes one per task, a weighted loss one.",
        1,
    ),
    "seconds": SettingOption(
        float, "Stop after this time of training steps, instead of at the experiment's own limits.", 0, open_low=True
    ),
    "decay": SettingOption(
        float, "Last fraction of a run, in which a step size that is a number falls linearly to zero.", 0, 1
    ),
    "reweigh": SettingOption(
        str,
        "Solve for the weights at every step (1), every so many steps, at anchors (anchor) or when due (auto); they "
        "are kept in between.",
        parse=_reweigh,
    ),
    "weighting": SettingOption(
        str, "A weighting by name, instead of the method's own; see `stimulus-moo list`.", parse=_weighting
    ),
    "n": SettingOption(int, "Size of the training set.", 1),
    "files": SettingOption(
        str,
        "Other data in the same format: a folder of four IDX files (multimnist), an ARFF file (riverflow), a folder "
        "with train.txt and test.txt in LETOR format (ranking).",
        parse=_text,
    ),
    "targets": SettingOption(
        int, "River flow and other ARFF files: number of columns, counted from the last, to predict.", 1
    ),
    "evaluate_every": SettingOption(int, "Steps between two evaluations on the whole training set.", 1),
    "epsilon": SettingOption(str, "STIMULUS+: target accuracy, or auto.", parse=_rate),
    "sigma2": SettingOption(str, "STIMULUS+: variance of one sample's gradient, or auto.", parse=_sigma2),
    "sigma2_of": SettingOption(str, "Variances for single methods: method=value,method=value.", parse=_variances),
    "c_gamma": SettingOption(float, "STIMULUS+: c_gamma of the adaptive anchor.", 0, open_low=True),
    "c_epsilon": SettingOption(float, "STIMULUS+: c_epsilon of the adaptive anchor.", 0, open_low=True),
    "alpha": SettingOption(float, "CR-MOGM: weight of the previous lambda.", 0, 1),
    "beta": SettingOption(float, "MoCo, MoCo+: weight of the new gradient.", 0, 1),
    "gamma": SettingOption(float, "MoCo, MoCo+: step size of the weights.", 0),
    "rho": SettingOption(float, "MoCo, MoCo+: regularisation of the weights.", 0),
    "weights": SettingOption(str, "Scalarisation: the weights, separated by commas.", parse=_weights),
}


def with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command: add an option for every setting; the command receives the given ones as ``changes``."""
    own = inspect.signature(function, eval_str=True)
    kept = [parameter for name, parameter in own.parameters.items() if name != "changes"]
    extra = [_parameter(name, option) for name, option in OPTIONS.items()]

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        settings = {name: given.pop(name) for name in OPTIONS}
        return function(**given, changes={name: value for name, value in settings.items() if value is not None})

    command.__signature__ = own.replace(parameters=[*kept, *extra])  # type: ignore[attr-defined]
    return command


def _parameter(name: str, option: SettingOption) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"

    def check(value: Any) -> Any:
        return option.check(name, value)

    described = typer.Option(
        None,
        f"{flag}/--no-{flag[2:]}" if option.kind is bool else flag,
        help=option.help,
        metavar={int: "<int>", float: "<float>"}.get(option.kind),
        callback=check,
        rich_help_panel=_PANEL,
        show_default=False,
    )
    kind = bool if option.kind is bool else str  # ``check`` parses numbers, so that its message can show the text
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=described, annotation=kind | None)


def experiment_settings(
    experiment: Experiment, quick: bool, changes: Mapping[str, Any], pairs: Sequence[str]
) -> ExperimentSettings:
    """Return an experiment's settings with the changes of the command line.

    A step size or variance given for all methods replaces the experiment's values for single methods. A budget of
    passes or seconds replaces the experiment's own limits, which count alike what costs one pass and what costs one per
    task.
    """
    changes = {**changes, **_pairs(pairs)}
    settings = experiment.settings.override(experiment.quick) if quick else experiment.settings
    if {"passes", "seconds"} & changes.keys():
        changes = {"steps": None, "gradients": None, **changes}
    for name in ("lr", "sigma2"):
        if name in changes:
            changes.setdefault(f"{name}_of", {})
    return settings.override(changes)


def study_settings(study: Study, quick: bool, changes: Mapping[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    """Return a study's settings with the changes of the command line.

    Raises:
        InvalidOption: the study has no such setting, or its value has another type.
    """
    settings = {**study.settings, **(study.quick if quick else {})}
    for name, value in {**changes, **_pairs(pairs)}.items():
        find(name, settings, f"setting of the study {study.name!r} named")
        if _json_type(value) is not _json_type(settings[name]) and settings[name] is not None:
            raise InvalidOption(f"{name} must have the type of {settings[name]!r}, found {value!r}")
        settings[name] = value
    return settings


def _pairs(pairs: Sequence[str]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidOption(f"--set must read NAME=VALUE, found {pair!r}")
        try:
            found[name.replace("-", "_")] = json.loads(text)
        except ValueError:
            found[name.replace("-", "_")] = text
    return found


def _json_type(value: Any) -> type:
    """Return the type of a value in JSON: float for any number, list for any sequence."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return list if isinstance(value, list | tuple) else type(value)
