"""Weights from an average of Gramians, since those of mini-batches are noisy."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.errors import StateMismatch
from stimulus_moo.options import real
from stimulus_moo.state import short_text
from stimulus_moo.weightings.base import GramianToWeights, Weighting, as_weighting, check_weights


class Averaged(Weighting):
    """Another weighting, given the exponential average of the Gramians of the solves.

    .. code-block:: text

        lambda_k = weighting(A_k),    A_k = memory A_{k-1} + (1 - memory) G_k,    A_0 = G_0

    k counts the solves. Where weights are kept between solves (``reweigh=``), the noise of one batch would stay in
    them for many steps. The losses for a weighting that uses them are averaged in the same way. A product with an
    objective that had no row so far (``counts=``) starts with its first value.

    Args:
        weighting: any weighting or callable.
        memory: a number in [0, 1).

    >>> import torch
    >>> from stimulus_moo import Averaged, MinNorm
    >>> averaged = Averaged(MinNorm(), memory=0.5)
    >>> averaged(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)).tolist()
    [0.5, 0.5]
    >>> averaged(torch.tensor([[1.0, 0.0], [0.0, 5.0]], dtype=torch.float64)).tolist()  # as for 1 and 3
    [0.75, 0.25]
    """

    state_names = ("gramian", "losses", "weighting")
    optional_names = MappingProxyType({"gramian": Tensor, "losses": Tensor})

    def __init__(self, weighting: GramianToWeights, memory: float = 0.9) -> None:
        self.weighting = as_weighting(weighting)
        self.memory = real("memory", memory, low=0.0, high=1.0, open_high=True)
        self.deterministic, self.uses_losses = self.weighting.deterministic, self.weighting.uses_losses
        self.gramian: Tensor | None = None  # A, the average so far
        self.losses: Tensor | None = None  # the average of the losses, if the weighting uses them

    def check_state(self, state: Any, path: str = "") -> None:
        """Raise StateMismatch if ``state`` does not fit, including the shape and type of the average."""
        super().check_state(state, path)
        found = state["gramian"]
        if found is not None and (found.dim() != 2 or len(set(found.shape)) != 1 or found.dtype != torch.float64):
            where = f"{path or self.kind}.gramian"
            raise StateMismatch(f"{where} must be None or a square matrix of torch.float64, found {short_text(found)}")
        check_weights(state["losses"], f"{path or self.kind}.losses")

    def __call__(self, gramian: Tensor, *losses: Tensor) -> Tensor:
        """Average, and give the average to the weighting."""
        average = self._average(gramian, range(len(gramian)))
        return self.weighting(average, *map(self._mean, losses))

    def _mean(self, losses: Tensor) -> Tensor:
        """Return the average of the losses; one that is NaN for want of a count keeps its own."""
        old = losses if self.losses is None else torch.where(self.losses.isnan(), losses, self.losses)
        mixed = torch.lerp(losses, old, self.memory)
        self.losses = torch.where(losses.isnan(), old, mixed)
        return self.losses.clone()

    def among(self, gramian: Tensor, present: Sequence[int], *losses: Tensor) -> Tensor:
        """Average the products of the objectives with rows; the others keep theirs."""
        average = self._average(gramian, present)
        return self.weighting.among(average, present, *map(self._mean, losses))

    def _average(self, gramian: Tensor, present: Sequence[int]) -> Tensor:
        average = gramian.detach().double().cpu().clone()
        if self.gramian is not None:
            known = self.gramian.diagonal() > 0
            here = torch.zeros_like(known).index_fill(0, torch.tensor(present), True)
            mixed = torch.where(known[:, None] & known, torch.lerp(average, self.gramian, self.memory), average)
            average = torch.where(here[:, None] & here, mixed, self.gramian)
        self.gramian = average.clone()
        return average
