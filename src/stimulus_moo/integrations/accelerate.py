"""A MultiGradient in a loop with Hugging Face Accelerate: built on what was prepared, saved with its states."""

from __future__ import annotations

from typing import Any

from stimulus_moo.errors import InvalidOption
from stimulus_moo.estimators import Estimator
from stimulus_moo.integrations.logged import scalars
from stimulus_moo.multigradient import MultiGradient


def prepare_multigradient(
    accelerator: Any, model: Any, losses: Any, estimator: Estimator, weighting: Any = None, **options: Any
) -> MultiGradient:
    """Return a ``MultiGradient`` on a prepared model; ``accelerator.save_state`` and ``load_state`` include it.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        model: what ``accelerator.prepare`` has returned for it.
        losses, estimator, weighting, options: as for ``MultiGradient``.

    Raises:
        InvalidOption: the accelerator accumulates gradients, which ``backward`` would overwrite.

    .. code-block:: python

        model, optimizer, loader, anchor = accelerator.prepare(model, optimizer, loader, anchor)
        mg = prepare_multigradient(accelerator, model, losses, Recursive(anchor, period=16))
        for batch in loader:
            log_step(accelerator, mg.backward(batch), mg.t)  # in place of accelerator.backward(loss)
            optimizer.step()
        accelerator.save_state("checkpoint")
    """
    if accelerator.gradient_accumulation_steps != 1:
        raise InvalidOption(
            f"gradient_accumulation_steps must be 1, found {accelerator.gradient_accumulation_steps}; use a larger "
            "batch and micro_batch="
        )
    mg = MultiGradient(model, losses, estimator, weighting, **options)
    accelerator.register_for_checkpointing(mg)
    return mg


def log_step(accelerator: Any, step: Any, t: int) -> None:
    """Log losses, weights and ||d_t||^2 of a step to the accelerator's trackers (TensorBoard, W&B, MLflow, ...)."""
    accelerator.log(scalars(step), step=t)
