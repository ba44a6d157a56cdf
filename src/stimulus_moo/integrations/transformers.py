"""A Hugging Face ``Trainer`` whose gradients come from a MultiGradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from stimulus_moo import Step
from stimulus_moo.errors import InvalidOption, MissingDependency
from stimulus_moo.estimators import Estimator, MiniBatch
from stimulus_moo.integrations.logged import scalars
from stimulus_moo.multigradient import MultiGradient
from stimulus_moo.training.files import write_whole

try:
    import transformers
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise MissingDependency("MultiGradientTrainer needs Trainer: pip install 'transformers[torch]'") from error

_FILE = "multigradient.pt"


class MultiGradientTrainer(transformers.Trainer):
    """A ``Trainer`` for several losses.

    Optimizer, scheduler, clipping, mixed precision, evaluation and checkpoints are those of ``Trainer``. Its logs have
    the losses and weights by name, for every integration of ``report_to``. Checkpoints hold the state of the
    ``MultiGradient``, so that ``train(resume_from_checkpoint=...)`` continues the same trajectory. With several
    processes each takes its part of every batch.

    Args:
        losses: ``losses(model, inputs)`` returns the S mean losses of a batch, as a dict, a tuple or a 1-D tensor.
        estimator: a function from the trainer to an estimator, say
            ``lambda trainer: Recursive(trainer.anchor(), period=10)``; default ``MiniBatch()``.
        weighting: as for ``MultiGradient``.
        multigradient_options: further options of ``MultiGradient``, such as ``micro_batch`` or ``counts``.
        arguments: those of ``Trainer``.

    Raises:
        InvalidOption: ``gradient_accumulation_steps`` is not 1; ``backward`` would overwrite gradients.

    .. code-block:: python

        trainer = MultiGradientTrainer(model, args, train_dataset=data, losses=losses)
        trainer.train()
    """

    def __init__(
        self,
        *arguments: Any,
        losses: Callable[[Any, Any], Any],
        estimator: Callable[[MultiGradientTrainer], Estimator] = lambda trainer: MiniBatch(),
        weighting: Any = "balanced",
        multigradient_options: dict[str, Any] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        if self.args.gradient_accumulation_steps != 1:
            raise InvalidOption(
                f"gradient_accumulation_steps must be 1, found {self.args.gradient_accumulation_steps}; use a larger "
                'per_device_train_batch_size and multigradient_options={"micro_batch": ...}'
            )
        self._losses, self._estimator, self._weighting = losses, estimator, weighting
        self._options = multigradient_options or {}
        self.multigradient: MultiGradient | None = None  #: from the first step on
        self.last_step: Step | None = None  #: the record of the last step
        self._resumed: dict[str, Any] | None = None
        self.add_callback(_SaveState(self))

    def anchor(self, batch_size: int = 256) -> DataLoader[Any]:
        """Return a pass over this process's part of the training data, collated as its batches are."""
        data: Any = self.train_dataset
        part = Subset(data, range(self.args.process_index, len(data), self.args.world_size))
        return DataLoader(part, batch_size, collate_fn=self.data_collator)

    def train(self, resume_from_checkpoint: str | bool | None = None, *rest: Any, **named: Any) -> Any:
        """Train as ``Trainer.train`` does; a checkpoint also restores the ``MultiGradient``, which else starts anew."""
        self.multigradient = self._resumed = None
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(str(self.args.output_dir))  # type: ignore[no-untyped-call]
        if folder:
            file = Path(str(folder)) / _FILE
            self._resumed = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else None
        return super().train(resume_from_checkpoint, *rest, **named)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Write the direction into every ``p.grad``; return the mean of the losses that the batch has labels for."""
        model.train()
        if self.multigradient is None:
            self.multigradient = self._build()
        with self.compute_loss_context_manager():
            step = self.last_step = self.multigradient.backward(self._prepare_inputs(inputs))
        return step.losses.nanmean()  # NaN where a batch has no label

    def log(self, logs: dict[str, float], *rest: Any, **named: Any) -> None:
        """Log losses and weights beside what ``Trainer`` logs of the training."""
        if self.last_step is not None and "loss" in logs:
            logs = {**logs, **scalars(self.last_step)}
        super().log(logs, *rest, **named)

    def _build(self) -> MultiGradient:
        def losses(model: Any, inputs: Any) -> Any:
            return self._losses(model, self._prepare_inputs(inputs))

        model: Any = self.model
        mg = MultiGradient(model, losses, self._estimator(self), self._weighting, **self._options)
        if self._resumed is not None:
            mg.load_state_dict(self._resumed)
            self._resumed = None
        return mg


class _SaveState(transformers.TrainerCallback):
    """Writes the state of the MultiGradient into every checkpoint."""

    def __init__(self, trainer: MultiGradientTrainer) -> None:
        self._trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Add the file to the folder that was just written."""
        if self._trainer.multigradient is None:
            return
        own = self._trainer.multigradient.state_dict()  # collective: called by all processes
        if args.should_save:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_whole(folder / _FILE, lambda file: torch.save(own, file))
