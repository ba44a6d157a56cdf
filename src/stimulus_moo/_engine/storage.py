"""How rows are stored: their type and device, and sums into low precision."""

from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from stimulus_moo._engine.nonfinite import finite
from stimulus_moo.errors import InvalidOption


@dataclass(frozen=True)
class Storage:
    """How rows are kept: None is the parameter's own type, in float32 at the least, and its own device."""

    dtype: torch.dtype | None = None
    device: torch.device | None = None
    #: whether rows are stored as they come
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", self.dtype is None and self.device is None)

    @classmethod
    def checked(cls, dtype: Any, device: Any) -> Self:
        """Return the storage for the options ``rows_dtype`` and ``rows_device``, or raise InvalidOption."""
        if dtype not in (None, torch.bfloat16, torch.float32, torch.float64):
            needed = "None, torch.bfloat16, torch.float32 or torch.float64"
            raise InvalidOption(f"rows_dtype must be {needed}, found {dtype!r}")
        try:
            return cls(dtype, None if device is None else torch.device(device))
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidOption(f"rows_device must be a device such as 'cpu', found {device!r}") from error

    def for_one_row(self) -> "Storage":
        """Return how the one row of kept weights is stored: never in half precision, which would save little."""
        return Storage(None, self.device) if self.dtype is torch.bfloat16 else self

    def dtype_for(self, parameter: Tensor) -> torch.dtype:
        return torch.promote_types(parameter.dtype, torch.float32) if self.dtype is None else self.dtype

    def device_for(self, parameter: Tensor) -> torch.device:
        return parameter.device if self.device is None else self.device


def add_rounded(target: Tensor, term: Tensor, weight: float) -> None:
    """Add ``weight * term`` in place; a bfloat16 target is rounded up or down with the odds that make it unbiased.

    Rounding to nearest would lose every term below 1/256 of an entry, and the differences that a recursive estimator
    adds are such terms. The draw comes from a generator of its own that is seeded by the sum itself, so that equal runs
    are equal and no random state has to be kept.

    >>> import torch
    >>> u = torch.ones(10_000, dtype=torch.bfloat16)
    >>> for _ in range(100):
    ...     add_rounded(u, torch.full((10_000,), 0.001), 1.0)
    >>> round(u.float().mean().item(), 2)  # to nearest it would still be 1
    1.1
    """
    if target.dtype is not torch.bfloat16:
        target.add_(term, alpha=weight)
        return
    total = target.float().add_(term, alpha=weight)
    bits = total.view(torch.int32)
    generator = torch.Generator(target.device)
    generator.manual_seed(int(bits.sum(dtype=torch.int64)))
    noise = torch.randint(0, 1 << 16, total.shape, dtype=torch.int32, device=target.device, generator=generator)
    rounded = noise.add_(bits).bitwise_and_(-(1 << 16)).view(torch.float32)  # the upper half of the bits is a bfloat16
    target.copy_(rounded if finite(total) else torch.where(torch.isfinite(total), rounded, total))
