"""Mixed precision: autocast changes what the losses compute and nothing else; a loss scale must stay what it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import MiniBatch, MultiGradient, NonFiniteError, Recursive, StimulusWarning
from stimulus_moo._engine import compiled
from tests.harness import cut, data, stored_rows, two_heads, two_losses, vector

COLUMNS = data(24, dtype=torch.float32)


def model() -> nn.Module:
    return two_heads(dtype=torch.float32)


def autocast_losses(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        left, right = model(batch[0])
    return (left.float() - batch[1][:, 0]).square().mean(), (right.float() - batch[1][:, 1]).square().mean()


def path(losses: Any, scaler: torch.amp.GradScaler | None = None, around: bool = False, steps: int = 9) -> Tensor:
    trained = model()
    mg = MultiGradient(trained, losses, Recursive(cut(COLUMNS, 12), period=5))
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
    points = []
    for batch in (cut(COLUMNS, 8) * steps)[:steps]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
            mg.backward(batch)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)  # divides p.grad by the scale
            scaler.update()
        points.append(vector(trained))
    assert stored_rows(mg).dtype == torch.float64
    return torch.stack(points)


def test_autocast_inside_the_losses_and_around_the_step() -> None:
    """bfloat16 has 8 bits: the paths stay near, and rows and weights are as precise as without."""
    plain, inside, around = path(two_losses), path(autocast_losses), path(two_losses, around=True)
    assert 0 < (plain - inside).abs().max() < 0.02
    assert 0 < (plain - around).abs().max() < 0.02
    mg = MultiGradient(model(), autocast_losses, Recursive([COLUMNS], period=5))
    mg.backward()
    assert {part.dtype for row in mg.rows() for part in row.values()} == {torch.float32}


def test_differences_replay_in_low_precision() -> None:
    """At a point that has not moved the two evaluations are equal bit for bit, so the rows stay."""
    mg = MultiGradient(model(), autocast_losses, Recursive([COLUMNS], period=100))
    mg.backward()
    before = stored_rows(mg)
    for batch in cut(COLUMNS, 8):
        mg.backward(batch)
    assert (stored_rows(mg) - before).abs().max() < 1e-7


def scaled(scaler: torch.amp.GradScaler) -> Any:
    return lambda model, batch: tuple(scaler.scale(loss) for loss in two_losses(model, batch))


def test_a_scaler_that_is_switched_off_changes_nothing() -> None:
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert torch.equal(path(scaled(off), off), path(two_losses))


def test_a_constant_scale_cancels_out() -> None:
    """The weights do not depend on a common scale, and ``scaler.step`` takes it out of the direction."""
    constant = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1 << 30)
    assert torch.allclose(path(scaled(constant), constant), path(two_losses), rtol=0, atol=1e-5)


def test_a_scale_that_changes_needs_a_new_start() -> None:
    """Rows of another scale would be mixed; ``reset`` takes the next step as an anchor at the new scale."""
    trained = model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1 << 30)
    mg = MultiGradient(trained, scaled(scaler), Recursive([COLUMNS], period=100))
    mg.backward()
    at_once = MultiGradient(model(), two_losses, Recursive([COLUMNS], period=100))
    at_once.backward()
    scaler.update(new_scale=64.0)
    mixed = mg.backward(cut(COLUMNS, 8)[0])
    assert not torch.allclose(stored_rows(mg) / 64.0, stored_rows(at_once), rtol=0.1)
    mg.reset()
    step = mg.backward()
    assert not mixed.anchored
    assert step.anchored
    assert torch.allclose(stored_rows(mg) / 64.0, stored_rows(at_once), rtol=1e-5, atol=1e-6)


def test_an_overflow_is_an_error_and_not_a_skipped_step() -> None:
    trained = model()
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38, growth_interval=1 << 30)
    mg = MultiGradient(trained, scaled(scaler), Recursive([COLUMNS], period=5))
    with pytest.raises(NonFiniteError):
        mg.backward()
    scaler.update(new_scale=1024.0)
    assert mg.backward().anchored  # nothing had happened


def half_losses(model: nn.Module, batch: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(batch)
    return found.float().square().mean(0)


def three_heads() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))


@pytest.mark.slow
def test_compiled_rows_agree_as_well_as_bfloat16_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    monkeypatch.setattr(compiled, "_agree", lambda expected, found, tolerance: asked.append(tolerance) or True)
    caplog.set_level("INFO", logger="stimulus_moo")
    mg = MultiGradient(three_heads(), half_losses, MiniBatch(), engine="compiled")
    for _ in range(2):
        mg.backward(torch.randn(24, 16, generator=torch.Generator().manual_seed(0)))
    assert mg.engine == "compiled"
    assert set(asked) == {compiled.AGREEMENT[torch.bfloat16]} == {5e-2}
    said = [record.getMessage() for record in caplog.records if record.name == "stimulus_moo"]
    assert [message.split(" the losses")[0] for message in said] == ["compiling", "compiled"]
    torch._dynamo.reset()


@pytest.mark.parametrize(("micro_batch", "reason"), [(8, "micro_batch=8"), (None, "autocast is on around backward")])
def test_the_engine_that_cannot_compile_says_so_and_why(micro_batch: int | None, reason: str) -> None:
    mg = MultiGradient(three_heads(), losses_of_outputs, MiniBatch(), engine="compiled", micro_batch=micro_batch)
    with (
        pytest.warns(StimulusWarning, match=reason),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=not micro_batch),
    ):
        mg.backward(torch.randn(24, 16, generator=torch.Generator().manual_seed(0)))
    assert mg.engine == "rowwise"


def losses_of_outputs(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).float().square().mean(0)


def test_auto_computes_single_rows_for_attention_in_bfloat16() -> None:
    def build(half: bool) -> str:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def losses(model: nn.Module, batch: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                found = model(batch)
            return found.float().square().mean((0, 1))[:3]

        mg = MultiGradient(layer, losses, MiniBatch())
        mg.backward(torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0)))
        return mg.engine

    assert (build(half=False), build(half=True)) == ("batched", "rowwise")
