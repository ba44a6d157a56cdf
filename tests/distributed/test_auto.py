"""Whatever is found automatically, several processes find as one does: the period, the weights, the rate, a front."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stimulus_moo import Filtered, MultiGradient, fit
from stimulus_moo.fronts import pareto_front
from tests.database import replaced
from tests.distributed.launch import values
from tests.distributed.paths import COLUMNS, batches, own_share
from tests.distributed.test_kept import SOON
from tests.harness import differing, everything, two_heads, two_losses, vector

RUNS: dict[str, dict[str, Any]] = {
    "hands-free": {},
    "sketch": {"gramian": "sketch"},
    "period": {"method": "stimulus-m", "lr": "auto", "period": "auto"},
    "period of an adaptive anchor": {"method": "stimulus+", "lr": 0.05, "period": "auto", "reweigh": "auto"},
    "filter": {"method": "filtered-m", "lr": "auto", "reweigh": "auto"},
    "filter, sharded": {"method": "filtered", "lr": 0.05, "shard": True},
    "preference": {"preference": [1.0, 3.0]},
    "bound": {"bounds": {1: 0.9}, "method": "stimulus-m", "lr": 0.05},
    "bound above the best": {"bounds": {0: "20%"}},
}


def train_all() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, options in RUNS.items():
        model, own = two_heads(), options if dist.is_initialized() else {**options, "shard": False}
        with replaced(SOON):
            result = fit(model, two_losses, COLUMNS, batch_size=7, steps=24, epsilon=0.05, **own)
        counts = [result.samples, result.gradients, result.taken_back, result.shortened]
        found[name] = vector(model), counts
    front = pareto_front(two_heads(), two_losses, COLUMNS, points=3, steps=12)
    return {**found, "front": (torch.as_tensor(front.losses), [])}


def test_two_processes_find_what_one_finds() -> None:
    alone = train_all()
    for found in values(train_all, 2):
        for name, (end, counts) in alone.items():
            there, counted = found[name]
            assert counted == counts, name
            assert torch.allclose(there, end, rtol=0, atol=1e-9), name


class Failing(Filtered):
    """A filter whose rule fails once, on the second process."""

    fails = False

    def update(self, t: int) -> Any:
        if self.fails and dist.get_rank() == 1:
            raise ArithmeticError("no update")
        return super().update(t)


def fail_in_turn() -> list[Any]:
    """One process fails in its rule, in its batch, and in its losses; all others are told, and can go on."""
    spoilt = [False]

    def losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        if spoilt[0] and dist.get_rank() == 1:
            raise ArithmeticError("no losses")
        return two_losses(model, batch)

    said = []
    for shard in (False, True):
        estimator = Failing()
        mg = MultiGradient(two_heads(), losses, estimator, shard=shard)
        optimizer = torch.optim.SGD(mg.objective.parameters, lr=0.05)
        for k, batch in enumerate(batches(6, own_share())):
            spoilt[0], estimator.fails = k == 2, k == 3
            given: Any = 5 if k == 4 and dist.get_rank() == 1 else batch
            before = everything(mg)
            try:
                mg.backward(given)
                optimizer.step()
            except Exception as error:
                said.append((type(error).__name__, differing(before, everything(mg))))
        said.append(("end", mg.t))
    return said


def test_a_failure_while_halves_are_compared_is_shared() -> None:
    others = ["RankFailed", "RankFailed", "InvalidBatch"]
    own = ["ArithmeticError", "ArithmeticError", "InvalidBatch"]
    for found, errors in zip(values(fail_in_turn, 2), (others, own), strict=True):
        assert found == 2 * [*((error, []) for error in errors), ("end", 3)]
