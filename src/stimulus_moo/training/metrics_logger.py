"""A callback for ``fit`` that hands its history to a tracker such as Weights & Biases or MLflow."""

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from stimulus_moo.options import positive_integer
from stimulus_moo.training.history import by_name
from stimulus_moo.training.progress import Progress


class MetricsLogger:
    """Calls ``write(values, step=...)`` with the scalars of a step, in the first process only.

    Losses and weights have their names, as in ``loss/click``, or numbers. ``wandb.log``, the ``log`` of a W&B run and
    ``mlflow.log_metrics`` can be passed as they are.

    Args:
        write: a function from a dict and ``step=``.
        every: number of steps between two calls; evaluations are always written.

    >>> import torch
    >>> from stimulus_moo import MetricsLogger, fit
    >>> def losses(model, x):
    ...     return {"first": model(x)[:, 0].square().mean(), "second": model(x)[:, 1].square().mean()}
    >>> written = {}
    >>> logger = MetricsLogger(lambda values, step: written.update({step: values}))
    >>> _ = fit(torch.nn.Linear(2, 2), losses, torch.randn(16, 2), steps=2, callbacks=[logger])
    >>> list(written), "loss/first" in written[0]
    ([0, 1], True)
    """

    def __init__(self, write: Callable[..., Any], *, every: int = 1) -> None:
        self._write, self._every = write, positive_integer("every", every)
        self._first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0

    def __call__(self, told: Progress) -> None:
        """Write the record of a step."""
        if self._first and (told.step % self._every == 0 or "stationarity" in told.record):
            self._write(scalars(told.record, told.names), step=told.record["step"])


def scalars(record: dict[str, Any], names: Sequence[str] = ()) -> dict[str, float]:
    """Return a record of the history as a dict from tag to scalar.

    >>> scalars({"samples": 8, "gradients": 8, "passes": 16, "losses": [0.5], "weights": [1.0], "sq_norm": 0.25})
    {'loss/0': 0.5, 'weight/0': 1.0, 'sq_norm': 0.25, 'samples': 8, 'gradients': 8, 'passes': 16}
    """
    others = ("sq_norm", "lr", "samples", "gradients", "passes", "seconds", "stationarity")
    return {
        **by_name("loss/", record["losses"], names),
        **by_name("weight/", record["weights"], names),
        **by_name("full_loss/", record.get("full_losses", ()), names),
        **{name: record[name] for name in others if name in record},
    }
