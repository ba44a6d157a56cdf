"""What the demo runs: two problems, the methods on each, and their learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stimulus_moo.lab.experiment import Experiment, ExperimentSettings
from stimulus_moo.lab.methods import LAB_METHODS

#: Budget of every run, and the number of seeds.
PASSES, SEEDS = 60_000, 2

#: Names of the methods for readers who do not know the field.
NAMES = {
    "auto": "auto",
    "scalarisation-adam": "Adam on the mean loss",
    "upgrad-adam": "Adam, TorchJD's UPGrad",
    "smgd": "SMGD",
    "stimulus-m": "STIMULUS-M",
}


@dataclass(frozen=True)
class Comparison:
    """One problem of the demo.

    Attributes:
        experiment: name of the experiment.
        short: what the problem is called in a sentence.
        about: what it is, for the page.
        rates: learning rate of each method. They fall to zero over the last half of a run, as that of auto does.
    """

    experiment: str
    short: str
    about: str
    rates: Mapping[str, float | str]

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that can be run here: UPGrad needs TorchJD."""
        return tuple(method for method in self.rates if method in LAB_METHODS)

    def settings(self, experiment: Experiment) -> ExperimentSettings:
        """Return the settings of the runs."""
        limits = {"steps": None, "gradients": None, "passes": PASSES, "decay": 0.5}
        return experiment.settings.override({**limits, "lr_of": dict(self.rates)})


#: Learning rates are the best of the grid in `stimulus-moo tune EXPERIMENT --passes 60000 --decay 0.5 --methods ...`.
DIGITS = Comparison(
    "digits",
    "two overlapping digits",
    "One small network reads two handwritten digits that overlap, and has one loss for each. The data comes with "
    "scikit-learn.",
    {"auto": "auto", "scalarisation-adam": 0.03, "upgrad-adam": 0.03, "smgd": 0.3, "stimulus-m": 1.0},
)
SCALED = Comparison(
    "digits-scaled",
    "the same digits with one loss in other units",
    "The second loss is multiplied by 0.01, as happens when losses are measured in different units. Nobody tells the "
    "methods.",
    {"auto": "auto", "scalarisation-adam": 0.01},
)
COMPARISONS = (DIGITS, SCALED)
