"""Hugging Face Accelerate: a ``MultiGradient`` replaces ``accelerator.backward``.

    python examples/accelerate_loop.py
    torchrun --nproc-per-node 2 examples/accelerate_loop.py

Both commands train the same model: the processes compute every step together, each with its share of the batch and of
the anchor.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from stimulus_moo import HeavyBall, Recursive
from stimulus_moo.integrations.accelerate import log_step, prepare_multigradient

BATCH, PERIOD = 16, 16


def losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, left, right = batch
    scores = model(inputs)
    return cross_entropy(scores[:, :3], left), cross_entropy(scores[:, 3:], right)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", help="where to save the trained model")
    options = parser.parse_args()
    set_seed(0)
    # split_batches: every process takes its part of the same batch
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    x = torch.randn(256, 8)
    data = TensorDataset(x, x[:, :3].argmax(1), x[:, 2:5].argmax(1))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))
    optimizer = HeavyBall(model.parameters(), lr=0.3, momentum=0.5)
    model, optimizer, loader, anchor = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=BATCH, drop_last=True), DataLoader(data, batch_size=128)
    )
    # With several processes Accelerate wraps the model in DistributedDataParallel, which is not needed and does no harm
    mg = prepare_multigradient(accelerator, model, losses, Recursive(anchor, period=PERIOD))
    for _ in range(options.epochs):
        for batch in loader:
            step = mg.backward(batch)  # replaces accelerator.backward
            log_step(accelerator, step, mg.t)
            optimizer.step()
    accelerator.print([round(value, 4) for value in step.losses.tolist()], mg.samples, mg.gradients)
    if options.out and accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), options.out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
