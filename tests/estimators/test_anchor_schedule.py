"""When to anchor: by the period, or by the error, and never for more than a share of the evaluations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import InvalidOption, MultiGradient, Recursive

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(256, 3, generator=GENERATOR, dtype=torch.float64)
TARGETS = INPUTS @ torch.randn(3, 2, generator=GENERATOR, dtype=torch.float64)
TARGETS = TARGETS + torch.randn(256, 2, generator=GENERATOR, dtype=torch.float64)


def losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean(0)


def train(share: float, steps: int = 300, lr: float = 0.05) -> tuple[MultiGradient, int]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    mg = MultiGradient(model, losses, Recursive([(INPUTS, TARGETS)], "auto", share=share))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    anchors = 0
    for k in range(steps):
        rows = slice(8 * k % 256, 8 * k % 256 + 8)
        anchors += mg.backward((INPUTS[rows], TARGETS[rows])).anchored
        optimizer.step()
    return mg, anchors


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_anchors_come_and_never_take_more_than_their_share(share: float) -> None:
    mg, anchors = train(share)
    assert anchors > 1
    assert (anchors - 1) * 256 <= share * mg.gradients  # the first one is not a choice


@pytest.mark.slow
def test_where_batches_cannot_be_cut_the_share_alone_decides() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    mg = MultiGradient(model, losses, Recursive([(INPUTS, TARGETS)], "auto", share=0.25))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    anchors = []
    for k in range(1000):
        anchors.append(mg.backward((INPUTS[k % 256 : k % 256 + 1], TARGETS[k % 256 : k % 256 + 1])).anchored)
        optimizer.step()
    assert [k for k, anchored in enumerate(anchors) if anchored] == [0, 385, 770]  # 2 x 384 evaluations in between


@pytest.mark.slow
def test_a_larger_share_anchors_more_often() -> None:
    assert train(0.1)[1] < train(0.6)[1]


def test_without_noise_there_is_no_need_for_a_second_anchor() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    data = torch.ones(8, 1, dtype=torch.float64)
    mg = MultiGradient(model, lambda m, b: (m(b) - 3).square().mean(0), Recursive([data], "auto"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    anchors = []
    for _ in range(30):
        anchors.append(mg.backward(data[:4]).anchored)
        optimizer.step()
    assert sum(anchors) == 1


@pytest.mark.slow
def test_the_error_is_that_of_the_estimate() -> None:
    """The summed variances follow the squared error of the lambda-weighted estimate."""
    predicted, real = 0.0, 0.0
    for seed in range(40):
        torch.manual_seed(seed)
        model = nn.Linear(3, 1).double()
        mg = MultiGradient(
            model, lambda m, b: (m(b[0]) - b[1][:, :1]).square().mean(0), Recursive([(INPUTS, TARGETS)], "auto")
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for _ in range(12):
            draw = torch.randint(256, (8,))
            mg.backward((INPUTS[draw], TARGETS[draw]))
            optimizer.step()
            mg.estimator.schedule.cost = 10**9  # no second anchor
        exact = torch.autograd.grad((model(INPUTS) - TARGETS[:, :1]).square().mean(), list(model.parameters()))
        mg.backward((INPUTS[draw], TARGETS[draw]))
        (row,) = mg.rows()
        real += sum(float((row[n] - g).square().sum()) for n, g in zip(("weight", "bias"), exact, strict=True))
        predicted += mg.estimator.schedule.error
    assert 0.4 < predicted / real < 2.5


@pytest.mark.parametrize(("period", "share"), [("soon", 0.5), (0, 0.5), ("auto", 0.0), ("auto", 1.0), (2.5, 0.5)])
def test_options_are_checked(period: Any, share: float) -> None:
    with pytest.raises(InvalidOption, match=r"period|share"):
        Recursive([INPUTS], period, share=share)
