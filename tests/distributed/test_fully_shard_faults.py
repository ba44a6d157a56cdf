"""Models that FSDP2 has split: failures that all processes share, states, measures, and what is refused."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from stimulus_moo import InvalidOption, MiniBatch, MultiGradient, Recursive, Storm, fit, measure
from stimulus_moo.fronts import navigate, pareto_front
from tests.distributed.launch import values
from tests.distributed.paths import COLUMNS, batches, own_share
from tests.distributed.sharded_paths import Heads, anchor, build, model_of, whole
from tests.harness import two_losses


class Spoilt:
    """Losses of which the second process spoils one evaluation and all later ones, after the forward pass."""

    def __init__(self) -> None:
        self.how, self.left = "", 0

    def arm(self, how: str, evaluation: int) -> None:
        self.how, self.left = how, evaluation

    def __call__(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        left, right = two_losses(model, batch)
        self.left -= 1
        if self.left > 0 or not self.how or dist.get_rank() != 1:
            return left, right
        if self.how == "raises":
            raise ArithmeticError("no more data")
        if self.how == "another number":
            return left, right, left
        return left, right * torch.nan if self.how == "nan loss" else right + (right - right.detach()).abs().sqrt()


def state_of(mg: MultiGradient) -> list[Any]:
    """All that a failed step must leave alone, of this process."""
    parts = [p.detach()._local_tensor.clone() for p in mg.objective.model.parameters()]  # type: ignore[attr-defined]
    grads = [None if p.grad is None else p.grad._local_tensor.clone() for p in mg.objective.model.parameters()]  # type: ignore[attr-defined]
    rows = [tensor._local_tensor for row in mg.rows() for tensor in row.values()]  # type: ignore[attr-defined]
    return [*parts, *grads, *rows, torch.get_rng_state(), torch.tensor([mg.t, mg.samples, mg.gradients, mg.passes])]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a is b or (isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


FAULTS = {
    "raises": ("RankFailed", "ArithmeticError"),
    "nan loss": ("NonFiniteError", "NonFiniteError"),
    "nan gradient": ("NonFiniteError", "NonFiniteError"),
    "another number": ("InvalidLosses", "InvalidLosses"),
}


def fail() -> list[Any]:
    """Let the evaluations of a step fail in turn, after a step that was made and before one that is."""
    said = []
    for reweigh in (1, 3):
        losses = Spoilt()
        mg = MultiGradient(model_of(), losses, Storm(0.3), reweigh=reweigh)
        optimizer = torch.optim.SGD(mg.objective.model_parameters, lr=0.05)
        first, second, third = batches(3, own_share())
        for batch in (first, second):
            mg.backward(batch)
            optimizer.step()
        for how in FAULTS:
            for evaluation in (1, 2):
                losses.arm(how, evaluation)
                before = state_of(mg)
                try:
                    mg.backward(third)
                except Exception as error:
                    said.append((how, type(error).__name__, str(error), same(before, state_of(mg))))
        losses.how = ""
        mg.backward(third)
        optimizer.step()
        said.append(whole(mg.objective.model))
    return said


def undisturbed() -> list[Tensor]:
    found = []
    for reweigh in (1, 3):
        mg = MultiGradient(model_of(), two_losses, Storm(0.3), reweigh=reweigh)
        optimizer = torch.optim.SGD(mg.objective.model_parameters, lr=0.05)
        for batch in batches(3, own_share()):
            mg.backward(batch)
            optimizer.step()
        found.append(whole(mg.objective.model))
    return found


def test_what_one_process_meets_all_raise_and_nothing_has_changed() -> None:
    expected = undisturbed()
    for rank, said in enumerate(values(fail, 2)):
        ends = [one for one in said if isinstance(one, Tensor)]
        assert all(torch.allclose(end, one, rtol=0, atol=1e-12) for end, one in zip(ends, expected, strict=True))
        told = [one for one in said if not isinstance(one, Tensor)]
        assert len(told) == 2 * 2 * len(FAULTS)
        for how, error, message, unchanged in told:
            assert error == FAULTS[how][rank], (how, message)
            assert unchanged, (how, message)
            if how.startswith("nan"):
                assert "objective 1" in message


def resume() -> list[Any]:
    """Go on from a state in a new object, from shards and from whole tensors; then measure."""
    found = []
    taken = batches(12, own_share())
    for case in ("recursive, heavy ball", "storm, sgd, kept"):
        mg, optimizer, _ = build(case)
        for batch in taken[:6]:
            mg.backward(batch)
            optimizer.step()
        state, point, moved = mg.state_dict(), mg.objective.model.state_dict(), copy.deepcopy(optimizer.state_dict())
        assert all(isinstance(tensor, DTensor) for row in state["rows"] for tensor in row.values())
        gathered = io.BytesIO()
        torch.save(_whole(state), gathered)
        gathered.seek(0)
        for saved in (state, torch.load(gathered, weights_only=True)):
            again, other, _ = build(case)
            again.objective.model.load_state_dict(point)
            other.load_state_dict(copy.deepcopy(moved))
            again.load_state_dict(saved)
            for batch in taken[6:]:
                again.backward(batch)
                other.step()
            found.append(whole(again.objective.model))
        for batch in taken[6:]:
            mg.backward(batch)
            optimizer.step()
        found.append(whole(mg.objective.model))
    measured = measure(mg.objective.model, two_losses, anchor())
    return [*found, torch.tensor([*measured.losses, *measured.weights, measured.stationarity, measured.samples])]


def _whole(state: Any) -> Any:
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, dict):
        return {name: _whole(value) for name, value in state.items()}
    return [_whole(value) for value in state] if isinstance(state, list) else state


def resumed_alone() -> list[Tensor]:
    found = []
    for case in ("recursive, heavy ball", "storm, sgd, kept"):
        mg, optimizer, _ = build(case)
        for batch in batches(12, own_share()):
            mg.backward(batch)
            optimizer.step()
        found += [whole(mg.objective.model)] * 3
    measured = measure(mg.objective.model, two_losses, [COLUMNS])
    return [*found, torch.tensor([*measured.losses, *measured.weights, measured.stationarity, measured.samples])]


def test_states_of_split_models_are_resumed_and_measures_are_those_of_a_whole_one() -> None:
    expected = resumed_alone()
    for found in values(resume, 2):
        for there, end in zip(found, expected, strict=True):
            assert torch.allclose(there, end, rtol=0, atol=1e-10)


def refuse() -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    partly = Heads()
    fully_shard(partly.trunk, mesh=mesh)
    parallel = nn.Linear(4, 2)
    parallel.weight = nn.Parameter(distribute_tensor(parallel.weight.detach(), mesh, [Shard(1)]))
    factor = model_of()
    factor.set_gradient_divide_factor(2.0)  # type: ignore[operator]
    messages = []
    tries: list[tuple[nn.Module, dict[str, Any]]] = [
        (partly, {}),
        (parallel, {}),
        (FullyShardedDataParallel(nn.Linear(4, 2), device_id=torch.device("cpu")), {}),
        (factor, {}),
        (model_of(), {"rows_dtype": torch.bfloat16}),
    ]
    for model, options in tries:
        try:
            MultiGradient(model, two_losses, MiniBatch(), **options)
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    mg = MultiGradient(model_of(), two_losses, Recursive(anchor(), 4))
    with pytest.raises(InvalidOption, match="cannot be copied"):
        fit(model_of(), two_losses, COLUMNS, steps=2, batch_size=8, bounds={0: "5%"}, progress=False)
    for function in (pareto_front, navigate):
        with pytest.raises(InvalidOption, match=f"{function.__name__} trains copies of the model"):
            function(model_of(), two_losses, COLUMNS, steps=2)
    with pytest.raises(Exception, match="no rank has brought") as caught:
        MultiGradient(model_of(), two_losses, MiniBatch()).backward(None)
    return [*messages, str(caught.value), str(mg.memory_estimate(objectives=2).rows)]


def test_what_is_not_supported_is_refused_by_name() -> None:
    for partly, parallel, old, factor, dtype, empty, rows in values(refuse, 2):
        assert all(one.startswith("InvalidOption") for one in (partly, parallel, old, factor, dtype))
        assert "'left.weight' that is whole" in partly
        assert "tensor parallelism" in parallel
        assert "FSDP1" in old
        assert "set_gradient_divide_factor" in factor
        assert "rows_dtype" in dtype
        assert "no rank has brought a sample" in empty
        assert int(rows) <= 2 * 8 * 27  # two rows of half of 37 entries, in float64, with uneven shards
