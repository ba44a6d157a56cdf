"""Weightings, the second choice of a method: from the S x S Gramian of the rows to S weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stimulus_moo._engine.module_tree import MODULE_NAMES
from stimulus_moo.errors import InvalidOption, InvalidWeights, StateMismatch
from stimulus_moo.state import Stateful, short_text
from stimulus_moo.weightings.aggregators import without_aggregator

GramianToWeights = Callable[..., Tensor]  #: a weighting of this library, of TorchJD or a plain function


class Weighting(Stateful, ABC):
    """A rule from the Gramian U U^T (float64, CPU) to the weights lambda (same type, length S)."""

    deterministic = True  #: equal Gramians and states give equal weights; if not, all processes use those of the first
    needs_rows = True  #: the weights depend on the Gramian; if not, ``constant`` returns them
    uses_losses = False  #: it is called with ``(gramian, losses)``, see ``LossAware``

    @abstractmethod
    def __call__(self, gramian: Tensor) -> Tensor:
        """Return the S weights."""

    def among(self, gramian: Tensor, present: Sequence[int]) -> Tensor:
        """Return the S weights where only the objectives ``present`` have rows; the others get 0.

        The rule is applied to their part of the Gramian. A rule with S numbers of its own overrides this.
        """
        return spread(self(gramian[present][:, present]), present, len(gramian))

    def constant(self, objectives: int) -> Tensor:
        """Return the weights of a rule that needs no rows."""
        raise NotImplementedError


class LossAware(Weighting):
    """A rule from the Gramian and the S losses to the weights.

    The losses (float64, CPU) are the estimator's running values. For ``Recursive``, ``Page``, ``Storm`` and
    ``Filtered`` they are variance-reduced like the rows: those of the anchor, to which the batch's differences between
    two points are added. For the others they are those of the batch, and so they are where ``Storm`` or ``Filtered``
    keep weights and solve for them before the step.
    """

    uses_losses = True

    @abstractmethod
    def __call__(self, gramian: Tensor, losses: Tensor) -> Tensor:  # type: ignore[override]
        """Return the S weights."""

    @abstractmethod
    def among(self, gramian: Tensor, present: Sequence[int], losses: Tensor) -> Tensor:  # type: ignore[override]
        """Return the S weights where only the objectives ``present`` have rows; the others get 0."""


class Adapter(Weighting):
    """Any callable as a weighting; ``state_dict`` holds its plain state, such as that of TorchJD's weightings.

    State means the attributes and buffers of the callable and of a module's submodules that exist before the first
    call: tensors, numbers, strings, None, dtypes, devices and tuples, lists or dicts of them. The state of a closure
    cannot be saved or rolled back.
    """

    state_names = ("plain",)
    deterministic = False  # a user's function may draw random numbers

    def __init__(self, function: GramianToWeights) -> None:
        if isinstance(function, type):
            name = function.__name__
            raise InvalidOption(f"weighting must be an object, found the class {name}; pass {name}()")
        if not callable(function):
            raise InvalidOption(
                f"weighting must be a Weighting or a function from an S x S Gramian to S weights, found {function!r}"
            )
        self.function = function
        self.uses_losses = bool(getattr(function, "uses_losses", False))

    def __call__(self, gramian: Tensor, *losses: Tensor) -> Tensor:
        """Call the function."""
        return self.function(gramian, *losses)

    def among(self, gramian: Tensor, present: Sequence[int], *losses: Tensor) -> Tensor:
        """Call the function with the part of the objectives that have rows."""
        chosen = (values[present] for values in losses)
        return spread(self(gramian[present][:, present], *chosen), present, len(gramian))

    @property
    def kind(self) -> str:
        """The types of the callable and its submodules; a state of other types is refused."""
        parts = [f"{name}={type(part).__name__}".lstrip("=") for name, part in self._parts().items()]
        return f"Adapter({', '.join(parts)})"

    @property
    def plain(self) -> dict[str, dict[str, Any]]:
        """The plain attributes of the callable and its submodules, by module name."""
        return {
            name: {key: value for key, value in _attributes(part).items() if _is_plain(value)}
            for name, part in self._parts().items()
        }

    @plain.setter
    def plain(self, state: dict[str, dict[str, Any]]) -> None:
        for name, part in self._parts().items():
            for key, value in state.get(name, {}).items():
                if isinstance(part, torch.nn.Module) and key in part._buffers:
                    part._buffers[key] = value
                else:
                    setattr(part, key, value)

    def _parts(self) -> dict[str, Any]:
        function = self.function
        return dict(function.named_modules()) if isinstance(function, torch.nn.Module) else {"": function}


def as_weighting(weighting: Any) -> Weighting:
    """Return a Weighting, wrapping any other callable; of an aggregator of TorchJD its weighting is taken."""
    return weighting if isinstance(weighting, Weighting) else Adapter(without_aggregator(weighting))


def spread(weights: Any, present: Sequence[int], objectives: int) -> Tensor:
    """Return the weights of some objectives with 0 for the others."""
    found = checked(weights, len(present))
    return found.new_zeros(objectives).index_copy(0, torch.tensor(present), found)


def checked(weights: Any, objectives: int) -> Tensor:
    """Return the weights as a float64 CPU tensor, or raise InvalidWeights with what was returned."""
    if not isinstance(weights, Tensor):
        raise InvalidWeights(f"the weighting must return a tensor of {objectives} weights, found {weights!r}")
    found = weights.detach().cpu().double()
    if found.shape != (objectives,):
        raise InvalidWeights(f"the weighting must return {objectives} weights, found shape {list(found.shape)}")
    if not all(map(math.isfinite, found.tolist())):  # several times faster than torch for a few numbers
        raise InvalidWeights(f"the weighting must return finite weights, found {found.tolist()}")
    return found


def check_weights(found: Any, path: str) -> None:
    """Raise StateMismatch unless saved weights are None or a vector of float64."""
    if found is not None and not (isinstance(found, Tensor) and found.dim() == 1 and found.dtype == torch.float64):
        raise StateMismatch(f"{path} must be None or a vector of torch.float64, found {short_text(found)}")


def _attributes(part: Any) -> dict[str, Any]:
    if not isinstance(part, torch.nn.Module):
        return dict(getattr(part, "__dict__", {}))
    own = {key: value for key, value in part.__dict__.items() if key not in MODULE_NAMES}
    return {**own, **part._buffers}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, bool | int | float | str | Tensor | torch.dtype | torch.device)
