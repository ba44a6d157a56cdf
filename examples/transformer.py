"""A Transformer with three heads, one with missing labels: AdamW, cosine schedule, clipping, bfloat16, torch.compile.

    python examples/transformer.py
    python examples/transformer.py --engine compiled
    python examples/transformer.py --compile

Every sequence has a topic, a score, and a tag for each token; most tags are missing, so the third loss is a mean over
the tokens that have one. ``counts=`` says how many these are.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from stimulus_moo import Balanced, MiniBatch, MultiGradient

VOCABULARY, LENGTH, TOPICS, TAGS, MISSING = 16, 10, 4, 3, -100


class ThreeHeads(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.trunk = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.topic, self.score, self.tags = nn.Linear(width, TOPICS), nn.Linear(width, 1), nn.Linear(width, TAGS)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.trunk(self.tokens(tokens) + self.places)
        pooled = hidden.mean(1)
        return self.topic(pooled), self.score(pooled).squeeze(-1), self.tags(hidden)


def make_data(sequences: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (sequences, LENGTH), generator=generator)
    topic, score = tokens[:, 0] % TOPICS, tokens.float().mean(1) / VOCABULARY
    tags = torch.where(torch.rand(tokens.shape, generator=generator) < 0.3, tokens % TAGS, MISSING)
    return tokens, topic, score, tags


def main(
    steps: int = 400, engine: str = "auto", compiled: bool = False, half: bool = True, reweigh: int | str = "auto"
) -> dict[str, Any]:
    torch.manual_seed(0)
    data, model = make_data(512), ThreeHeads()

    def losses(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        tokens, topic, score, tags = batch
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):  # "cuda" on a GPU
            topics, scores, tagged = model(tokens)
        return {
            "topic": cross_entropy(topics.float(), topic),
            "score": mse_loss(scores.float(), score),
            "tags": cross_entropy(tagged.float().flatten(0, 1), tags.flatten(), ignore_index=MISSING),
        }

    def counts(batch: Any) -> list[int]:
        return [len(batch[0]), len(batch[0]), int((batch[3] != MISSING).sum())]

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    used = torch.compile(model) if compiled else model
    mg = MultiGradient(
        used, losses, MiniBatch(), Balanced(0.9), metric=optimizer, counts=counts, engine=engine, reweigh=reweigh
    )
    order = torch.Generator().manual_seed(0)
    history = []
    for _ in range(steps):
        rows = torch.randint(512, (32,), generator=order)
        step = mg.backward(tuple(column[rows] for column in data))  # in place of loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        history.append(step.named_losses)
    print({name: f"{history[0][name]:.3f} -> {value:.3f}" for name, value in history[-1].items()}, mg.engine, mg.passes)
    return {"history": history, "engine": mg.engine}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--engine", default="auto", choices=["auto", "rowwise", "batched", "compiled"])
    parser.add_argument("--compile", action="store_true", help="train torch.compile(model)")
    parser.add_argument("--float32", action="store_true", help="without autocast to bfloat16")
    options = parser.parse_args()
    main(options.steps, options.engine, options.compile, not options.float32)
