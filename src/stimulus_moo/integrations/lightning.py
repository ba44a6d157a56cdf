"""A LightningModule whose steps are made by a MultiGradient, without code for manual optimization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Subset

from stimulus_moo.errors import InvalidOption, MissingDependency
from stimulus_moo.estimators import Estimator, MiniBatch
from stimulus_moo.integrations.logged import scalars
from stimulus_moo.multigradient import MultiGradient

try:
    import lightning
except ImportError as error:
    raise MissingDependency("MultiGradientModule needs Lightning: pip install lightning") from error


class MultiGradientModule(lightning.LightningModule):
    """A LightningModule with several losses: define ``training_losses(batch)`` in place of ``training_step``.

    Gradients come from a ``MultiGradient``, the step from the optimizer of ``configure_optimizers``, and its learning
    rate schedulers are stepped by their interval, ``"step"`` or ``"epoch"``. Losses and weights are logged by name to
    the trainer's loggers. Checkpoints hold the state of the ``MultiGradient``, so that ``trainer.fit(ckpt_path=...)``
    continues the same trajectory. With several processes each takes its part of every batch. A subclass that overrides
    one of the hooks below calls ``super()`` in it.

    Attributes:
        clip_norm: the norm to which the direction is clipped before each step, or None. Lightning's own
            ``gradient_clip_val`` is for automatic optimization.
        multigradient: the ``MultiGradient``, from the start of ``fit`` on.

    .. code-block:: python

        class TwoTasks(MultiGradientModule):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 6)

            def training_losses(self, batch):
                x, left, right = batch
                scores = self.net(x)
                return {"left": cross_entropy(scores[:, :3], left), "right": cross_entropy(scores[:, 3:], right)}

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), lr=1e-3)
    """

    clip_norm: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.multigradient: MultiGradient
        self._loaded: dict[str, Any] | None = None

    def training_losses(self, batch: Any) -> Any:
        """Return the S mean losses of a batch, as a dict, a tuple or a 1-D tensor."""
        raise NotImplementedError("define training_losses(self, batch), which returns the S losses of a batch")

    def configure_multigradient(self, losses: Callable[[Any, Any], Any]) -> MultiGradient:
        """Build the ``MultiGradient``; override it for another weighting or further options."""
        return MultiGradient(self, losses, self.configure_estimator(), "balanced")

    def configure_estimator(self) -> Estimator:
        """Return the estimator; override it for variance reduction."""
        return MiniBatch()

    def anchor(self, dataset: Any, batch_size: int = 256, **options: Any) -> DataLoader[Any]:
        """Return a pass over this process's part of a data set; ``options`` are those of ``DataLoader``."""
        part = Subset(dataset, range(self.global_rank, len(dataset), self.trainer.world_size))
        return DataLoader(part, batch_size, **options)

    def on_fit_start(self) -> None:
        """Build the ``MultiGradient``, when the processes have joined, and load its state."""
        if self.trainer.accumulate_grad_batches != 1:
            raise InvalidOption(
                f"accumulate_grad_batches must be 1, found {self.trainer.accumulate_grad_batches}; use a larger batch "
                "and micro_batch= of MultiGradient"
            )
        if not isinstance(self.optimizers(), lightning.pytorch.core.optimizer.LightningOptimizer):
            raise InvalidOption("configure_optimizers must return one optimizer, found several")
        self.multigradient = self.configure_multigradient(lambda module, batch: module.training_losses(batch))
        if self._loaded is not None:
            self.multigradient.load_state_dict(self._loaded)
            self._loaded = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Take one step and log it; return the mean of the losses that the batch has labels for."""
        step = self.multigradient.backward(batch)
        optimizer: Any = self.optimizers()
        if not step.skipped:
            if self.clip_norm is not None:
                self.clip_gradients(optimizer, gradient_clip_val=self.clip_norm, gradient_clip_algorithm="norm")
            optimizer.step()
            self._step_schedulers("step", batch_idx + 1)
        self.log_dict(scalars(step), batch_size=1)
        return step.losses.nanmean()  # NaN where a batch has no label

    def on_train_epoch_end(self) -> None:
        """Step the schedulers whose interval is an epoch."""
        self._step_schedulers("epoch", self.current_epoch + 1)

    def _step_schedulers(self, interval: str, count: int) -> None:
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == interval and count % config.frequency == 0:
                scheduler: Any = config.scheduler
                monitored = (self.trainer.callback_metrics[str(config.monitor)],) if config.reduce_on_plateau else ()
                scheduler.step(*monitored)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state of the ``MultiGradient`` to a checkpoint."""
        own = getattr(self, "multigradient", None)  # there is none before ``fit``
        checkpoint["multigradient"] = self._loaded if own is None else own.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the state of the ``MultiGradient`` until there is one; a checkpoint without one restarts it."""
        self._loaded = checkpoint.get("multigradient")
