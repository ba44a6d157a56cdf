"""The methods of experiments: the table of the library and, if TorchJD is installed, Adam with its UPGrad weights."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec

from stimulus_moo import METHODS
from stimulus_moo.integrations.torchjd import build
from stimulus_moo.methods import Method

ADAM, UPGRAD = "scalarisation-adam", "upgrad-adam"

_RIVAL = replace(METHODS[ADAM], name=UPGRAD, title="UPGrad, Adam", weighting=lambda s: build("upgrad"))

#: Every method of an experiment by name; a view of ``METHODS``, to which plug-ins may add.
LAB_METHODS: Mapping[str, Method] = ChainMap(
    {UPGRAD: _RIVAL} if find_spec("torchjd") and find_spec("quadprog") else {}, METHODS
)


def fit_options(method: str) -> dict[str, str]:
    """Return the options of ``fit`` that select a method.

    >>> fit_options("smgd"), fit_options("upgrad-adam")
    ({'method': 'smgd'}, {'method': 'scalarisation-adam', 'weighting': 'upgrad'})
    """
    return {"method": ADAM, "weighting": "upgrad"} if method == UPGRAD else {"method": method}
