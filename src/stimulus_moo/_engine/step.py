"""The record of one step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """Record of one call of ``backward``.

    Attributes:
        losses: the S losses at x_t: over the batch, or over the anchor on an anchor step; NaN for an objective that has
            no sample there (``counts=``).
        weights: lambda_t, length S.
        sq_norm: ||d_t||^2 over all parameters, a 0-d float64 tensor on the CPU, since it may exceed the range of
            float32.
        anchored: whether this was an anchor step.
        reweighed: whether the weights were solved for at this step, not kept from an earlier one or fixed.
        skipped: whether the step met NaN or infinity and was skipped (``on_nonfinite="skip"``); losses, weights and
            sq_norm are then NaN.
        names: of the losses, where ``losses`` returns a dict; else empty.

    >>> import torch
    >>> Step(torch.tensor([0.5, 2.0]), torch.ones(2), torch.tensor(1.0), False, names=("click", "buy")).named_losses
    {'click': 0.5, 'buy': 2.0}
    """

    losses: Tensor
    weights: Tensor
    sq_norm: Tensor
    anchored: bool
    reweighed: bool = True
    skipped: bool = False
    names: tuple[str, ...] = ()

    @property
    def named_losses(self) -> dict[str, float]:
        """The losses as numbers, by name, or by number where they have no names."""
        return self._named(self.losses)

    @property
    def named_weights(self) -> dict[str, float]:
        """The weights as numbers, by name, or by number where the losses have no names."""
        return self._named(self.weights)

    def _named(self, values: Tensor) -> dict[str, float]:
        names = self.names or [str(s) for s in range(len(values))]
        return dict(zip(names, values.tolist(), strict=True))
