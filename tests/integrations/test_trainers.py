"""Trainers: a run that is resumed from their checkpoint is the run without a break; what cannot work is refused.

``tests/distributed/test_trainers.py`` runs these on two processes, and the examples on one and two.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stimulus_moo import InvalidOption, MissingDependency, Recursive

CHECKED = True
EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, not ours


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def data() -> TensorDataset:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x[:, :3].argmax(1), x[:, 2:5].argmax(1))


def lightning_run(folder: Path, epochs: int, start: str | None = None, **options: Any) -> Any:
    lightning = pytest.importorskip("lightning")
    torch.manual_seed(0)
    module = example("lightning_module")["TwoTasks"](data())
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, **options,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(), batch_size=8), ckpt_path=start)
    trainer.save_checkpoint(folder / f"{epochs}.ckpt")
    return module, trainer


Ended = tuple[Tensor, int, int]  # parameters, steps and gradients at the end of a run


def ended(model: nn.Module, mg: Any) -> Ended:
    return vector(model), mg.t, mg.gradients


def same(straight: Ended, resumed: Ended) -> bool:
    return torch.equal(straight[0], resumed[0]) and straight[1:] == resumed[1:]


def lightning_resumed(folder: Path, **options: Any) -> tuple[Ended, Ended]:
    """A run without a break, and one that continues from a checkpoint."""
    straight, trainer = lightning_run(folder, 3, **options)
    assert {"loss/left", "weight/right", "sq_norm"} <= set(trainer.callback_metrics)
    lightning_run(folder, 1, **options)
    resumed, _ = lightning_run(folder, 3, str(folder / "1.ckpt"), **options)
    return ended(straight, straight.multigradient), ended(resumed, resumed.multigradient)


def test_lightning_resumes_and_logs_by_name(tmp_path: Path) -> None:
    assert same(*lightning_resumed(tmp_path))


def test_lightning_steps_schedulers_and_clips(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from stimulus_moo.integrations.lightning import MultiGradientModule

    norms: list[float] = []

    class Module(MultiGradientModule):
        clip_norm = 1e-3

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 2)

        def training_losses(self, batch: Any) -> Tensor:
            return (self.net(batch[0]) - 5.0).square().mean(0)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            step = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": step, "interval": "step"}}

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            norms.append(float(torch.cat([p.grad.flatten() for p in self.parameters()]).norm()))

    module = Module()
    options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_steps=3, enable_model_summary=False, **options)
    trainer.fit(module, DataLoader(data(), batch_size=8))
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.125
    assert norms == pytest.approx([1e-3] * 3, rel=1e-3)


def test_a_lightning_module_is_saved_before_it_is_trained(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    trained, trainer = lightning_run(tmp_path, 1)
    options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(**options, enable_model_summary=False)
    module = example("lightning_module")["TwoTasks"](data())
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "new.ckpt")
    assert torch.load(tmp_path / "new.ckpt", weights_only=False)["multigradient"] is None
    module.on_load_checkpoint(state := torch.load(tmp_path / "1.ckpt", weights_only=False))
    trainer.save_checkpoint(tmp_path / "again.ckpt")
    again = torch.load(tmp_path / "again.ckpt", weights_only=False)["multigradient"]
    assert again["gradients"] == state["multigradient"]["gradients"] == trained.multigradient.gradients > 0


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_missing_library_is_told(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"stimulus_moo.integrations.{library}", raising=False)
    with pytest.raises(MissingDependency, match=rf"needs .*: pip install '?{library}"):
        importlib.import_module(f"stimulus_moo.integrations.{library}")


def test_lightning_refuses_accumulation(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    with pytest.raises(Exception, match=r"accumulate_grad_batches"):
        lightning_run(tmp_path, 1, accumulate_grad_batches=2)


def accelerate_run(steps: int, start: Path | None = None, save: Path | None = None) -> Ended:
    accelerate = pytest.importorskip("accelerate")
    from stimulus_moo.integrations.accelerate import prepare_multigradient

    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Linear(8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, anchor = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=32))
    losses = example("accelerate_loop")["losses"]
    mg = prepare_multigradient(accelerator, model, losses, Recursive(anchor, period=5))
    if start is not None:
        accelerator.load_state(str(start))
    size = 8 // accelerator.num_processes  # each takes its part of every batch
    for _ in range(steps):
        first = 8 * (mg.t % 8) + size * accelerator.process_index
        mg.backward(data()[first : first + size])
        optimizer.step()
    if save is not None:
        accelerator.save_state(str(save))
    return ended(model, mg)


def accelerate_resumed(folder: Path) -> tuple[Ended, Ended]:
    straight = accelerate_run(12)
    accelerate_run(7, save=folder / "state")
    return straight, accelerate_run(5, start=folder / "state")


def test_accelerate_resumes(tmp_path: Path) -> None:
    assert same(*accelerate_resumed(tmp_path))


def test_accelerate_refuses_accumulation() -> None:
    accelerate = pytest.importorskip("accelerate")
    from stimulus_moo.integrations.accelerate import prepare_multigradient

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    with pytest.raises(InvalidOption, match=r"gradient_accumulation_steps must be 1, found 4; use a larger batch"):
        prepare_multigradient(accelerator, nn.Linear(2, 2), lambda m, x: m(x).mean(0), Recursive([data()], 3))


def test_accelerate_logs_by_name() -> None:
    from stimulus_moo import MiniBatch, MultiGradient
    from stimulus_moo.integrations.accelerate import log_step

    class Tracker:
        def log(self, values: dict[str, float], step: int) -> None:
            self.values, self.step = values, step

    tracker, mg = Tracker(), MultiGradient(nn.Linear(2, 2), lambda m, x: {"a": m(x).mean()}, MiniBatch())
    log_step(tracker, mg.backward(torch.ones(2, 2)), mg.t)
    assert list(tracker.values) == ["loss/a", "weight/a", "sq_norm"]
    assert tracker.step == 1


def hugging_face_resumed(folder: Path) -> tuple[Ended, Ended]:
    pytest.importorskip("transformers")
    build = example("huggingface_trainer")["build"]
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 10, "max_steps": 20}
    straight = build(str(folder / "a"), **options)
    straight.train()
    assert {"loss/left", "weight/right", "sq_norm"} <= set(straight.state.log_history[0])
    resumed = build(str(folder / "b"), **options)
    resumed.train(resume_from_checkpoint=str(folder / "a" / "checkpoint-10"))
    return ended(straight.model, straight.multigradient), ended(resumed.model, resumed.multigradient)


def test_the_hugging_face_trainer_resumes_and_logs_by_name(tmp_path: Path) -> None:
    assert same(*hugging_face_resumed(tmp_path))


def test_a_trainer_that_has_trained_resumes_too(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    build = example("huggingface_trainer")["build"]
    trainer = build(str(tmp_path), save_strategy="steps", save_steps=10, max_steps=20)
    trainer.train()
    straight = ended(trainer.model, trainer.multigradient)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert same(straight, ended(trainer.model, trainer.multigradient))


def test_the_hugging_face_trainer_refuses_accumulation(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    build = example("huggingface_trainer")["build"]
    with pytest.raises(InvalidOption, match="gradient_accumulation_steps must be 1, found 2; use a larger per_device"):
        build(str(tmp_path / "c"), gradient_accumulation_steps=2)
