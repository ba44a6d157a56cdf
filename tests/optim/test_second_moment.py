"""Adam's memory of squared gradients, by what the estimator does."""

import pytest
import torch
from torch import nn

from stimulus_moo import Adaptive, InvalidOption, MiniBatch, MultiGradient, Recursive, SecondMoment, fit


def made(estimator: object, beta2: float = 0.97) -> tuple[MultiGradient, torch.optim.Adam]:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), estimator)  # type: ignore[arg-type]
    return mg, torch.optim.Adam(model.parameters(), betas=(0.8, beta2))


def test_beta2_follows_the_estimator_and_beta1_stays() -> None:
    x = torch.ones(4, 2)
    mg, adam = made(Adaptive([x]))
    memory = SecondMoment(adam, mg)
    found = []
    for recursive in (False, True, False):
        mg.backward(x)
        mg.estimator.recursive = recursive
        adam.step()
        found.append(adam.param_groups[0]["betas"])
    assert found == [(0.8, 0.97), (0.8, 0.995), (0.8, 0.97)]
    memory.detach()
    mg.estimator.recursive = True
    adam.step()
    assert adam.param_groups[0]["betas"] == (0.8, 0.97)


@pytest.mark.parametrize("estimator", [MiniBatch(), Recursive([torch.ones(4, 2)], 3)])
def test_other_estimators_leave_beta2_as_it_is(estimator: object) -> None:
    mg, adam = made(estimator)
    SecondMoment(adam, mg)
    mg.backward(torch.ones(4, 2))
    adam.step()
    assert adam.param_groups[0]["betas"] == (0.8, 0.97)


def test_a_longer_memory_of_the_user_stays() -> None:
    x = torch.ones(4, 2)
    mg, adam = made(Adaptive([x]), beta2=0.999)
    SecondMoment(adam, mg)
    mg.backward(x)
    mg.estimator.recursive = True
    adam.step()
    assert adam.param_groups[0]["betas"] == (0.8, 0.999)


def test_an_optimizer_without_beta2_is_refused() -> None:
    mg, _ = made(MiniBatch())
    with pytest.raises(InvalidOption, match="optimizer must be Adam or AdamW, found SGD"):
        SecondMoment(torch.optim.SGD(mg.objective.parameters, lr=0.1), mg)


def test_auto_uses_it_unless_the_user_brings_an_optimizer() -> None:
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    seen: list[tuple[float, float]] = []

    def keep(progress: object) -> None:
        seen.append(progress.optimizer.param_groups[0]["betas"])  # type: ignore[attr-defined]

    def train(**options: object) -> tuple[float, float]:
        model = nn.Linear(2, 2)
        fit(model, lambda m, x: m(x).square().mean(0), x, steps=3, callbacks=[keep], **options)  # type: ignore[arg-type]
        return seen[-1]

    assert train() == (0.9, 0.99)
    assert train(method="stimulus-adam") == (0.9, 0.95)
    assert train(optimizer=lambda parameters: torch.optim.Adam(parameters)) == (0.9, 0.999)
