"""Ray and bounds: on problems with a known front, and the errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stimulus_moo import Bounded, InvalidOption, Ray, Result, StateMismatch, fit
from stimulus_moo.lab.synthetic.fronts import FRONTS

START = 0.3


def train(name: str, **options: Any) -> tuple[Result, torch.Tensor]:
    front = FRONTS[name]
    like = front.start(torch.Generator().manual_seed(1))
    problem = front.problem(64, noise=0.3, seed=0, start=torch.full_like(like, START))
    result = fit(problem.model, problem.losses, problem.data, steps=300, progress=False, anchor_batch=64, **options)
    return result, front.objectives(problem.model().detach())


def gap(name: str, losses: torch.Tensor) -> float:
    return float((FRONTS[name].front(4001) - losses).norm(dim=1).min())


@pytest.mark.parametrize(("name", "preference"), [("fonseca-fleming", (1.0, 3.0)), ("quarter-circle", (4.0, 1.0))])
def test_a_preference_ends_at_the_point_on_its_ray(name: str, preference: tuple[float, float]) -> None:
    result, losses = train(name, preference=preference)
    first, second = (r * float(f) for r, f in zip(preference, losses, strict=True))
    assert first == pytest.approx(second, rel=0.01)
    assert gap(name, losses) < 1e-3
    assert result.method == "stimulus-adam"


def test_active_bounds_are_met_and_the_other_loss_is_least() -> None:
    result, losses = train("fonseca-fleming", bounds={0: 0.3})
    assert float(losses[0]) == pytest.approx(0.3, rel=1e-3)
    assert gap("fonseca-fleming", losses) < 1e-3
    assert result.missed == {}


def test_an_inactive_bound_changes_nothing_and_an_impossible_one_says_by_how_much() -> None:
    inside, losses = train("fonseca-fleming", bounds={0: 2.0})
    assert float(losses[1]) < 1e-3
    assert inside.bounds == {0: 2.0}
    result, losses = train("fonseca-fleming", bounds={0: -0.1})
    assert result.missed[0] == pytest.approx(0.1 + float(losses[0]), abs=1e-3)
    assert float(losses[0]) < 1e-3  # as low as it gets


class Number(torch.nn.Module):
    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.full((1,), start, dtype=torch.float64))


def test_a_share_is_measured_from_the_best_of_the_objective_alone() -> None:
    def losses(model: torch.nn.Module, batch: Any) -> Any:
        point = next(model.parameters())
        return (point - 1).square().sum() + 2.0 + 0 * batch.mean(), (point + 1).square().sum() + 0 * batch.mean()

    result = fit(Number(), losses, torch.zeros(9, 1), bounds={0: "5%"}, steps=400, progress=False)
    assert result.bounds[0] == pytest.approx(2.1, rel=1e-4)
    assert result.losses[0] == pytest.approx(2.1, rel=1e-3)
    assert result.losses[1] == pytest.approx((2 - 0.1**0.5) ** 2, rel=1e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preference": [1.0, 0.0]}, r"preference\[1\] must be a finite number above 0, found 0.0"),
        ({"preference": [1.0, 1.0, 1.0]}, r"preference must hold one number per objective \(2\), found 3"),
        ({"bounds": {}}, "bounds must map at least one objective"),
        ({"bounds": {0: "much"}}, r"bounds\[0\] must be a number, or a share such as '5%', found 'much'"),
        ({"bounds": {0: 1.0, 1: 1.0}}, "bounds must name fewer than all 2 objectives"),
        ({"bounds": {5: "5%"}}, "bounds must name objectives below 2, found 5"),
        ({"bounds": {0: 1.0}, "preference": [1.0, 1.0]}, "at most one of preference, bounds and weighting"),
    ],
)
def test_targets_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        train("two-bowls", **options)


def test_the_largest_preferred_loss_always_falls() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(100):
        rows = torch.randn(3, 5, generator=draw, dtype=torch.float64)
        losses = torch.rand(3, generator=draw, dtype=torch.float64)
        r = (torch.rand(3, generator=draw, dtype=torch.float64) + 0.1).tolist()
        weights = Ray(r)(rows @ rows.T, losses)
        largest = int((torch.tensor(r) * losses).argmax())
        assert float(rows[largest] @ (weights @ rows)) > -1e-3


def test_only_objectives_with_rows_get_weights() -> None:
    gramian, losses = torch.eye(3, dtype=torch.float64), torch.tensor([0.5, 0.5, float("nan")])
    assert Ray([1.0, 2.0, 3.0]).among(gramian, [0, 1], losses)[2] == 0.0
    assert Bounded({0: 1.0}).among(gramian, [0, 1], losses).tolist()[1:] == [1.0, 0.0]
    assert Bounded({0: 1.0}).among(gramian, [0], losses).tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(InvalidOption, match="reference must hold one number per objective"):
        Ray([1.0, 2.0], reference=[0.0])


def labelled(model: torch.nn.Module, batch: Any) -> Any:
    """Two losses of one number, of which the first has few labels."""
    x, here = batch
    point = next(model.parameters())
    return torch.stack([(point - 1 + x).square()[here > 0].mean() + 2.0, (point + 1 + x).square().mean()])


def counted(batch: Any) -> Tensor:
    return torch.stack([batch[1].sum(), torch.tensor(float(len(batch[1])))])


def test_a_share_is_found_with_missing_labels_and_skipped_steps() -> None:
    x, here = torch.zeros(64, dtype=torch.float64), torch.zeros(64)
    here[::32] = 1.0  # most batches have no label of the first loss
    options: Any = {"steps": 300, "progress": False, "seed": 1}
    result = fit(Number(), labelled, (x, here), bounds={0: "5%"}, counts=counted, **options)
    assert result.bounds[0] == pytest.approx(2.1, rel=1e-3)
    calls = 0

    def faulty(model: torch.nn.Module, batch: Any) -> Any:
        nonlocal calls
        calls += torch.is_grad_enabled()
        return labelled(model, batch) * (torch.nan if calls == 40 else 1.0)  # in the run on the first loss alone

    skipping = fit(Number(), faulty, (x, here), bounds={0: "5%"}, counts=counted, on_nonfinite="skip", **options)
    assert skipping.bounds[0] == pytest.approx(2.1, rel=1e-2)
    whole = torch.full_like(x, torch.nan)
    with pytest.raises(InvalidOption, match=r"bounds\[0\] must be a number where the losses cannot be evaluated"):
        fit(Number(), labelled, (whole, here + 1), bounds={0: "5%"}, on_nonfinite="skip", steps=2, progress=False)


def test_a_run_with_a_share_is_resumed_with_the_number_that_it_found(tmp_path: Any) -> None:
    torch.manual_seed(0)
    data = torch.randn(64, 1, dtype=torch.float64), torch.ones(64)

    def run(steps: int, folder: Any, bound: str, resume: bool = False, start: float = 0.0) -> Any:
        model = Number(start)
        options: Any = {"steps": steps, "checkpoint": folder, "resume": resume, "progress": False, "lr": 0.05}
        return fit(model, labelled, data, bounds={0: bound}, **options)

    first = run(20, tmp_path / "a", "5%")
    model = first.model
    again = fit(model, labelled, data, bounds={0: "5%"}, steps=40, checkpoint=tmp_path / "a", resume=True,
                progress=False, lr=0.05)  # fmt: skip
    assert (again.steps, again.bounds) == (40, first.bounds)  # from a model that was trained meanwhile
    assert run(60, tmp_path / "a", "5%", resume=True, start=0.3).bounds == first.bounds
    with pytest.raises(StateMismatch, match="bounds"):
        run(80, tmp_path / "a", "10%", resume=True)
    assert run(20, tmp_path / "b", "5%", resume=True).bounds == first.bounds  # nothing to resume yet
