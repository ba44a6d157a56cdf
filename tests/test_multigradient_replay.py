"""Random layers see the same draw at both points; buffers advance at x_t and only there."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import Fixed, Full, MiniBatch, MultiGradient, Page, Recursive, StimulusWarning, Storm, Tracking
from tests.harness import cut, data, jacobian, same, stored_rows, train, two_heads, two_losses

COLUMNS = data(24)
BATCHES = cut(COLUMNS, 6)
TWO_POINT = {
    "recursive": lambda: Recursive(cut(COLUMNS, 10), 100),
    "page": lambda: Page(cut(COLUMNS, 10), 0.0),
    "storm": lambda: Storm(0.0),
}


class Noise(nn.Module):
    """Randomness beyond dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.randn_like(x)) * torch.empty(1).uniform_()


RANDOM = {"dropout": lambda: nn.Dropout(0.5), "noise": Noise}


@pytest.mark.parametrize("layer", RANDOM)
@pytest.mark.parametrize("name", TWO_POINT)
def test_same_point_difference_is_zero(name: str, layer: str) -> None:
    mg = MultiGradient(two_heads(RANDOM[layer]()), two_losses, TWO_POINT[name]())
    mg.backward(BATCHES[0])
    before = mg.rows()
    for batch in BATCHES[1:]:
        mg.backward(batch)
        assert same(mg.rows(), before)


@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("layer", RANDOM)
@pytest.mark.parametrize("name", TWO_POINT)
def test_random_state_ends_as_after_one_ordinary_forward(name: str, layer: str, micro_batch: int | None) -> None:
    mg = MultiGradient(two_heads(RANDOM[layer]()), two_losses, TWO_POINT[name](), micro_batch=micro_batch)
    train(mg, BATCHES[:1])
    torch.manual_seed(5)
    for piece in [BATCHES[1]] if micro_batch is None else cut(BATCHES[1], micro_batch):
        two_losses(mg.objective.model, piece)
    expected = torch.get_rng_state()
    torch.manual_seed(5)
    mg.backward(BATCHES[1])
    assert torch.equal(torch.get_rng_state(), expected)


def test_dropout_with_recursive_equals_a_reference_with_two_models() -> None:
    model = two_heads(nn.Dropout(0.5))
    mg = MultiGradient(model, two_losses, Recursive([COLUMNS], 4), Fixed())
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
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= 0.1 * p.grad


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
@pytest.mark.parametrize(
    "estimator",
    [lambda: Recursive([COLUMNS], 4), lambda: Storm(0.3), MiniBatch, lambda: Tracking(0.5), lambda: Full([COLUMNS])],
)
def test_buffers_advance_once_with_each_forward_at_the_current_point(estimator: Any, layer: Any) -> None:
    mg = MultiGradient(two_heads(layer()), two_losses, estimator())
    plain = two_heads(layer())
    for batch in BATCHES * 2:
        for p, q in zip(plain.parameters(), mg.objective.model.parameters(), strict=True):
            p.data.copy_(q.data)
        step = mg.backward(batch)
        plain(COLUMNS[0] if step.anchored else batch[0])  # ordinary training at the same iterates
        buffers = dict(mg.objective.model.named_buffers())
        assert same(dict(plain.named_buffers()), buffers)
        with torch.no_grad():
            for p in mg.objective.parameters:
                assert p.grad is not None
                p -= 0.05 * p.grad


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


@pytest.mark.parametrize("estimator", [lambda: Storm(0.3), lambda: Page([COLUMNS], 0.5), lambda: Full([COLUMNS])])
def test_every_estimator_that_needs_a_finite_sum_warns(estimator: Any) -> None:
    mg = MultiGradient(two_heads(batch_norm()), two_losses, estimator())
    with pytest.warns(StimulusWarning, match="middle"):
        mg.backward(BATCHES[0])


@pytest.mark.parametrize("estimator", [MiniBatch, lambda: Tracking(0.5)])
def test_estimators_that_do_not_need_it_are_silent(estimator: Any) -> None:
    mg = MultiGradient(two_heads(batch_norm()), two_losses, estimator())
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
