"""Definition of an experiment: its settings as data, and a function that builds the problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from stimulus_moo import METHODS, PAPER_METHODS, InvalidOption, MultiGradient
from stimulus_moo.data.sources import as_source
from stimulus_moo.lab.methods import LAB_METHODS, fit_options
from stimulus_moo.lab.problem import Problem
from stimulus_moo.methods import Settings, fixed


@dataclass(frozen=True)
class ExperimentSettings:
    """Settings of a run. Every field is also a command-line option.

    A run ends after ``steps`` iterations, ``gradients`` evaluations, ``passes`` or ``seconds``, whichever comes first.
    A learning rate that is a number falls linearly to zero over the last fraction ``decay`` of a run; 0 keeps it.
    ``reweigh`` is as for ``fit``, 1 for the method's own rule; fixed weights do not use it. ``weighting`` is a name in
    ``WEIGHTINGS``, None for the method's own. ``n`` is the size of the
    training set, the paper's "full" batch; None uses all samples. ``lr_of`` and ``sigma2_of`` override values for
    single methods; ``lr`` is not for methods that have a rate of their own (``auto``), ``lr_of`` is. ``guard=False``
    runs the published methods unchanged, see ``fit``. ``files`` names other data in the same format: a folder with four
    IDX files for MultiMNIST (for example Fashion-MNIST), or an ARFF file for river flow, whose last ``targets`` columns
    are predicted.
    """

    lr: float | str
    momentum: float
    batch_size: int
    period: int | str
    guard: bool = True
    steps: int | None = None
    gradients: int | None = None
    passes: int | None = None
    seconds: float | None = None
    decay: float = 0.0
    reweigh: int | str = 1
    weighting: str | None = None
    n: int | None = None
    epsilon: float | str = 1e-3
    sigma2: float | str = "auto"
    c_gamma: float = 8.0
    c_epsilon: float = 1.0
    alpha: float = 0.9
    beta: float = 0.5
    gamma: float = 0.1
    rho: float = 0.0
    weights: Sequence[float] | None = None
    evaluate_every: int | None = None
    files: str | None = None
    targets: int = 8
    lr_of: Mapping[str, float | str] = field(default_factory=dict)
    sigma2_of: Mapping[str, float] = field(default_factory=dict)

    def override(self, changes: Mapping[str, Any]) -> ExperimentSettings:
        """Return the settings with some fields changed.

        Raises:
            InvalidOption: a field does not exist.
        """
        known = {field.name for field in dataclasses.fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise InvalidOption(f"setting {unknown[0]!r} is unknown; settings are {', '.join(sorted(known))}")
        return dataclasses.replace(self, **changes)

    def for_method(self, method: str) -> dict[str, Any]:
        """Return the keyword arguments of ``fit`` for a method.

        Raises:
            InvalidOption: the method does not support this ``reweigh``.
        """
        row = LAB_METHODS[method]
        lr = self.lr_of.get(method, row.lr or self.lr)
        options = ("epsilon", "sigma2", "c_gamma", "c_epsilon", "alpha", "beta", "gamma", "rho", "weights")
        limits = ("steps", "gradients", "passes", "seconds")
        loop = ("momentum", "batch_size", "period", "guard", "evaluate_every")
        kept = row.weighting is fixed and self.weighting is None
        reweigh = row.reweigh if kept or self.reweigh == 1 else self.reweigh
        _check_reweigh(method, reweigh)
        return {
            **fit_options(method),
            **{name: getattr(self, name) for name in (*limits, *loop, *options)},
            "lr": lr,
            "reweigh": reweigh,
            "sigma2": self.sigma2_of.get(method, self.sigma2),
            **({} if self.weighting is None else {"weighting": self.weighting}),
        }


def _check_reweigh(method: str, reweigh: int | str) -> None:
    """Raise InvalidOption if a method does not support this ``reweigh``, before any data is loaded."""
    if reweigh != 1:
        any_data = as_source(torch.zeros(1, 1))
        settings = Settings(source=any_data, lr=1.0, momentum=0.0, batch_size=1, period=1)
        model = torch.nn.Linear(1, 1)
        MultiGradient(model, lambda model, batch: (), LAB_METHODS[method].estimator(settings), reweigh=reweigh)


#: Default methods of a comparison: those of the paper and the scalarisation baselines.
COMPARED = tuple(name for name in METHODS if name in PAPER_METHODS or name.startswith("scalarisation"))


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        name: name on the command line.
        title: title in the report.
        claim: the paper's claim, with its figure or table.
        settings: the paper's settings.
        build: function from (settings, seed, data folder or None) to a problem.
        quick: changed settings for ``--quick``.
        methods: methods compared by default.
    """

    name: str
    title: str
    claim: str
    settings: ExperimentSettings
    build: Callable[[ExperimentSettings, int, Path | None], Problem]
    quick: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = COMPARED
