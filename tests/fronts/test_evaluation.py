"""Mean losses over a data set, without derivatives."""

import torch
from torch import nn

from stimulus_moo.fronts.evaluation import mean_losses, moved_state

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


def test_a_few_samples_are_the_first_batch() -> None:
    found = mean_losses(nn.Linear(2, 1), lambda model, batch: (batch.mean(),), X, {"anchor_batch": 2}, few=True)
    assert found == [1.5]


def test_a_state_is_moved_on_a_line() -> None:
    end, other = {"x": torch.tensor([2.0]), "n": torch.tensor(3)}, {"x": torch.tensor([1.0]), "n": torch.tensor(5)}
    assert moved_state(end, other, 0.5)["x"].item() == 2.5
    assert moved_state(end, other, -0.5)["x"].item() == 1.5
    assert moved_state(end, other, 0.5)["n"].item() == 3


def test_losses_keep_their_places_whatever_the_order_of_the_names() -> None:
    calls = 0

    def turning(model: nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        both = {"one": torch.tensor(1.0), "two": torch.tensor(2.0)}
        return both if calls % 2 else dict(reversed(both.items()))

    assert mean_losses(nn.Linear(2, 1), turning, X, {"anchor_batch": 2}) == [1.0, 2.0]
