"""The quick-start of the design, as written: only the names it assumes are prepared."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKED = True  # what users are shown gives no warnings
QUICKSTART = """
import torch
from stimulus_moo import MultiGradient, Recursive, HeavyBall

def losses(model, batch):                    # one function of a batch: S mean losses, any model code inside
    image, left, right = batch
    a, b = model(image)
    return cross_entropy(a, left), cross_entropy(b, right)

mg = MultiGradient(model, losses, Recursive(anchor=full_loader, period=10))   # weighting=MinNorm() by default
optimizer = HeavyBall(model.parameters(), lr=0.03, momentum=0.5)              # or any torch.optim optimizer

for batch in loader:
    step = mg.backward(batch)                # in place of loss.backward(): every p.grad is its part of d_t
    optimizer.step()
    # step.losses [S], step.weights [S], step.sq_norm = ||d_t||^2, step.anchored
print(mg.samples, mg.gradients)              # samples drawn; per-sample multi-gradient evaluations (IFO calls)
"""


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 16)
        self.left = nn.Linear(16, 3)
        self.right = nn.Linear(16, 3)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.trunk(image))
        return self.left(hidden), self.right(hidden)


def test_quick_start_runs_as_written(capsys) -> None:
    torch.manual_seed(0)
    images = torch.randn(100, 6)
    data = TensorDataset(images, images[:, :3].argmax(1), images[:, 3:].argmax(1))
    names = {
        "model": TwoHeads(),
        "full_loader": DataLoader(data, batch_size=40),  # ragged: 40, 40, 20
        "loader": DataLoader(data, batch_size=5, shuffle=True),
        "cross_entropy": nn.functional.cross_entropy,
    }
    exec(QUICKSTART, names)
    # 20 steps, 2 of them anchors of 100 samples; 18 batches of 5 at two points
    assert capsys.readouterr().out.split() == ["290", "380"]
    step = names["step"]
    assert step.losses.shape == step.weights.shape == (2,)
    assert step.sq_norm.dim() == 0
    assert not step.anchored
    total = sum(p.grad.double().square().sum() for p in names["model"].parameters())
    assert torch.isclose(total, step.sq_norm, rtol=1e-5)
