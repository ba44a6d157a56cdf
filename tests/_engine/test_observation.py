"""What a step sees on its way equals what the definitions say, whichever way the rows are made."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import Filtered, MultiGradient, Page, Recursive, Safeguard, StimulusWarning, Storm
from stimulus_moo._engine import store
from stimulus_moo.estimators import Estimator

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(80.0).double()
Y = (Y.reshape(40, 2) % 7) / 7


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def losses(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean(0)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def jacobian(point: Tensor, rows: slice) -> Tensor:
    model = network()
    nn.utils.vector_to_parameters(point, model.parameters())
    found = losses(model, (X[rows], Y[rows]))
    parameters = list(model.parameters())
    return torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(f, parameters, retain_graph=True)]) for f in found]
    )


def followed(estimator: Estimator, steps: int, engine: str = "rowwise") -> tuple[MultiGradient, list[Any]]:
    """Make some watched steps; return what each saw beside the points and batches that decide it."""
    model = network()
    mg = MultiGradient(model, losses, estimator, engine=engine)
    mg.watch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for k in range(steps):
        rows = slice(8 * k % 40, 8 * k % 40 + 8)
        point, weights = flat(model), mg.weights
        before = seen[-1][1] if seen else None
        mg.backward((X[rows], Y[rows]))
        seen.append((mg.observation, point, before, weights, rows))
        optimizer.step()
    return mg, seen


@pytest.mark.parametrize("engine", ["rowwise", "batched"])
@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("rule", ["recursive", "page", "storm", "filtered"])
def test_observations_are_what_the_definitions_say(
    rule: str, staged: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "STAGED_ENTRIES", 1 << 16 if staged else 0)
    anchor = [(X, Y)]
    estimators: dict[str, Any] = {
        "recursive": lambda: Recursive(anchor, 4),
        "page": lambda: Page(anchor, 0.2),
        "storm": lambda: Storm(0.3),
        "filtered": lambda: Filtered(probe=1),
    }
    _, seen = followed(estimators[rule](), 7, engine)
    compared = 0
    for observation, now, before, weights, rows in seen[1:]:
        assert observation.moved == pytest.approx(float((now - before).norm()), rel=1e-12)
        if observation.anchored:
            assert observation.smoothness is None
            assert observation.decrease is None
            continue
        compared += 1
        change = weights @ (jacobian(now, rows) - jacobian(before, rows))
        assert observation.change == pytest.approx(float(change.norm()), rel=1e-9)
        assert observation.smoothness == pytest.approx(float(change.norm() / (now - before).norm()), rel=1e-9)
        assert observation.gradients == 16
        halves = slice(rows.start, rows.start + 4), slice(rows.start + 4, rows.stop)
        here, there = ([weights @ jacobian(point, half) for half in halves] for point in (now, before))
        if rule == "filtered":
            noise = float((here[0] - here[1]).square().sum()) / 4
            drift = float((here[0] - here[1] - there[0] + there[1]).square().sum()) / 4
            assert observation.variance == pytest.approx(noise, rel=1e-9)
            assert observation.change_variance == pytest.approx(drift, rel=1e-9)
        else:
            assert observation.variance is None
    assert compared >= 3


def test_the_decrease_is_that_of_the_same_batch() -> None:
    _, seen = followed(Recursive([(X, Y)], 10), 3)
    observation, now, before, weights, rows = seen[-1]
    values = []
    for point in (before, now):
        model = network()
        nn.utils.vector_to_parameters(point, model.parameters())
        values.append(losses(model, (X[rows], Y[rows])).detach())
    assert observation.decrease == pytest.approx(float(weights @ (values[0] - values[1])), rel=1e-9)


@pytest.mark.slow
def test_the_halves_of_a_batch_measure_its_variance() -> None:
    """On average over batches, ``variance`` is that of a batch's mean gradient."""
    generator = torch.Generator().manual_seed(5)
    model = nn.Linear(1, 1, bias=False).double()
    mg = MultiGradient(model, lambda m, b: (m.weight[0] * b).mean().reshape(1), Filtered())
    mg.watch()
    found = []
    for _ in range(1500):
        mg.reset()
        mg.backward(3.0 * torch.randn(8, generator=generator, dtype=torch.float64))
        found.append(mg.observation.variance)
    assert sum(found) / len(found) == pytest.approx(9 / 8, rel=0.15)


def test_watching_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for entries in (1 << 16, 0):
        monkeypatch.setattr(store, "STAGED_ENTRIES", entries)
        ends = []
        for watch in (False, True):
            model = network()
            mg = MultiGradient(model, losses, Recursive([(X, Y)], 5))
            if watch:
                mg.watch()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for k in range(20):
                mg.backward((X[2 * k : 2 * k + 2], Y[2 * k : 2 * k + 2]))
                optimizer.step()
            ends.append((flat(model), mg.samples, mg.gradients))
        assert torch.equal(ends[0][0], ends[1][0])
        assert ends[0][1:] == ends[1][1:]


def test_a_far_too_long_step_is_warned_of_once_unless_a_guard_is_at_work() -> None:
    def blow_up(watch: bool, guarded: bool = False) -> list[str]:
        model = nn.Linear(3, 2).double()
        mg = MultiGradient(model, losses, Recursive([(X, Y)], 10))
        if watch:
            mg.watch()
        optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
        if guarded:
            Safeguard(optimizer, mg)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for k in range(6):
                mg.backward((X[4 * k : 4 * k + 4], Y[4 * k : 4 * k + 4]))
                optimizer.step()
        return [str(w.message) for w in caught if issubclass(w.category, StimulusWarning)]

    for watch in (False, True):
        (message,) = blow_up(watch)
        assert "times 1/L" in message
        assert "guard=True in fit" in message
    assert blow_up(watch=False, guarded=True) == []


def test_what_was_seen_last_is_part_of_the_state() -> None:
    mg, _ = followed(Recursive([(X, Y)], 10), 3)
    state = mg.state_dict()
    other = MultiGradient(network(), losses, Recursive([(X, Y)], 10))
    other.load_state_dict(state)
    assert torch.equal(other.weights, mg.weights)
    assert other.norm == mg.norm
    assert math.isfinite(other.norm)
