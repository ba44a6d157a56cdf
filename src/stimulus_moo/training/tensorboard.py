"""A callback for ``fit`` that writes its history for TensorBoard."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from stimulus_moo.errors import MissingDependency
from stimulus_moo.options import positive_integer
from stimulus_moo.training.history import by_name
from stimulus_moo.training.progress import Progress


class TensorBoardLogger:
    """Writes losses, weights, ||d_t||^2, counters and stationarity as scalars by step, in the first process only.

    A resumed run continues in the same folder. TensorBoard hides what an interrupted run wrote after its last
    checkpoint.

    Args:
        folder: the folder for the event files.
        every: number of steps between two writes.

    Raises:
        MissingDependency: tensorboard is not installed.

    .. code-block:: python

        fit(model, losses, data, lr=0.1, callbacks=[TensorBoardLogger("runs/board")])
    """

    def __init__(self, folder: str | Path, *, every: int = 1) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependency("TensorBoardLogger needs tensorboard: pip install tensorboard") from None
        self._make, self._folder = SummaryWriter, str(folder)
        self._every = positive_integer("every", every)
        self._writer: Any = None
        self._first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0

    def __call__(self, told: Progress) -> None:
        """Write the record of a step."""
        if not self._first or (told.step % self._every and "stationarity" not in told.record):
            return
        if self._writer is None:
            self._writer = self._make(self._folder, purge_step=told.record["step"])
        for name, value in _scalars(told.record, told.names).items():
            self._writer.add_scalar(name, value, told.record["step"])
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _scalars(record: dict[str, Any], losses: Sequence[str] = ()) -> dict[str, float]:
    """Return a record of the history as a dict from tag to scalar.

    >>> _scalars({"samples": 8, "gradients": 8, "passes": 16, "losses": [0.5], "weights": [1.0], "sq_norm": 0.25})
    {'loss/0': 0.5, 'weight/0': 1.0, 'sq_norm': 0.25, 'samples': 8, 'gradients': 8, 'passes': 16}
    """
    names = ("sq_norm", "lr", "samples", "gradients", "passes", "seconds", "stationarity")
    return {
        **by_name("loss/", record["losses"], losses),
        **by_name("weight/", record["weights"], losses),
        **by_name("full_loss/", record.get("full_losses", ()), losses),
        **{name: record[name] for name in names if name in record},
    }
