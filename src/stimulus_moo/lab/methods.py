"""The methods of experiments: the table of the library and, if TorchJD is installed, Adam with its UPGrad weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from stimulus_moo import METHODS
from stimulus_moo.methods import Method, Settings

ADAM, UPGRAD = "scalarisation-adam", "upgrad-adam"


def _upgrad(s: Settings) -> Any:
    return import_module("torchjd.aggregation").UPGradWeighting()


_RIVAL = replace(METHODS[ADAM], name=UPGRAD, title="UPGrad, Adam", weighting=_upgrad)

#: Every method of an experiment by name.
LAB_METHODS: Mapping[str, Method] = MappingProxyType(
    {**METHODS, **({UPGRAD: _RIVAL} if find_spec("torchjd") and find_spec("quadprog") else {})}
)


def fit_options(method: str) -> dict[str, Any]:
    """Return the options of ``fit`` that select a method.

    >>> fit_options("smgd")
    {'method': 'smgd'}
    """
    if method in METHODS:
        return {"method": method}
    return {"method": ADAM, "weighting": import_module("torchjd.aggregation").UPGradWeighting()}
