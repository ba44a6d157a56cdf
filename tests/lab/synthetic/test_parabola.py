import pytest
import torch

from stimulus_moo import InvalidOption, measure
from stimulus_moo.lab.synthetic.parabola import NOISES, distance, objectives, parabola


@pytest.mark.parametrize("noise", NOISES)
def test_gradients_of_all_samples_are_those_of_the_objectives(noise):
    problem = parabola(50, seed=0, start=-2.0, noise=noise)
    losses = problem.losses(problem.model, problem.data)
    slopes = [torch.autograd.grad(loss, problem.model.x, retain_graph=True)[0].item() for loss in losses]
    assert slopes == pytest.approx([-4.0, -torch.tensor(2.0, dtype=torch.float64).exp().item()])
    assert losses.tolist() == pytest.approx(list(objectives(-2.0)))


@pytest.mark.parametrize(("noise", "deviation"), [("truncated-normal", 0.5396), ("uniform", 0.5774), ("none", 0.0)])
def test_noise_lies_in_the_range_with_the_known_deviation(noise, deviation):
    xi = parabola(20000, seed=0, start=0.0, noise=noise).data
    assert xi.abs().max() < 1.02  # centring may move the edge of (-1, 1) by a standard error
    assert xi.std().item() == pytest.approx(deviation, abs=0.01)
    assert xi.mean(0).abs().max() < 1e-12


def test_the_pareto_set_is_the_right_half_line():
    assert [distance(x) for x in (-2.0, 0.0, 3.0)] == [2.0, 0.0, 0.0]
    for x in (0.0, 0.5, 2.0):
        problem = parabola(10, seed=0, start=x)
        assert measure(problem.model, problem.losses, [problem.data]).stationarity < 1e-20


def test_unknown_noise_is_named():
    with pytest.raises(InvalidOption, match="found 'pink'"):
        parabola(10, seed=0, start=0.0, noise="pink")
