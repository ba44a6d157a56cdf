"""A callback for ``fit`` that writes its history for TensorBoard."""

from pathlib import Path
from typing import Any

from stimulus_moo.errors import MissingDependency
from stimulus_moo.training.metrics_logger import MetricsLogger


class TensorBoardLogger(MetricsLogger):
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
        super().__init__(self._add, every=every)
        self._make, self._folder = SummaryWriter, str(folder)
        self._writer: Any = None

    def _add(self, values: dict[str, float], step: int) -> None:
        if self._writer is None:
            self._writer = self._make(self._folder, purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
