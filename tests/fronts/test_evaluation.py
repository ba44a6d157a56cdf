"""Mean losses over a data set, without derivatives."""

import torch
from torch import nn

from stimulus_moo.fronts.evaluation import mean_losses

X = torch.arange(12.0).reshape(6, 2)


def test_losses_with_names_are_in_their_own_order() -> None:
    model = nn.Linear(2, 1)

    def named(model: nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"second": model(batch).mean(), "first": batch.mean()}

    def plain(model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(named(model, batch).values())

    found = mean_losses(model, named, X, {"anchor_batch": 4})
    assert found == mean_losses(model, plain, X, {"anchor_batch": 4})
    assert found[1] == 5.5  # batches of 4 and 2 samples, weighted by size
