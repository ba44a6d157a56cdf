"""Lightning: a ``MultiGradientModule`` takes ``training_losses`` in place of ``training_step``.

    python examples/lightning_module.py
    torchrun --nproc-per-node 2 examples/lightning_module.py

Both commands train the same model: the processes compute every step together, each with its share of the batch and of
the anchor.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from stimulus_moo import HeavyBall, MultiGradient, Recursive
from stimulus_moo.integrations.lightning import MultiGradientModule

BATCH, PERIOD = 16, 16


class TwoTasks(MultiGradientModule):
    def __init__(self, data: Dataset[Any]) -> None:
        super().__init__()
        self.data = data
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))

    def training_losses(self, batch: Any) -> dict[str, Tensor]:
        inputs, left, right = batch
        scores = self.model(inputs)
        return {"left": cross_entropy(scores[:, :3], left), "right": cross_entropy(scores[:, 3:], right)}

    def configure_multigradient(self, losses: Any) -> MultiGradient:
        return MultiGradient(self, losses, Recursive(self.anchor(self.data, 128), period=PERIOD))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return HeavyBall(self.parameters(), lr=0.3, momentum=0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", help="where to save the trained model")
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(256, 8)
    data = TensorDataset(x, x[:, :3].argmax(1), x[:, 2:5].argmax(1))
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # set by torchrun
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    module = TwoTasks(data)
    # Each process takes its part of every batch. Lightning's own sampler would too, in a different order.
    sampler = DistributedSampler(data, trainer.world_size, trainer.global_rank, shuffle=False)
    loader = DataLoader(data, batch_size=BATCH // trainer.world_size, sampler=sampler, drop_last=True)
    trainer.fit(module, loader)
    if trainer.is_global_zero:
        print({name: round(float(value), 4) for name, value in trainer.logged_metrics.items()})
        print(module.multigradient.samples, module.multigradient.gradients)
        if options.out:
            torch.save(module.model.state_dict(), options.out)


if __name__ == "__main__":
    main()
