"""Random layers see the same draw at both points; buffers advance at x_t and only there."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import MultiGradient, Recursive, StimulusWarning, Storm
from tests.database import BATCHES, COLUMNS, ESTIMATORS
from tests.harness import jacobian, same, stored_rows, train, two_heads, two_losses, vector

estimators = pytest.mark.parametrize("name", ESTIMATORS)


class Seen:
    """Losses that note the batches which are evaluated where the model is now, in their order."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.batches = model, []
        self.here = vector(model)

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        if torch.equal(vector(model), self.here):
            self.batches.append(batch)
        return two_losses(model, batch)

    def start(self) -> None:
        """Begin again from where the model is now."""
        self.here, self.batches = vector(self.model), []


def descend(model: nn.Module, lr: float = 0.1) -> None:
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p -= lr * p.grad


class Noise(nn.Module):
    """Randomness beyond dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.randn_like(x)) * torch.empty(1).uniform_()


RANDOM = {"dropout": lambda: nn.Dropout(0.5), "noise": Noise}


@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("layer", RANDOM)
@estimators
def test_random_state_ends_as_after_ordinary_forwards(name: str, layer: str, micro_batch: int | None) -> None:
    model = two_heads(RANDOM[layer]())
    seen = Seen(model)
    mg = MultiGradient(model, seen, ESTIMATORS[name].build(), micro_batch=micro_batch)
    train(mg, BATCHES[:1])
    for batch in BATCHES[1:3]:
        seen.start()
        torch.manual_seed(5)
        mg.backward(batch)
        found = torch.get_rng_state()
        torch.manual_seed(5)
        for piece in seen.batches:
            two_losses(model, piece)
        assert torch.equal(torch.get_rng_state(), found)
        descend(model)


def test_dropout_with_recursive_equals_a_reference_with_two_models() -> None:
    model = two_heads(nn.Dropout(0.5))
    mg = MultiGradient(model, two_losses, Recursive([COLUMNS], 4), lambda gramian: torch.ones(2) / 2)
    last: Any = None
    u = torch.zeros(())
    for t, batch in enumerate(BATCHES * 2):
        state = torch.get_rng_state()
        mg.backward(batch)
        torch.set_rng_state(state)
        if t % 4 == 0:
            u = jacobian(model, two_losses, COLUMNS)
        else:
            now = jacobian(model, two_losses, batch)
            torch.set_rng_state(state)
            u = u + now - jacobian(last, two_losses, batch)
        torch.testing.assert_close(stored_rows(mg), u, rtol=0, atol=1e-13)
        last = copy.deepcopy(model)
        descend(model)


# Buffers


class Replacing(nn.Module):
    """A moving average that is a new tensor at every forward."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x


def batch_norm() -> nn.Module:
    return nn.BatchNorm1d(5, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::stimulus_moo.StimulusWarning")
@pytest.mark.parametrize("layer", [batch_norm, Replacing])
@estimators
def test_buffers_advance_once_with_each_forward_at_the_current_point(name: str, layer: Any) -> None:
    model, plain = two_heads(layer()), two_heads(layer())
    seen = Seen(model)
    mg = MultiGradient(model, seen, ESTIMATORS[name].build())
    for batch in BATCHES * 2:
        plain.load_state_dict(dict(model.named_parameters()), strict=False)
        seen.start()
        mg.backward(batch)
        for x, _ in seen.batches:  # ordinary training at the same iterates
            plain(x)
        assert same(dict(plain.named_buffers()), dict(model.named_buffers()))
        descend(model)


@pytest.mark.filterwarnings("ignore::stimulus_moo.StimulusWarning")
def test_buffers_advance_with_each_piece() -> None:
    mg = MultiGradient(two_heads(batch_norm()), two_losses, Storm(0.3), micro_batch=4)
    train(mg, BATCHES[:3])
    assert int(mg.objective.model.middle.num_batches_tracked) == 3 * 2


# The warning


def test_batch_norm_in_training_mode_is_warned_about_once_and_named() -> None:
    mg = MultiGradient(two_heads(batch_norm()), two_losses, Recursive([COLUMNS], 4))
    with pytest.warns(StimulusWarning, match=r"BatchNorm in training mode .*\(middle\).*GroupNorm") as caught:
        mg.backward(BATCHES[0])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(mg, BATCHES)


@pytest.mark.parametrize("name", [name for name, info in ESTIMATORS.items() if info.finite_sum])
def test_every_estimator_that_needs_a_finite_sum_warns(name: str) -> None:
    mg = MultiGradient(two_heads(batch_norm()), two_losses, ESTIMATORS[name].build())
    with pytest.warns(StimulusWarning, match="middle"):
        mg.backward(BATCHES[0])


@pytest.mark.parametrize("name", [name for name, info in ESTIMATORS.items() if not info.finite_sum])
def test_estimators_that_do_not_need_it_are_silent(name: str) -> None:
    mg = MultiGradient(two_heads(batch_norm()), two_losses, ESTIMATORS[name].build())
    train(mg, BATCHES)  # a warning would be an error
    assert mg.t == 4


def test_batch_norm_in_eval_mode_is_silent_and_does_not_advance() -> None:
    model = two_heads(batch_norm()).eval()
    mg = MultiGradient(model, two_losses, Recursive([COLUMNS], 2))
    train(mg, BATCHES)
    assert int(model.middle.num_batches_tracked) == 0
    model.train()
    with pytest.warns(StimulusWarning, match="middle"):
        mg.backward(BATCHES[0])


def test_a_warning_that_is_an_error_changes_nothing() -> None:
    mg = MultiGradient(two_heads(batch_norm()), two_losses, Recursive([COLUMNS], 4))
    before = mg.state_dict()
    with pytest.raises(StimulusWarning):
        mg.backward(BATCHES[0])
    assert same(mg.state_dict(), before)
