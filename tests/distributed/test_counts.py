"""Missing labels on several processes: the path of one process, whatever each has, and failures that all share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stimulus_moo import AdaptiveBatch, Fixed, Full, InvalidLosses, MiniBatch, MultiGradient, Recursive, Storm, fit
from tests.distributed.launch import launch, values
from tests.distributed.paths import Uneven, own_share
from tests.distributed.sharded_paths import whole
from tests.distributed.test_steps import way
from tests.harness import differing, everything
from tests.reference.counted import (
    BATCH,
    BETA,
    PERIOD,
    RATE,
    N,
    ThreeHeads,
    batches,
    columns,
    counts,
    losses,
    model,
    walk,
)

STEPS = 5  # two anchors, and in the third step no label for one objective


def anchor() -> list[tuple[Tensor, ...]]:
    """This process's part of the data, in batches of unequal size; that of the first of two has no label for one."""
    low = own_share().part(N)
    mine = [column[low] for column in columns()]
    return list(zip(*(column.split([2, len(mine[0]) - 2]) for column in mine), strict=True))


def adaptive(**options: Any) -> AdaptiveBatch:
    return AdaptiveBatch(columns(), epsilon=1e-9, micro_batch=8, **options)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "mini-batch": (MiniBatch, {"micro_batch": 2}),
    "storm": (lambda: Storm(BETA), {}),
    "full": (lambda: Full(anchor()), {"micro_batch": 3}),
    "recursive": (lambda: Recursive(anchor(), PERIOD), {}),
    "adaptive": (lambda: Recursive(adaptive(), PERIOD), {}),
    "mini-batch, 3": (MiniBatch, {"reweigh": 3, "micro_batch": 2}),
    "storm, 3": (lambda: Storm(BETA), {"reweigh": 3}),
    "storm, sketch": (lambda: Storm(BETA), {"reweigh": 3, "gramian": "sketch"}),
    "recursive, anchor": (lambda: Recursive(anchor(), PERIOD), {"reweigh": "anchor"}),
    "adaptive, fixed": (lambda: Recursive(adaptive(sigma2=1.0), PERIOD), {"weighting": Fixed([0.5, 0.2, 0.3])}),
    "pilot, fixed": (lambda: Recursive(adaptive(), PERIOD), {"weighting": Fixed([0.5, 0.2, 0.3])}),
}
LARGE = ("storm", "recursive", "storm, 3", "recursive, anchor")
SHARDED = ("mini-batch", "storm", "adaptive", "storm, sketch", "recursive, anchor", "pilot, fixed")


def follow(case: str, **options: Any) -> tuple[Tensor, Tensor, list[Any]]:
    make, own = CASES[case]
    mg = MultiGradient(model(), losses, make(), counts=counts, **own, **options)
    told = walk(mg, STEPS, own_share().part(BATCH))
    points, weights = (torch.stack([getattr(one, name) for one in told]) for name in ("point", "weights"))
    return points, weights, [[one.losses for one in told], mg.samples, mg.gradients, mg.passes]


def all_cases() -> dict[tuple[str, str], Any]:
    found = {}
    for name, cases in {"whole": tuple(CASES), "in place": LARGE, "sharded": SHARDED}.items():
        for case in cases:
            with way(name) as options:
                found[name, case] = follow(case, **options)
    return found


def test_processes_with_missing_labels_take_the_path_of_one() -> None:
    alone = {case: follow(case) for case in CASES}
    for found in values(all_cases, 2):
        for (name, case), (points, weights, (lost, *costs)) in found.items():
            expected, weighed, (lost_alone, *costs_alone) = alone[case]
            assert costs == costs_alone, (name, case)
            assert torch.allclose(points, expected, rtol=0, atol=1e-10), (name, case)
            assert torch.allclose(weights, weighed, rtol=0, atol=1e-8), (name, case)
            for ours, theirs in zip(lost, lost_alone, strict=True):
                assert ours == pytest.approx(theirs, rel=1e-10, nan_ok=True), (name, case)


class SplitHeads(ThreeHeads):
    """Three heads whose outputs are no views, as FSDP asks for."""

    def forward(self, x: Tensor) -> list[Tensor]:
        hidden = torch.tanh(self.trunk(x))
        return [head(hidden).sum(1) for head in self.heads]


