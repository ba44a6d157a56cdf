"""Lightning with manual optimization: a ``MultiGradient`` replaces ``manual_backward``.

    python examples/lightning_manual.py
    torchrun --nproc-per-node 2 examples/lightning_manual.py

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
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from stimulus_moo import HeavyBall, MultiGradient, Recursive

BATCH, PERIOD = 16, 16


def losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, left, right = batch
    scores = model(inputs)
    return cross_entropy(scores[:, :3], left), cross_entropy(scores[:, 3:], right)


class TwoTasks(lightning.LightningModule):
    def __init__(self, data: Dataset[Any]) -> None:
        super().__init__()
        self.automatic_optimization = False  # training_step takes the step itself
        self.data = data
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return HeavyBall(self.model.parameters(), lr=0.3, momentum=0.5)

    def on_fit_start(self) -> None:
        # Not in __init__: the processes must have joined. This process's share of the anchor:
        share = Subset(self.data, range(self.global_rank, len(self.data), self.trainer.world_size))  # type: ignore[arg-type]
        anchor = DataLoader(share, batch_size=128)
        self.multigradient = MultiGradient(self.model, losses, Recursive(anchor, period=PERIOD))

    def training_step(self, batch: Any, index: int) -> None:
        step = self.multigradient.backward(batch)  # replaces manual_backward
        self.optimizers().step()
        self.log_dict({f"loss_{s}": value for s, value in enumerate(step.losses)})  # the same on every process


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
