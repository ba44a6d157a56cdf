"""The settings of an experiment as options of the command line: one row of a table each, parsed and checked here."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from stimulus_moo import AUTO_METHOD, METHODS, InvalidOption
from stimulus_moo.lab.experiment import Experiment, Settings
from stimulus_moo.lab.study import Study

_LARGEST = 10**12  # of any count: beyond it arithmetic overflows long before memory ends
_PANEL = "Settings (default: the experiment's own)"


@dataclass(frozen=True)
class SettingOption:
    """How one field of ``Settings`` is given: its type on the command line, its range and its help."""

    kind: type
    help: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    parse: Callable[[str], Any] | None = None

    def check(self, value: Any) -> Any:
        """Return a value of the range, parsed; the option's name is put before the message by typer."""
        if value is None or self.kind is bool:
            return value
        if self.parse is not None:
            try:
                return self.parse(value)
            except InvalidOption as error:
                raise typer.BadParameter(str(error)) from None
        try:
            number = self.kind(value)
        except ValueError:
            number = math.nan
        above = self.low < number if self.open_low else self.low <= number
        below = number < self._most if self.open_high else number <= self._most
        if not (above and below and math.isfinite(number)):
            raise typer.BadParameter(f"must be {self._range()}, found {value!r}")
        return number

    def _range(self) -> str:
        number = "a whole number" if self.kind is int else "a finite number"
        low = f"above {self.low:g}" if self.open_low else f"of at least {self.low:g}"
        high = f" and {'below' if self.open_high else 'at most'} {self._most:g}" if math.isfinite(self._most) else ""
        return f"{number} {low}{high}"

    @property
    def _most(self) -> float:
        return min(self.high, _LARGEST) if self.kind is int else self.high


def _sigma2(text: str) -> float | str:
    return text if text == "auto" else _float(text, "must be 'auto' or a number")


def _rate(text: str) -> float | str:
    wanted = "must be 'auto' or a finite number above 0"
    rate = text if text == "auto" else _float(text, wanted)
    if isinstance(rate, float) and rate <= 0.0:
        raise typer.BadParameter(f"{wanted}, found {text!r}")
    return rate


def _period(text: str) -> int | str:
    if text != "auto" and not (text.isdecimal() and int(text) >= 1):
        raise typer.BadParameter(f"must be 'auto' or a whole number of at least 1, found {text!r}")
    return text if text == "auto" else int(text)


def _weights(text: str) -> list[float]:
    return [_float(item, "must be numbers separated by commas, one per task") for item in text.split(",")]


def _rates(text: str) -> dict[str, float | str]:
    return {method: _rate(rate) for method, rate in _by_method(text, "rate").items()}


def _variances(text: str) -> dict[str, float]:
    return {method: _float(value, "must be a number") for method, value in _by_method(text, "value").items()}


def _by_method(text: str, what: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",")]
    if not all(equals for _, equals, _ in pairs):
        raise typer.BadParameter(f"must read method={what},method={what}, found {text!r}")
    return {find_method(name): value for name, _, value in pairs}


