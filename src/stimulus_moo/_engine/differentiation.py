"""Which engine differentiates: asked for, or chosen by a rule on the problem's size and on what the model contains."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from stimulus_moo._engine.batched import batched
from stimulus_moo._engine.finite import finite
from stimulus_moo._engine.replay import full_precision
from stimulus_moo._engine.rowwise import Accumulator, can_stream, rowwise, streamed
from stimulus_moo.errors import StimulusWarning

logger = logging.getLogger("stimulus_moo")

#: engine names a user may ask for; "auto" is resolved to "rowwise" or "batched"
ENGINES = ("auto", "rowwise", "batched", "compiled")

#: Up to so many entries of U (S x P) one vectorised pass beats S single ones (benchmarks/engines.py): small models,
#: whose time goes into calling operations. With two objectives there is little to gain, and convolutions and recurrent
#: layers gain little or lose at any size.
BATCHED_OBJECTIVES = 3
BATCHED_ENTRIES = 1 << 22


def choose(model: nn.Module, parameters: Sequence[Tensor], objectives: int) -> str:
    """Return the engine that is fastest on problems like this one; equal problems get equal answers."""
    entries = objectives * sum(parameter.numel() for parameter in parameters)
    if objectives < BATCHED_OBJECTIVES or entries > BATCHED_ENTRIES:
        return "rowwise"
    heavy = any(isinstance(module, _ConvNd | nn.RNNBase) for module in model.modules())
    return "rowwise" if heavy else "batched"


class Engine:
    """Differentiates S losses; falls back to single rows, with one notice, where a graph cannot be vectorised."""

    def __init__(self, name: str, model: nn.Module) -> None:
        self.name = name
        self.model = model
        self._chosen = name == "auto"  # by the rule, not by the user

    def differentiate(
        self, losses: Sequence[Tensor], parameters: Sequence[Tensor], intake: Accumulator, *, large: bool
    ) -> None:
        """Give the intake the gradients of all losses for all parameters."""
        if self.name == "auto":
            self.name = choose(self.model, parameters, len(losses))
            logger.debug("engine %s chosen for %d objectives", self.name, len(losses))
        with full_precision({parameter.device for parameter in parameters}):
            if self.name == "batched" and self._batched(losses, parameters, intake):
                return
            if large and can_stream(self.model, parameters):
                streamed(losses, parameters, intake)
            else:
                rowwise(losses, parameters, intake)

    def rowwise(self, losses: Sequence[Tensor], parameters: Sequence[Tensor], intake: Accumulator) -> None:
        """Give the intake single rows, whatever the engine."""
        with full_precision({parameter.device for parameter in parameters}):
            rowwise(losses, parameters, intake)

    def _batched(self, losses: Sequence[Tensor], parameters: Sequence[Tensor], intake: Accumulator) -> bool:
        try:
            gradients = batched(losses, parameters)
        except RuntimeError as error:
            self.give_up(f"its gradients cannot be vectorised ({str(error).splitlines()[0]})")
            return False
        if not all(gradient is None or finite(gradient) for gradient in gradients):
            return False  # 0 times infinity spoils the other rows too: single rows tell which one it is
        intake.take_all(gradients)
        return True

    def give_up(self, reason: str) -> None:
        """Go on with single rows, and say why: to the user who asked for another engine, else to the log."""
        message = (
            f"engine {self.name!r} does not work for this model: {reason}; engine 'rowwise' takes over, with the same "
            "results"
        )
        if self._chosen:
            logger.info(message)
        else:
            warnings.warn(message, StimulusWarning, stacklevel=2)
        self.name = "rowwise"