def finite_losses(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
    """The means over the labelled samples; 0 where there are none."""
    x, y = batch
    found, known = model(x), y.isfinite()
    squares = [(found[s] - y[:, s].nan_to_num(0.0)).square() * known[:, s] for s in range(y.shape[1])]
    return tuple(square.sum() / max(1, int(known[:, s].sum())) for s, square in enumerate(squares))


def split_paths() -> dict[str, Any]:
    """Points, weights and losses of every case; the model is split where processes have joined."""
    found: dict[str, Any] = {}
    for case, (make, options) in CASES.items():
        torch.manual_seed(0)
        net, mine, steps = SplitHeads(), own_share().part(BATCH), []
        if dist.is_initialized():
            fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        mg = MultiGradient(net, finite_losses, make(), counts=counts, **options)
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        for x, y in batches(STEPS):
            step = mg.backward((x[mine], y[mine]))
            optimizer.step()
            steps.append((whole(net), step.weights, step.losses))
        path = [torch.stack(column) for column in zip(*steps, strict=True)]
        found[case] = path, (mg.samples, mg.gradients, mg.passes)
    return found


def split_paths_and_nan() -> tuple[dict[str, Any], str]:
    """Return the paths, and what is said where a loss without a count is not finite."""
    net = SplitHeads()
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    mg = MultiGradient(net, losses, MiniBatch(), counts=counts)
    with pytest.raises(InvalidLosses, match="where its count is 0") as caught:
        mg.backward(tuple(column[:4] for column in columns()))
    return split_paths(), str(caught.value)


def test_split_models_with_missing_labels_take_the_path_of_a_whole_one() -> None:
    alone = split_paths()
    for found, message in values(split_paths_and_nan, 2):
        assert "max(1, count)" in message
        for case, (path, costs) in found.items():
            expected, costs_alone = alone[case]
            assert costs == costs_alone, case
            for ours, theirs in zip(path, expected, strict=True):
                assert torch.allclose(ours, theirs, rtol=0, atol=1e-8, equal_nan=True), case
            assert torch.allclose(path[0], expected[0], rtol=0, atol=1e-10), case


def one_has_no_samples() -> list[Any]:
    """The first process brings a batch to one step only; the second has none at that step."""
    found = []
    for shard in (False, True):
        mg = MultiGradient(model(), losses, MiniBatch(), counts=counts, shard=shard)
        batch = batches(1)[0]
        for rank in (1, 0):
            step = mg.backward(batch if dist.get_rank() == rank else None)
            found.append((step.losses, step.weights))
    return found


def test_a_process_may_have_nothing_to_count() -> None:
    step = MultiGradient(model(), losses, MiniBatch(), counts=counts).backward(batches(1)[0])
    for found in values(one_has_no_samples, 2):
        for lost, weights in found:
            assert torch.allclose(lost, step.losses, rtol=1e-12, equal_nan=True)
            assert torch.allclose(weights, step.weights, rtol=0, atol=1e-9)


def fail(shard: bool) -> tuple[list[str], list[str], Tensor]:
    """Let ``counts`` of the second process fail at every step, then let it return zeros everywhere."""
    trouble = [""]

    def faulty(batch: Any) -> Any:
        if trouble[0] == "raises" and dist.get_rank():
            raise KeyError("no such column")
        if trouble[0] == "negative" and dist.get_rank():
            return [-1, 1, 1]
        return [0, 0, 0] if trouble[0] == "zeros" else counts(batch)

    share = own_share().part(BATCH)
    mg = MultiGradient(model(), losses, Recursive(anchor(), PERIOD), counts=faulty, reweigh="auto", shard=shard)
    said, changed = [], []
    for x, y in batches(STEPS):
        for trouble[0] in ("raises", "negative", "zeros"):
            before = everything(mg)
            try:
                mg.backward((x[share], y[share]))
            except Exception as error:
                said.append(type(error).__name__)
            changed += differing(before, everything(mg))
        trouble[0] = ""
        mg.backward((x[share], y[share]))
        torch.optim.SGD(mg.objective.parameters, lr=0.2).step()
    return said, changed, torch.cat([p.detach().flatten() for p in mg.objective.parameters])


@pytest.mark.parametrize("shard", [False, True])
def test_a_failure_to_count_is_shared(shard: bool) -> None:
    ends = []
    for rank, (said, changed, end) in enumerate(values(fail, 2, shard)):
        assert said == ["KeyError" if rank else "RankFailed", "InvalidBatch", "InvalidBatch"] * STEPS
        assert changed == []
        ends.append(end)
    assert torch.equal(*ends)


def counts_on_one_process_only() -> None:
    own = counts if dist.get_rank() else None
    x, y = columns()
    MultiGradient(model(), losses, MiniBatch(), counts=own).backward((x[8:], y[8:]))


def test_counts_are_given_to_all_processes_or_none() -> None:
    for said in launch(counts_on_one_process_only, 2):
        assert said.error == "RankMismatch"
        assert "whether counts are given" in said.message


def fitted() -> tuple[list[float], float]:
    result = fit(model(), losses, columns(), lr=0.05, steps=7, batch_size=8, period=3, anchor_batch=7, counts=counts)
    return result.losses, result.stationarity


def test_fit_evaluates_as_one_process() -> None:
    expected, stationarity = fitted()
    for lost, found in values(fitted, 2):
        assert lost == pytest.approx(expected, rel=1e-9)
        assert found == pytest.approx(stationarity, rel=1e-6)


def test_shares_are_uneven() -> None:
    assert [Uneven(rank, 2).part(BATCH) for rank in range(2)] == [slice(0, 2), slice(2, 6)]
