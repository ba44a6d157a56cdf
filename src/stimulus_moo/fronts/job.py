"""Train one point of a front: an end, or the point on a ray."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stimulus_moo import Fixed, InvalidOption, Ray, Result, fit
from stimulus_moo._engine.placement import require_copyable
from stimulus_moo.data.sources import as_source
from stimulus_moo.fronts.evaluation import mean_losses
from stimulus_moo.fronts.front import FrontPoint
from stimulus_moo.fronts.placing import value

SCRATCH = "stimulus-adam"  # for a run from scratch; full anchors: losses and rows are exact at the end
WARM = (
    "stimulus-m"  # for a run from a trained model: its steps shrink with d, those of a new Adam would lead away first
)
ALONE, BOTH = 0.6, 0.2  # shares of the steps in which an end minimises its loss alone, then the others within a bound
OTHERS = 0.01  # weight of the other losses in the first part of an end, against flat directions
SLACK, FAR = 0.003, 0.02  # of what a loss has fallen to its least value: what an end gives back for the others, at most
SHARE = 10  # a point that starts from its neighbours takes this fraction of the steps of one from scratch
ANCHORS = 3  # passes over all data in a run from a trained model, at least: rays and bounds need exact losses
FOUND = 0.99  # a run has found something if it comes this close to the origin of its ray, relative to known points

State = dict[str, Tensor]


def refuse_taken(function: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidOption for arguments of ``fit`` that the functions of this package set themselves."""
    taken = {"weighting", "method", "preference", "bounds", "callbacks", "checkpoint", "resume"} & set(options)
    if taken:
        raise InvalidOption(f"{sorted(taken)[0]} cannot be given to {function}, which sets it")


class Job:
    """What all points have in common; other processes get a copy."""

    def __init__(
        self,
        model: torch.nn.Module,
        losses: Any,
        dataset: Any,
        steps: int,
        options: dict[str, Any],
    ) -> None:
        refuse_taken("pareto_front", options)
        require_copyable(model, "pareto_front")
        self.model, self.losses, self.dataset, self.steps, self.options = model, losses, dataset, steps, options
        source = as_source(dataset, options.get("collate_fn"))
        if not source.finite:
            raise InvalidOption("dataset must have a length, found a stream")
        self.samples = len(source)

    def value(self, state: State, few: bool = False) -> list[float]:
        """Return the losses of a state over the whole data set, or a few samples of it, without derivatives."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(state)
        return mean_losses(model, self.losses, self.dataset, self.options, few)

    def train(self, number: int, target: dict[str, Any], starts: Sequence[State]) -> FrontPoint:
        """Train one point; a ray on which nothing is found from the first state is tried from the second, if any."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(starts[0])
        if "end" in target:
            result, passes = self._train_end(model, target["end"], target["worst"], fresh=target["from"] is None)
        else:
            result, passes = self._train_ray(model, target)
            if len(starts) > 1 and _on(target, result) > FOUND * target["known"]:
                other = copy.deepcopy(self.model)
                other.load_state_dict(starts[1])
                second, more = self._train_ray(other, target)
                passes += more
                if _on(target, second) < _on(target, result):
                    model, result = other, second
        weights = np.array(result.history.last()["weights"])
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        shares = (weights / weights.sum()).tolist()
        return FrontPoint(number, result.losses, shares, result.stationarity, passes, target, state)

    def _train_ray(self, model: torch.nn.Module, target: dict[str, Any]) -> tuple[Result, int]:
        rule = Ray(target["preference"], target["reference"])
        result = self._fit(model, math.ceil(self.steps / SHARE), WARM, weighting=rule)
        return result, result.passes

    def _train_end(self, model: torch.nn.Module, s: int, worst: Sequence[float], fresh: bool) -> tuple[Result, int]:
        """Minimise one loss, then the others while it stays close to its least value; return the result and passes.

        If it does not stay there, as next to a kink of another loss, the second part is undone.
        """
        steps = self.steps if fresh else math.ceil(self.steps / SHARE)
        first, method = math.ceil(ALONE * steps), SCRATCH if fresh else WARM
        rule = Fixed([1.0 if k == s else OTHERS for k in range(len(worst))])
        alone = self._fit(model, first, method, weighting=rule)
        state, least = copy.deepcopy(model.state_dict()), alone.losses[s]
        fall = max(worst[s] - least, 0.0)
        both = self._fit(model, math.ceil(BOTH * steps), WARM, bounds={s: least + SLACK * fall})
        passes = alone.passes + both.passes
        if both.losses[s] <= least + FAR * fall:
            return both, passes
        model.load_state_dict(state)
        return alone, passes

    def _fit(self, model: torch.nn.Module, steps: int, method: str, **target: Any) -> Result:
        fixed: Any = {"method": method, "steps": steps, "progress": False, **target}
        if method == WARM and "period" not in self.options:
            fixed["period"] = min(math.ceil(steps / ANCHORS), math.ceil(math.sqrt(self.samples)))
        return fit(model, self.losses, self.dataset, **fixed, **self.options)


def _on(target: dict[str, Any], result: Result) -> float:
    """Return how far a result is along its ray."""
    return float(value(np.array(result.losses), target["preference"], target["reference"]))
