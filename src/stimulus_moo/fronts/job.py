"""Train one point of a front: an end, or the point on a ray."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stimulus_moo import Balanced, Fixed, InvalidOption, Ray, Result, fit
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
CENTRE = 0.6  # share of the steps for the first ray, from scratch
SHARE = 10  # a point that starts from its neighbours takes this fraction of the steps of one from scratch
RAY, BOUND = 2, 3  # passes over all data in a run from a trained model, at least: rays and bounds need exact losses
MET = 0.999  # a ray has met the front if its smallest preferred loss is at least so close to the largest one
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
        return mean_losses(self._loaded(state), self.losses, self.dataset, self.options, few)

    def train(self, number: int, target: dict[str, Any], starts: Sequence[State]) -> FrontPoint:
        """Train one point; a ray from the first state, and from the next ones as long as nothing is found.

        A ray that begins from scratch is trained from all of them, and the best result is taken.
        """
        model = self._loaded(starts[0])
        if "end" in target:
            result, passes = self._train_end(model, target["end"], target["worst"], fresh=target["from"] is None)
        else:
            result, passes = self._train_ray(model, target, target["fresh"])
            for start in starts[1:]:
                if not target["fresh"] and _on(target, result) <= FOUND * target["known"]:
                    break
                other = self._loaded(start)
                found, more = self._train_ray(other, target, fresh=False)
                passes += more
                if _on(target, found) < _on(target, result):
                    model, result = other, found
        weights = np.array(result.history.last()["weights"])
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        shares = (weights / (weights.sum() or 1.0)).tolist()  # balanced weights of a stationary point are zero
        return FrontPoint(number, result.losses, shares, result.stationarity, passes, target, state)

    def _loaded(self, state: State) -> torch.nn.Module:
        model = copy.deepcopy(self.model)
        model.load_state_dict(state)
        return model

    def _train_ray(self, model: torch.nn.Module, target: dict[str, Any], fresh: bool) -> tuple[Result, int]:
        """Train to the point on a ray; with three and more losses, decrease all of them where the ray misses the front.

        There the largest preferred loss is at its least value, and the weights of the others are small.
        """
        share, method = (CENTRE, SCRATCH) if fresh else (1 / SHARE, WARM)
        r, z = np.array(target["preference"]), np.array(target["reference"])
        result = self._fit(model, math.ceil(share * self.steps), method, weighting=Ray(r.tolist(), z.tolist()))
        preferred = r * (np.array(result.losses) - z)
        if len(r) == 2 or preferred.min() >= MET * preferred.max():
            return result, result.passes
        return self._decrease_all(model, result.passes)

    def _decrease_all(self, model: torch.nn.Module, passes: int) -> tuple[Result, int]:
        """Continue a run with balanced weights, which leave out losses that cannot fall."""
        result = self._fit(model, math.ceil(self.steps / SHARE), WARM, weighting=Balanced())
        return result, passes + result.passes

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
        both = self._fit(model, math.ceil(BOTH * steps), WARM, BOUND, bounds={s: least + SLACK * fall})
        passes = alone.passes + both.passes
        if both.losses[s] <= least + FAR * fall:
            return (both, passes) if len(worst) == 2 else self._decrease_all(model, passes)
        model.load_state_dict(state)
        return alone, passes

    def _fit(self, model: torch.nn.Module, steps: int, method: str, anchors: int = RAY, **target: Any) -> Result:
        fixed: Any = {"method": method, "steps": steps, "progress": False, **target}
        if method == WARM and "period" not in self.options:
            fixed["period"] = min(math.ceil(steps / anchors), math.ceil(math.sqrt(self.samples)))
        return fit(model, self.losses, self.dataset, **fixed, **self.options)


def _on(target: dict[str, Any], result: Result) -> float:
    """Return how far a result is along its ray."""
    return float(value(np.array(result.losses), target["preference"], target["reference"]))
