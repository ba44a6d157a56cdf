"""A Transformer with three losses, split over the processes by FSDP2 (``fully_shard``), with kept weights.

    torchrun --nproc-per-node 2 examples/fsdp.py
    torchrun --nproc-per-node 4 examples/fsdp.py --resume

Parameters, gradients, Adam's state, the rows of the estimate and x_{t-1} are split alike: each process has its shards.
The loop is that of a model which is not split. ``--resume`` continues from the saved shards, on any number of
processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, mse_loss

from stimulus_moo import Balanced, MultiGradient, Storm
from stimulus_moo.distributed import load_sharded, save_sharded

VOCABULARY, LENGTH, TOPICS, SEQUENCES, BATCH = 16, 10, 4, 512, 32


class ThreeHeads(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.trunk = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.topic, self.score, self.tags = nn.Linear(width, TOPICS), nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.trunk(self.tokens(tokens) + self.places)
        return self.topic(hidden.mean(1)), self.score(hidden.mean(1)), self.tags(hidden.flatten(0, 1))


def losses(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    topics, scores, tags = model(tokens)
    return {
        "topic": cross_entropy(topics, tokens[:, 0] % TOPICS),
        "score": mse_loss(scores[:, 0], tokens.float().mean(1) / VOCABULARY),
        "tags": cross_entropy(tags, tokens.flatten() % 3),
    }


def main(steps: int, folder: Path, resume: bool) -> dict[str, Any]:
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data, model = torch.randint(VOCABULARY, (SEQUENCES, LENGTH)), ThreeHeads()
    for layer in model.trunk.layers:
        fully_shard(layer)
    fully_shard(model)  # last: it takes what the layers have left

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mg = MultiGradient(model, losses, Storm(0.2), Balanced(0.9), metric=optimizer, reweigh=10)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "mg": mg}
    if resume:
        state = load_sharded(folder, model)
        for name, part in parts.items():
            part.load_state_dict(state[name])
    history = []
    for k in range(mg.t, mg.t + steps):
        order = torch.randint(SEQUENCES, (BATCH,), generator=torch.Generator().manual_seed(k))
        step = mg.backward(data[order[rank * BATCH // processes : (rank + 1) * BATCH // processes]])
        optimizer.step()
        history.append(step.named_losses)
    save_sharded(folder, {name: part.state_dict() for name, part in parts.items()})
    held = sum(p.to_local().numel() for p in model.parameters())  # type: ignore[operator]
    if rank == 0:
        print({name: f"{history[0][name]:.3f} -> {value:.3f}" for name, value in history[-1].items()})
        print(f"rank 0 has {held} of {sum(p.numel() for p in model.parameters())} parameters; {mg.passes} passes")
    return {"history": history, "held": held}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/fsdp"))
    parser.add_argument("--resume", action="store_true", help="continue from what --out has")
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    main(options.steps, options.out, options.resume)
    dist.destroy_process_group()
