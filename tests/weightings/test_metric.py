"""The metric: what optimizers divide by, the Gramian in it, and common descent of the step that is taken."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import InvalidOption, MiniBatch, MultiGradient, Recursive, Storm
from stimulus_moo.weightings.metric import Metric
from tests.database import ENGINES

OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1}),
    (torch.optim.NAdam, {}),
    (torch.optim.RMSprop, {}),
    (torch.optim.RMSprop, {"centered": True}),
    (torch.optim.Adagrad, {}),
]
NAMES = [f"{kind.__name__}{''.join(options)}" for kind, options in OPTIMIZERS]


def problem(seed: int = 0) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    scale = torch.tensor([1.0, 30.0, 0.1], dtype=torch.float64)
    return model, (torch.randn(24, 5, dtype=torch.float64), scale * torch.randn(24, 3, dtype=torch.float64))


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean(0)


def rows_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    parameters = list(model.parameters())
    return torch.stack(
        [
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters, retain_graph=True)])
            for loss in losses(model, batch)
        ]
    )


def denominator(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor:
    """What the optimizer divides by, found from a step: with one parameter and no momentum the move is lr * g / D."""
    state, group = optimizer.state[parameter], optimizer.param_groups[0]
    if "exp_avg_sq" in state:
        moment = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
        return torch.sqrt(moment / (1 - group["betas"][1] ** float(state["step"]))) + group["eps"]
    if "square_avg" in state:
        mean = state["grad_avg"] if group["centered"] else 0.0
        return torch.sqrt(state["square_avg"] - mean**2) + group["eps"]
    return torch.sqrt(state["sum"]) + group["eps"]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=NAMES)
def test_min_norm_in_the_metric_is_a_common_descent_direction_of_the_step(kind: Any, options: dict[str, Any]) -> None:
    model, batch = problem()
    optimizer = kind(model.parameters(), lr=1e-2, **options)
    mg = MultiGradient(model, losses, MiniBatch(), metric=optimizer)
    parameters = list(model.parameters())
    for t in range(12):
        rows = rows_of(model, batch)
        scale = torch.cat(
            [(denominator(optimizer, p) if t else torch.ones_like(p)).detach().reshape(-1) for p in parameters]
        )
        mg.backward(batch)
        d = torch.cat([p.grad.reshape(-1) for p in parameters])  # type: ignore[union-attr]
        decrease, length = rows @ (d / scale), d @ (d / scale)
        assert bool((decrease >= length * (1 - 1e-9)).all())  # the min-norm property, to rounding
        optimizer.step()


def test_the_euclidean_weights_may_increase_an_objective_in_adams_step() -> None:
    """Otherwise the test above would hold without a metric."""
    model, batch = problem()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    mg, worst = MultiGradient(model, losses, MiniBatch()), 0.0
    for t in range(12):
        rows = rows_of(model, batch)
        mg.backward(batch)
        if t:
            parameters = list(model.parameters())
            scale = torch.cat([denominator(optimizer, p).reshape(-1) for p in parameters])
            d = torch.cat([p.grad.reshape(-1) for p in parameters])  # type: ignore[union-attr]
            worst = min(worst, float((rows @ (d / scale)).min() / (d @ (d / scale))))
        optimizer.step()
    assert worst < 0.5


@pytest.mark.parametrize("options", [{}, {"gramian": "sketch"}, {"engine": "batched"}, {"engine": "rowwise"}])
def test_the_gramian_is_that_of_the_metric(options: dict[str, Any]) -> None:
    model, batch = problem()
    seen: list[Tensor] = []

    def weighting(gramian: Tensor) -> Tensor:
        seen.append(gramian)
        return torch.full((3,), 1 / 3, dtype=torch.float64)

    scalings = [torch.rand_like(p) + 0.1 for p in model.parameters()]
    mg = MultiGradient(model, losses, MiniBatch(), weighting, metric=lambda parameters: scalings, **options)
    step = mg.backward(batch)
    rows = rows_of(model, batch)
    flat = torch.cat([scaling.reshape(-1) for scaling in scalings])
    torch.testing.assert_close(seen[0], (rows / flat) @ rows.T, rtol=1e-6 if options else 1e-9, atol=1e-9)
    assert float(step.sq_norm) == pytest.approx(float(rows.mean(0).square().sum()), rel=1e-6)  # Euclidean


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"reweigh": 3}, {"reweigh": 3, "gramian": "sketch"}])
def test_compiled_steps_are_weighed_in_the_metric(options: dict[str, Any]) -> None:
    """A compiled function returns Euclidean products, which are of no use then."""

    def path(engine: str, *, metric: bool = True) -> tuple[Tensor, list[bool]]:
        model, batch = problem()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        chosen = optimizer if metric else None
        mg = MultiGradient(model, losses, Storm(0.3), metric=chosen, engine=engine, **options)
        points, solved = [], []
        for _ in range(7):
            solved.append(mg.backward(batch).reweighed)
            optimizer.step()
            points.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        assert mg.engine == engine
        return torch.stack(points), solved

    expected, solved = path("rowwise")
    with ENGINES["compiled"].used() as engine:
        found, also = path(engine)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert also == solved
    assert (expected - path("rowwise", metric=False)[0]).abs().max() > 1e-4


def test_shared_parameters_alone_decide_in_the_metric_too() -> None:
    model, batch = problem()
    seen: list[Tensor] = []

    def weighting(gramian: Tensor) -> Tensor:
        seen.append(gramian)
        return torch.full((3,), 1 / 3, dtype=torch.float64)

    trunk = list(model[0].parameters())  # type: ignore[index]
    mg = MultiGradient(
        model, losses, MiniBatch(), weighting, shared=trunk, metric=lambda ps: [torch.full_like(p, 4.0) for p in ps]
    )
    mg.backward(batch)
    rows = rows_of(model, batch)[:, : sum(p.numel() for p in trunk)]
    torch.testing.assert_close(seen[0], rows @ rows.T / 4.0, rtol=1e-9, atol=0)


def test_kept_weights_and_anchors_are_solved_in_the_metric() -> None:
    model, batch = problem()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    mg = MultiGradient(model, losses, Recursive([batch], 4), metric=optimizer, reweigh="anchor")
    solved = 0
    for _ in range(9):
        rows, parameters = rows_of(model, batch), list(model.parameters())
        state = [denominator(optimizer, p).reshape(-1) if optimizer.state[p] else None for p in parameters]
        step = mg.backward(batch)
        if step.reweighed and state[0] is not None:
            scale = torch.cat([one for one in state if one is not None])
            d = torch.cat([p.grad.reshape(-1) for p in parameters])  # type: ignore[union-attr]
            assert bool((rows @ (d / scale) >= (d @ (d / scale)) * (1 - 1e-9)).all())
            solved += 1
        optimizer.step()
    assert solved == 2


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (3, "metric must be None, an Adam-type optimizer or a function from parameters to positive scalings, found 3"),
        ("adam", "found 'adam'"),
    ],
)
def test_other_values_are_refused(metric: Any, message: str) -> None:
    model, _ = problem()
    with pytest.raises(InvalidOption, match=message):
        MultiGradient(model, losses, MiniBatch(), metric=metric)


def test_optimizers_without_a_denominator_are_refused_by_name() -> None:
    model, _ = problem()
    with pytest.raises(InvalidOption, match="found SGD; SGD and HeavyBall need none"):
        Metric(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("scalings", "message"),
    [
        (lambda ps: [torch.ones_like(p) for p in ps][:-1], "must return 4 scalings, one per parameter, found 3"),
        (lambda ps: [1.0] * len(ps), r"a tensor of shape \[6, 5\] for parameter 0, found 1.0"),
        (lambda ps: [torch.zeros_like(p) for p in ps], "finite positive scalings, found others for parameter 0"),
        (lambda ps: [torch.full_like(p, math.nan) for p in ps], "finite positive scalings"),
    ],
)
def test_wrong_scalings_lose_nothing(scalings: Any, message: str) -> None:
    model, batch = problem()
    mg = MultiGradient(model, losses, MiniBatch(), metric=scalings)
    with pytest.raises(InvalidOption, match=message):
        mg.backward(batch)
    assert (mg.t, mg.passes, next(model.parameters()).grad) == (0, 0, None)


def test_an_entry_that_never_had_a_gradient_counts_as_it_is() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], lr=0.1, eps=0.0)
    parameter.grad = torch.tensor([2.0, 0.0])
    optimizer.step()
    (root,) = Metric(optimizer).roots([parameter])
    assert root is not None
    torch.testing.assert_close(root, torch.tensor([2.0**-0.5, 1.0]))


@pytest.mark.parametrize(
    ("make", "squares"),
    [
        (lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, weight_decay=0.1), "rmsprop"),
        (lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.5), "adam"),
        (lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.5, maximize=True), "adam"),
        (lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.5), "adam"),
        (lambda p: torch.optim.Adagrad(p, lr=1e-3, weight_decay=0.5), "adagrad"),
    ],
)
def test_d_after_a_step_is_what_the_optimizer_then_divides_by(make, squares) -> None:
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = make([x])
    metric = Metric(optimizer)
    for t in range(4):
        x.grad = torch.randn(5, dtype=torch.float64) + 1.0
        (expected,) = metric.after([x])
        optimizer.step()
        state, eps = optimizer.state[x], optimizer.param_groups[0]["eps"]
        if squares == "rmsprop":
            moment = state["square_avg"] - state["grad_avg"].square()
        else:
            moment = state["sum"] if squares == "adagrad" else state["exp_avg_sq"] / (1 - 0.999 ** (t + 1))
        torch.testing.assert_close(expected, moment.sqrt() + eps, rtol=1e-12, atol=1e-12)