def _float(text: str, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise typer.BadParameter(f"{wanted}, found {text!r}")
    return value


OPTIONS: dict[str, SettingOption] = {
    "lr": SettingOption(str, "Step size, for every method, or auto.", parse=_rate),
    "lr_of": SettingOption(
        str, "Step sizes of single methods: method=rate,method=rate; a rate may be auto.", parse=_rates
    ),
    "momentum": SettingOption(float, "Momentum of the heavy-ball methods.", 0, 1, open_high=True),
    "batch_size": SettingOption(int, "Samples per mini-batch.", 1),
    "period": SettingOption(str, "Steps between two anchors, q in the paper, or auto.", parse=_period),
    "guard": SettingOption(bool, "Act on steps seen to be too long; --no-guard is the method to the letter."),
    "steps": SettingOption(int, "Stop after so many steps.", 1),
    "gradients": SettingOption(int, "Stop after so many per-sample multi-gradient evaluations.", 1),
    "n": SettingOption(int, "Size of the training set.", 1),
    "files": SettingOption(
        str,
        "Other data of the same layout: a folder of four IDX files (multimnist), an ARFF file (riverflow), a folder "
        "with train.txt and test.txt in LETOR's layout (ranking).",
        parse=str,
    ),
    "targets": SettingOption(int, "River flow and other ARFF files: how many of the last columns are predicted.", 1),
    "evaluate_every": SettingOption(int, "Evaluate on the whole training set after every so many steps.", 1),
    "epsilon": SettingOption(str, "STIMULUS+: the accuracy aimed at, or auto.", parse=_rate),
    "sigma2": SettingOption(str, "STIMULUS+: variance of one sample's gradient, or auto.", parse=_sigma2),
    "sigma2_of": SettingOption(str, "Variances for single methods: method=value,method=value.", parse=_variances),
    "c_gamma": SettingOption(float, "STIMULUS+: c_gamma of the adaptive anchor.", 0, open_low=True),
    "c_epsilon": SettingOption(float, "STIMULUS+: c_epsilon of the adaptive anchor.", 0, open_low=True),
    "alpha": SettingOption(float, "CR-MOGM: share of the last weights.", 0, 1),
    "beta": SettingOption(float, "MoCo, MoCo+: share of the new gradient.", 0, 1),
    "gamma": SettingOption(float, "MoCo, MoCo+: step size of the weights.", 0),
    "rho": SettingOption(float, "MoCo, MoCo+: regularisation of the weights.", 0),
    "weights": SettingOption(str, "Scalarisation: the weights, separated by commas.", parse=_weights),
}


def with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an option for every setting; it receives those that were given as ``changes``."""
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
    described = typer.Option(
        None,
        f"{flag}/--no-{flag[2:]}" if option.kind is bool else flag,
        help=option.help,
        metavar={int: "<int>", float: "<float>"}.get(option.kind),
        callback=option.check,
        rich_help_panel=_PANEL,
        show_default=False,
    )
    kind = bool if option.kind is bool else str  # numbers are read by ``check``, whose message has the value found
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=described, annotation=kind | None)


def find_method(name: str) -> str:
    """Return a method's name, in any case; ``auto`` is the one ``fit`` takes for it.

    Raises:
        InvalidOption: there is no such method; the message suggests the nearest.
    """
    name = name.strip().lower()
    found = find(name, ("auto", *METHODS), "method")
    return AUTO_METHOD if found == "auto" else found


def find(name: str, known: Iterable[str], what: str) -> str:
    """Return a name that is known.

    >>> try:
    ...     find("digit", ["digits", "celeba"], "experiment")
    ... except InvalidOption as error:
    ...     print(error)
    there is no experiment 'digit'; did you mean 'digits'? Known: digits, celeba
    """
    names = list(known)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    raise InvalidOption(
        f"there is no {what} {name!r}; {f'did you mean {near[0]!r}? ' if near else ''}Known: {', '.join(names)}"
    )


def experiment_settings(
    experiment: Experiment, quick: bool, changes: Mapping[str, Any], pairs: Sequence[str]
) -> Settings:
    """Return an experiment's settings with what the command line says.

    A step size or variance given for all methods takes the place of those the experiment has for single ones; but a
    method that cannot take the step size ``"auto"`` keeps its own.
    """
    changes = {**changes, **_pairs(pairs)}
    settings = experiment.settings.override(experiment.quick) if quick else experiment.settings
    for name in ("lr", "sigma2"):
        if name in changes:
            changes.setdefault(f"{name}_of", {})
    if changes.get("lr") == "auto":
        own = {method: lr for method, lr in settings.lr_of.items() if not METHODS[method].takes_auto_lr}
        changes["lr_of"] = {**own, **changes["lr_of"]}
    return settings.override(changes)


def study_settings(study: Study, quick: bool, changes: Mapping[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    """Return a study's settings with what the command line says.

    Raises:
        InvalidOption: it has no such setting, or one of another kind.
    """
    settings = {**study.settings, **(study.quick if quick else {})}
    for name, value in {**changes, **_pairs(pairs)}.items():
        find(name, settings, f"setting of the study {study.name!r} named")
        if _kind(value) is not _kind(settings[name]) and settings[name] is not None:
            raise InvalidOption(f"{name} must be of the kind of {settings[name]!r}, found {value!r}")
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


def _kind(value: Any) -> type:
    """Return float for any number and list for any sequence, as JSON sees it."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return list if isinstance(value, list | tuple) else type(value)
