"""Hugging Face Trainer: a ``MultiGradientTrainer`` takes ``losses=`` in place of ``compute_loss``.

    python examples/huggingface_trainer.py
    torchrun --nproc-per-node 2 examples/huggingface_trainer.py

Both commands train the same model: the processes compute every step together, each with its share of the batch and of
the anchor.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import TrainingArguments

from stimulus_moo import Recursive
from stimulus_moo.integrations.transformers import MultiGradientTrainer

BATCH, PERIOD = 16, 16


class Digits(Dataset[dict[str, Tensor]]):
    """A map-style data set of dicts, as Trainer's collator takes it."""

    def __init__(self, x: Tensor) -> None:
        self.columns = {"x": x, "left": x[:, :3].argmax(1), "right": x[:, 2:5].argmax(1)}

    def __len__(self) -> int:
        return len(self.columns["x"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


def losses(model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    scores = model(inputs["x"])
    return {
        "left": cross_entropy(scores[:, :3], inputs["left"]),
        "right": cross_entropy(scores[:, 3:], inputs["right"]),
    }


def build(folder: str, epochs: int = 4, **options: Any) -> MultiGradientTrainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH // int(os.environ.get("WORLD_SIZE", "1")),
        learning_rate=0.01,
        remove_unused_columns=False,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        **{"save_strategy": "no", "logging_steps": 16, "dataloader_pin_memory": False} | options,
    )
    return MultiGradientTrainer(
        model,
        arguments,
        train_dataset=Digits(torch.randn(256, 8, generator=torch.Generator().manual_seed(0))),
        losses=losses,
        estimator=lambda trainer: Recursive(trainer.anchor(128), period=PERIOD),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", help="where to save the trained model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(folder, options.epochs)
        trainer.train()
    assert trainer.multigradient is not None
    if trainer.is_world_process_zero():
        print(trainer.last_step, trainer.multigradient.samples, trainer.multigradient.gradients)
        if options.out:
            torch.save(trainer.accelerator.unwrap_model(trainer.model).state_dict(), options.out)


if __name__ == "__main__":
    main()
