"""What can be asked of a ``MultiGradient`` without changing it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stimulus_moo._engine.batch_check import check_batch
from stimulus_moo._engine.exclusive import Exclusive, evaluating
from stimulus_moo._engine.exclusive import exclusive as exclusively
from stimulus_moo._engine.memory import MemoryEstimate, estimate_memory
from stimulus_moo.state import Stateful

if TYPE_CHECKING:
    from stimulus_moo._engine.loss_forms import LossForm
    from stimulus_moo._engine.nonfinite import SkipPolicy
    from stimulus_moo._engine.store import Store
    from stimulus_moo.estimators import Estimator
    from stimulus_moo.weightings import Weighting


class Inspection(Stateful):
    """The read-only part of ``MultiGradient``."""

    exclusive: Exclusive
    store: Store
    policy: SkipPolicy
    estimator: Estimator
    weighting: Weighting
    solving_form: LossForm
    sq_norm: float | None
    t: int
    _supervisor: Any
    _loop_check: Any

    @property
    def norm(self) -> float | None:
        """||d_t|| of the last step; None before the first."""
        return None if self.sq_norm is None else math.sqrt(self.sq_norm)

    @property
    def engine(self) -> str:
        """How rows were differentiated at the last step; ``"auto"`` until it is known how many objectives there are."""
        return self.store.engine.in_use

    @property
    def skipped(self) -> int:
        """How many calls met NaN or infinity and were skipped."""
        return self.policy.total

    @exclusively
    def rows(self) -> list[dict[str, Tensor]]:
        """Return copies of the rows u_t^s that the estimator keeps, by parameter name, if any; of kept weights one."""
        return self.store.saved_rows()

    @evaluating
    def memory_estimate(self, batch: Any = None, *, objectives: int | None = None) -> MemoryEstimate:
        """Bound the memory needed beyond the model, the optimizer and the activations; call it after ``Safeguard``.

        Args:
            batch: the losses are evaluated on it, without side effects, to find S and which parameters each reaches.
            objectives: S, if no batch is given and no step was made; each then counts as reaching every parameter.

        >>> import torch
        >>> from stimulus_moo import MiniBatch, MultiGradient
        >>> model = torch.nn.Linear(1000, 1000)
        >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0)[:4], MiniBatch())
        >>> print(mg.memory_estimate(torch.randn(8, 1000)))
        38.8 MiB for 4 objectives: rows 15.3, staging 0.0, previous point 0.0, gradients 3.8, transient 19.7
        """
        form, supervised = self.solving_form if self.weighting.needs_rows else None, self._supervisor is not None
        return estimate_memory(self.store, self.estimator, form, self.t, batch, objectives, supervised=supervised)

    @property
    def checks(self) -> bool:
        """Whether the first steps are checked for mistakes."""
        return self._loop_check is not None

    @evaluating
    def check(self, batch: Any) -> list[str]:
        """Return messages on what is probably wrong with ``losses``, the batch or the anchor; empty if nothing is.

        ``backward`` does this at its first call. The losses are evaluated on the batch and on its two halves; batch,
        model, random state and counters do not change. Found are: losses of a batch that are not the mean over its
        halves, a batch or parameters changed in place, buffers that change in a forward pass, and an anchor that leaves
        samples out. During the first steps ``backward`` also looks for parameters that do not move between two calls,
        and for losses that min-norm weights cannot trade off.

        >>> import torch
        >>> from stimulus_moo import MultiGradient, Storm
        >>> model = torch.nn.Linear(2, 2)
        >>> mg = MultiGradient(model, lambda m, x: m(x).square().sum(0), Storm(0.1))
        >>> for message in mg.check(torch.ones(4, 2)):
        ...     print(message)  # doctest: +ELLIPSIS
        loss 0 is ... it is a sum: divide it by the number of samples, or pass check=False if this is meant. see ...
        """
        return [finding.message for finding in check_batch(self, batch)]  # type: ignore[arg-type]
