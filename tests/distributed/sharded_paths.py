"""The path of a model that FSDP2 has split, for the tests of several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from stimulus_moo import (
    Adaptive,
    AdaptiveBatch,
    DoG,
    Filtered,
    Fixed,
    HeavyBall,
    MiniBatch,
    MultiGradient,
    Page,
    Recursive,
    Safeguard,
    Storm,
    Tracking,
)
from tests.database import replaced
from tests.distributed.paths import COLUMNS, batches, own_share
from tests.harness import TwoHeads, cut, two_losses

#: "auto" becomes recursive soon
SOON = {f"stimulus_moo.estimators.adaptive.{name}": value for name, value in (("LOOK", 4), ("STALLED", 10.0))}


class Heads(TwoHeads):
    """Two heads whose outputs are no views, as FSDP asks for."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.middle(torch.tanh(self.trunk(x)))
        return self.left(hidden).sum(1), self.right(hidden).sum(1)


def model_of(mesh: tuple[int, ...] = (), *, nested: bool = True) -> Heads:
    """Two heads on a trunk; split where processes have joined, with shards of unequal size, some of them empty."""
    torch.manual_seed(0)
    model = Heads()
    if dist.is_initialized():
        where = init_device_mesh(
            "cpu", mesh or (dist.get_world_size(),), mesh_dim_names=("copies", "shards")[-max(1, len(mesh)) :]
        )
        if nested:
            fully_shard(model.trunk, mesh=where)
        fully_shard(model, mesh=where)
    return model


def whole(model: nn.Module) -> Tensor:
    """The parameters as one vector; a collective where they are split."""
    values = (p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters())
    return torch.cat([value.detach().flatten() for value in values])


def anchor() -> list[Any]:
    """This process's part of the data, in batches of which one process has none."""
    mine = own_share().part(len(COLUMNS[0]))
    part = tuple(column[mine] for column in COLUMNS)
    return cut(part, 7) if len(part[0]) else []  # type: ignore[arg-type]


#: estimators, each with a choice of ``reweigh`` under which weights are kept
ESTIMATORS: dict[str, tuple[Callable[[], Any], Any]] = {
    "mini-batch": (MiniBatch, 3),
    "recursive": (lambda: Recursive(anchor(), 8), "anchor"),
    "adaptive anchor": (lambda: Recursive(AdaptiveBatch(COLUMNS, epsilon=0.05, micro_batch=6), 8), "anchor"),
    "storm": (lambda: Storm(0.3), 3),
    "tracking": (lambda: Tracking(0.3), 3),
    "adaptive": (lambda: Adaptive(anchor()), "auto"),
    "page": (lambda: Page(anchor(), 0.2), "anchor"),
    "auto period": (lambda: Recursive(anchor(), "auto"), "auto"),
    "filtered": (Filtered, 3),
}
STEPPERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "heavy ball": lambda parameters: HeavyBall(parameters, lr=0.03, momentum=0.5),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
}


def build(
    case: str, *, mesh: tuple[int, ...] = (), nested: bool = True
) -> tuple[MultiGradient, torch.optim.Optimizer, Any]:
    """Build from "estimator, optimizer, options": model, optimizer, and what sets the learning rate."""
    estimator, stepper, *words = case.split(", ")
    make, reweigh = ESTIMATORS[estimator]
    model = model_of(mesh, nested=nested)
    optimizer = STEPPERS[stepper](model.parameters())
    options: dict[str, Any] = {"metric": optimizer} if stepper == "adamw" else {}
    options |= {"reweigh": reweigh} if "kept" in words else {}
    options |= {"gramian": "sketch"} if "sketch" in words else {}
    options |= {"micro_batch": 3} if "pieces" in words else {}
    options |= {"shared": model.trunk.parameters()} if "shared" in words else {}
    options |= {"weighting": Fixed([0.3, 0.7])} if "fixed" in words else {}
    mg = MultiGradient(model, two_losses, make(), **options)
    if "guard" in words:
        Safeguard(optimizer, mg)
    return mg, optimizer, DoG(optimizer, mg) if "dog" in words else None


def follow(case: str, steps: int, *, mesh: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, list[Any]]:
    """Every tenth point and the last one, the weights of each step, and what it cost."""
    mg, optimizer, schedule = build(case, mesh=mesh, nested=steps < 20)  # in one piece it takes half the time
    points, weights, costs = [], [], []
    with replaced(SOON):
        for batch in batches(steps, own_share()):
            step = mg.backward(batch)
            if schedule is not None:
                schedule.step()
            optimizer.step()
            if mg.t % 10 == 0 or mg.t == steps:
                points.append(whole(mg.objective.model))
            weights.append(step.weights)
            costs.append((step.anchored, step.reweighed, mg.samples, mg.gradients, mg.passes))
    return torch.stack(points), torch.stack(weights), costs
