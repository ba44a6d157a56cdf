"""The known fronts of ZDT2, ZDT3 and DTLZ2."""

import pytest
import torch

from stimulus_moo.lab.synthetic.zdt import TRACED


@pytest.mark.parametrize("name", TRACED)
def test_points_of_the_pareto_set_are_on_the_front_and_random_ones_are_not(name: str) -> None:
    problem = TRACED[name]
    front = problem.front(50)
    assert float(problem.distances(front).max()) < 2e-3
    generator = torch.Generator().manual_seed(0)
    others = torch.stack([problem.objectives(problem.start(generator)) for _ in range(20)])
    assert float(problem.distances(others).median()) > 0.02


@pytest.mark.parametrize("name", TRACED)
def test_no_random_point_dominates_a_point_of_the_front(name: str) -> None:
    problem, generator = TRACED[name], torch.Generator().manual_seed(1)
    front = problem.front(40)
    for _ in range(500):
        x = 1.6 * torch.rand(len(problem.start(generator)), generator=generator, dtype=torch.float64) - 0.3
        x[2:] *= 0.05
        value = problem.objectives(x)
        assert not bool(((value < front - 1e-3).all(1)).any())


def test_the_pieces_of_zdt3_are_apart() -> None:
    first = TRACED["zdt3"].front(400)[:, 0].sort().values.diff()
    assert int((first > 0.05).sum()) == 4


def test_noise_has_mean_zero_for_three_losses() -> None:
    problem = TRACED["dtlz2-3"]
    made = problem.problem(32, noise=0.3, seed=0, start=problem.start(torch.Generator().manual_seed(0)))
    assert made.tasks == ("f1", "f2", "f3")
    found = made.losses(made.model, made.data).detach()
    assert torch.allclose(found, problem.objectives(made.model().detach()), atol=1e-12)
