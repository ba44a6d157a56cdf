"""Steps that several processes make together: what each may bring, and what happens when one of them cannot go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stimulus_moo import (
    AdaptiveBatch,
    Full,
    InvalidOption,
    MiniBatch,
    MultiGradient,
    Recursive,
    Storm,
    measure,
)
from stimulus_moo._engine import compiled, store
from stimulus_moo.distributed import reducer, row_message
from tests.distributed.launch import Said, launch, values
from tests.distributed.paths import COLUMNS, PERIOD, Path, batches, build, follow, own_share
from tests.harness import cut, data, differing, everything, stored_rows, train, two_heads, two_losses, vector

WAYS = ("whole", "in place", "in parts", "sharded")


@contextmanager
def way(name: str) -> Iterator[dict[str, bool]]:
    """Make a small model be treated as a large one would be; yields the options of MultiGradient."""
    with (
        mock.patch.multiple(store, STAGED_ENTRIES=1 << 16 if name in ("whole", "sharded") else 0),
        mock.patch.multiple(reducer, BUCKET=16 if name == "in parts" else 1 << 22),
        mock.patch.multiple(row_message, SMALLEST=1 if name == "in parts" else 1 << 18),
    ):
        yield {"shard": name == "sharded"}


def follow_in(name: str, method: str, steps: int) -> Path:
    with way(name) as options:
        return follow(method, steps, **options)


def follow_all_ways(steps: int) -> dict[tuple[str, str], Path]:
    return {(name, method): follow_in(name, method, steps) for name in WAYS for method in ("stimulus-m+", "moco+")}


def test_large_models_take_the_same_path() -> None:
    ranks, steps = 2, PERIOD + 3  # two anchors, and inner steps after each
    for found in values(follow_all_ways, ranks, steps):
        for (_, method), path in found.items():
            alone = follow(method, steps)
            assert path.counts == alone.counts
            assert torch.allclose(path.points, alone.points, rtol=0, atol=1e-12)


# What a process may bring


def nobody_brings_anything() -> None:
    mg = MultiGradient(two_heads(), two_losses, MiniBatch())
    mg.backward(None if dist.get_rank() else tuple(column[:0] for column in COLUMNS))


def test_a_step_without_any_sample_is_refused_everywhere() -> None:
    for said in launch(nobody_brings_anything, 2):
        assert said.error == "InvalidBatch"
        assert "no rank has brought a sample to step 0" in said.message


def one_brings_everything(name: str) -> Tensor:
    with way(name) as options:
        mine = dist.get_rank() == 1
        anchor = cut(COLUMNS, 7) if mine else []
        mg = MultiGradient(two_heads(), two_losses, Recursive(anchor, period=4), **options)
        return train(mg, [batch if mine else None for batch in cut(COLUMNS, 8)])


def one_brings_everything_all_ways() -> list[Tensor]:
    return [one_brings_everything(name) for name in WAYS]


def test_processes_without_samples_take_part() -> None:
    alone = train(MultiGradient(two_heads(), two_losses, Recursive(cut(COLUMNS, 7), period=4)), cut(COLUMNS, 8))
    for paths in values(one_brings_everything_all_ways, 2):
        assert all(torch.allclose(path, alone, rtol=0, atol=1e-12) for path in paths)


def skips_without_a_sample(method: str) -> list[Any]:
    """Rank 1 has nothing to evaluate when the first step of rank 0 meets NaN; both then go on."""
    mine = dist.get_rank() == 0
    anchor: list[Any] = [tuple(column * torch.nan for column in COLUMNS)] if mine else []
    model = two_heads()
    estimator = MiniBatch() if method == "batch" else Recursive(anchor, period=4)
    mg = MultiGradient(model, two_losses, estimator, on_nonfinite="skip")
    step = mg.backward(tuple(column[:4] * torch.nan for column in COLUMNS) if mine else None)
    untouched = all(p.grad is None for p in model.parameters())
    found = [step.skipped, len(step.losses), len(step.weights), float(step.losses.isnan().sum()), mg.skipped, untouched]
    anchor[:] = [COLUMNS] if mine else []
    after = mg.backward(tuple(column[:4] for column in COLUMNS) if mine else None)
    return [*found, after.skipped, after.losses.tolist()]


@pytest.mark.parametrize("method", ["batch", "anchor"])
def test_all_processes_skip_alike_where_one_has_nothing_to_evaluate(method: str) -> None:
    first, second = values(skips_without_a_sample, 2, method)
    assert first[:-1] == [True, 2, 2, 2.0, 1, True, False]
    assert first == second


class Branches(nn.Module):
    """A model of which a batch reaches one branch or the other, by the sign of its first number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 3, dtype=torch.float64)
        self.branches = nn.ModuleList([nn.Linear(3, 2, dtype=torch.float64) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return self.branches[int(x[0, 0] > 0)](torch.tanh(self.trunk(x)))


def branch_losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean(0)


def branching(name: str) -> tuple[Tensor, list[bool]]:
    """From the third step on the second process goes another way than the first."""
    model = Branches()
    x = COLUMNS[0][:6].abs()
    with way(name) as options:
        mg = MultiGradient(model, branch_losses, Storm(beta=0.5), **options)
        signs = [1, 1, -1] if dist.is_initialized() and dist.get_rank() else [1, 1, 1]
        path = train(mg, [sign * x for sign in signs])
    return path, [p.grad is None for p in model.parameters()]


def branching_all_ways() -> list[tuple[Tensor, list[bool]]]:
    return [branching(name) for name in WAYS]


def test_what_any_process_reaches_all_have_room_for() -> None:
    model = Branches()  # the same by one process: both parts of the batch in pieces of their own
    mg = MultiGradient(model, branch_losses, Storm(beta=0.5), micro_batch=6)
    x = COLUMNS[0][:6].abs()
    alone = train(mg, [torch.cat([x, x]), torch.cat([x, x]), torch.cat([x, -x])])
    for (first, missing), (second, missing_too) in zip(*values(branching_all_ways, 2), strict=True):
        assert torch.equal(first, second)
        assert missing == missing_too == [False] * 6
        assert torch.allclose(first, alone, rtol=0, atol=1e-12)


def adaptive_draws(sigma2: float | str) -> tuple[int, list[int], float | None]:
    """The samples of an anchor, those this process evaluated, and sigma^2 after it."""
    seen: list[int] = []

    def losses(model: nn.Module, batch: Any) -> Any:
        index, *rest = batch
        seen.extend(index.tolist())
        return two_losses(model, rest)

    columns = (torch.arange(len(COLUMNS[0])), *COLUMNS)
    anchor = AdaptiveBatch(columns, epsilon=0.5, sigma2=sigma2, micro_batch=6, seed=3)
    mg = MultiGradient(two_heads(), losses, Full(anchor))
    mg.backward()
    return mg.samples, seen, anchor.variance


@pytest.mark.parametrize("sigma2", ["auto", 15.0])
def test_an_adaptive_draw_is_divided(sigma2: float | str) -> None:
    samples, drawn, variance = adaptive_draws(sigma2)
    found = values(adaptive_draws, 2, sigma2)
    assert [total for total, _, _ in found] == [samples] * 2
    assert sorted(found[0][1] + found[1][1]) == sorted(drawn)
    assert all(0 < len(seen) < len(drawn) for _, seen, _ in found)
    assert [sigma for _, _, sigma in found] == [pytest.approx(variance, rel=1e-12)] * 2


def dropped_out() -> tuple[float, Tensor]:
    """With a step size of zero the two points are one, so a replayed draw leaves the rows as they are."""
    model = two_heads(nn.Dropout(0.5))
    torch.manual_seed(100 + dist.get_rank())
    mg = MultiGradient(model, two_losses, Recursive(cut(COLUMNS, 20), period=100))
    mg.backward()
    before = stored_rows(mg)
    for batch in cut(COLUMNS, 8):
        mg.backward(batch)
    return (stored_rows(mg) - before).abs().max().item(), torch.rand(3)


def test_dropout_is_replayed_in_every_stream() -> None:
    (first, draw), (second, other) = values(dropped_out, 2)
    assert first == second < 1e-14
    assert not torch.equal(draw, other)


def random_rule() -> list[float]:
    torch.manual_seed(dist.get_rank())
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), lambda gramian: torch.rand(2, dtype=torch.float64))
    return mg.backward(COLUMNS).weights.tolist()


def test_a_random_weighting_is_the_same_everywhere() -> None:
    first, second = values(random_rule, 2)
    assert first == second


def wrapped(engine: str) -> Tensor:
    model = two_heads(nn.Tanh())
    losses = two_losses
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    mg = MultiGradient(model, losses, Recursive(cut(half(COLUMNS), 7), period=3), engine=engine)
    assert all(not name.startswith("module.") for name in mg.rows() or [""])
    with mock.patch.multiple(store, STAGED_ENTRIES=0):  # where gradients are streamed, unless somebody listens
        return train(mg, map(half, cut(COLUMNS, 8)))


def half(columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """This process's half; all of it for a process on its own."""
    if not dist.is_initialized():
        return columns
    middle = len(columns[0]) // 2
    return tuple(column[middle:] if dist.get_rank() else column[:middle] for column in columns)


def test_a_wrapper_for_data_parallel_training_does_no_harm() -> None:
    alone = wrapped("rowwise")
    for path in values(wrapped, 2, "rowwise"):
        assert torch.allclose(path, alone, rtol=0, atol=1e-12)


def engines() -> dict[str, Tensor]:
    with mock.patch.multiple(compiled, BACKEND="eager"):
        return {
            engine: train(
                MultiGradient(two_heads(), two_losses, Recursive(cut(half(COLUMNS), 7), period=4), engine=engine),
                map(half, cut(COLUMNS, 8)),
            )
            for engine in ("rowwise", "batched", "compiled")
        }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_engine_takes_the_same_path() -> None:
    alone = train(MultiGradient(two_heads(), two_losses, Recursive(cut(COLUMNS, 7), period=4)), cut(COLUMNS, 8))
    for found in values(engines, 2):
        for path in found.values():
            assert torch.allclose(path, alone, rtol=0, atol=1e-10)


def in_pairs() -> tuple[Tensor, int]:
    """Two groups of two, each with its own data."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair, place = divmod(dist.get_rank(), 2)
    mine = tuple(column[pair * 20 + place * 10 :][:10] for column in COLUMNS)
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), process_group=pairs[pair])
    return train(mg, [mine] * 3)[-1], mg.samples


def test_groups_step_on_their_own() -> None:
    found = values(in_pairs, 4)
    for pair in range(2):
        mine = tuple(column[pair * 20 :][:20] for column in COLUMNS)
        alone = train(MultiGradient(two_heads(), two_losses, MiniBatch()), [mine] * 3)[-1]
        for path, samples in found[2 * pair :][:2]:
            assert samples == 60
            assert torch.allclose(path, alone, rtol=0, atol=1e-12)


def memory() -> tuple[int, int, int, int]:
    whole = MultiGradient(two_heads(), two_losses, Storm(0.1)).memory_estimate(COLUMNS)
    mg = MultiGradient(two_heads(), two_losses, Storm(0.1), shard=True)
    split = mg.memory_estimate(COLUMNS)
    mg.backward(COLUMNS)
    kept = mg.store.rows
    assert kept is not None
    held = sum(block.matrix.numel() * block.matrix.element_size() for block in kept.blocks)
    return whole.rows, split.rows, held, mg.memory_estimate().rows


def test_a_shard_is_a_part_of_the_rows() -> None:
    for whole, split, held, again in values(memory, 4):
        assert split == again == -(-whole // 4)
        assert split <= held <= split + (2 + 1 + 1) * 8  # every row of the three blocks is filled up to four parts


# State


def save(steps: int, shard: bool) -> dict[str, Any]:
    mg, optimizer = build("stimulus-m+", shard=shard)
    for batch in batches(steps, own_share()):
        mg.backward(batch)
        optimizer.step()
    return {"mg": mg.state_dict(), "model": mg.objective.model.state_dict(), "optimizer": optimizer.state_dict()}


def load(state: dict[str, Any], done: int, steps: int, shard: bool) -> Tensor:
    mg, optimizer = build("stimulus-m+", shard=shard)
    mg.objective.model.load_state_dict(state["model"])
    optimizer.load_state_dict(deepcopy(state["optimizer"]))  # it works on what it is given
    mg.load_state_dict(state["mg"])
    for batch in batches(steps, own_share())[done:]:
        mg.backward(batch)
        optimizer.step()
    return vector(mg.objective.model)


def load_both(state: dict[str, Any], done: int, steps: int) -> list[Tensor]:
    return [load(state, done, steps, shard) for shard in (False, True)]


def save_and_load(state: dict[str, Any], done: int, steps: int) -> tuple[dict[str, Any], Tensor]:
    return save(done, True), load(state, done, steps, True)


def test_a_state_goes_on_with_any_number_of_processes() -> None:
    done, steps = PERIOD + 4, 2 * PERIOD + 3  # between two anchors, and beyond the second
    expected = follow("stimulus-m+", steps).points[-1]
    (first, end), (second, other) = values(save_and_load, 2, save(done, False), done, steps)  # one process to two
    assert all(torch.allclose(point, expected, rtol=0, atol=1e-12) for point in (end, other))
    assert not differing(first["mg"], second["mg"])  # whole rows, the same everywhere
    assert torch.allclose(load(first, done, steps, False), expected, rtol=0, atol=1e-12)  # two to one
    for ends in values(load_both, 4, first, done, steps):  # two to four
        assert all(torch.allclose(point, expected, rtol=0, atol=1e-12) for point in ends)


# Failures


class Broken(Exception):
    """An error of the user's own."""


def failing_losses(kind: str, at: int) -> Callable[..., Any]:
    """Fail in the last process at the k-th evaluation."""
    calls = 0

    def losses(model: nn.Module, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        left, right = two_losses(model, batch)
        if calls == at and dist.get_rank() == dist.get_world_size() - 1:
            if kind == "raises":
                raise Broken("no more data")
            if kind == "nan loss":
                right = right * torch.nan
            if kind == "nan gradient":
                right = right + (0 * right).sqrt()
        return left, right

    return losses


def fail(name: str, kind: str, at: int) -> list[str]:
    """Step until it fails; return what changed, and check that training can go on."""
    with way(name) as options:
        mine = half(COLUMNS)
        mg = MultiGradient(two_heads(), failing_losses(kind, at), Recursive(cut(mine, 10), period=4), **options)
        optimizer = torch.optim.SGD(mg.objective.parameters, lr=0.05)
        for batch in cut(mine, 4):
            before = everything(mg)
            try:
                mg.backward(batch)
            except Exception as error:
                changed = differing(before, everything(mg))
                if name in ("in place", "in parts") and changed == ["state"]:  # the rows were dropped
                    assert differing(before["state"], mg.state_dict()) == ["rows"]
                    assert mg.rows() == []
                    changed = []
                mg.backward(batch)
                return [type(error).__name__, str(error), *changed]
            optimizer.step()
    raise AssertionError("nothing failed")


def fail_all_ways(kind: str, places: tuple[int, ...]) -> list[list[str]]:
    return [fail(name, kind, at) for name in WAYS for at in places]


@pytest.mark.parametrize(("kind", "places"), [("raises", (2, 3, 4)), ("nan loss", (4,)), ("nan gradient", (3,))])
def test_what_one_raises_all_raise_and_nothing_has_changed(kind: str, places: tuple[int, ...]) -> None:
    """At the second evaluation (in the anchor), the third (at x_{t-1}) and the fourth (at x_t)."""
    for first, last in zip(*values(fail_all_ways, 2, kind, places), strict=True):
        if kind == "raises":
            assert last == ["Broken", "no more data"]
            assert first[0] == "RankFailed"
            assert "rank 1 raised Broken at step" in first[1]
            assert "no more data" in first[1]
        else:
            assert [first[0], last[0]] == ["NonFiniteError"] * 2
            assert all("objective 1" in said[1] for said in (first, last))
        assert first[2:] == last[2:] == []


def skip_above_the_threshold(bad: tuple[int, ...]) -> tuple[Tensor, int, int, int]:
    """Train with rows that are updated in place; the last samples of some batches are NaN."""
    with way("in place"):
        share = own_share()
        anchor = cut(tuple(column[share.part(len(column))] for column in COLUMNS), 10)
        mg = MultiGradient(two_heads(), two_losses, Recursive(anchor, period=20), on_nonfinite="skip")
        optimizer = torch.optim.SGD(mg.objective.parameters, lr=0.05)
        for t in range(12):
            x, y = (column[t : t + 8].clone() for column in COLUMNS)
            if t in bad:
                x[-1] = torch.nan
            mg.backward((x[share.part(8)], y[share.part(8)]))
            optimizer.step()
        return vector(mg.objective.model), mg.samples, mg.gradients, mg.skipped


def test_rows_that_a_skipped_step_drops_are_dropped_by_all() -> None:
    """NaN in the last process's part: there it is met before anything is written, elsewhere after."""
    alone = skip_above_the_threshold((3, 8))
    assert alone[3] == 2
    for found in values(skip_above_the_threshold, 2, (3, 8)):
        assert found[1:] == alone[1:]
        assert torch.allclose(found[0], alone[0], rtol=0, atol=1e-12)


def fail_early() -> None:
    """Before anything was sent: the estimator itself fails in one process."""

    def beta(t: int) -> float:
        return 2.0 if dist.get_rank() else 0.5

    MultiGradient(two_heads(), two_losses, Storm(beta=beta)).backward(COLUMNS)
    mg = MultiGradient(two_heads(), two_losses, Storm(beta=beta))
    mg.backward(COLUMNS)
    mg.backward(COLUMNS)


def test_a_failure_before_the_first_message_is_told() -> None:
    first, second = launch(fail_early, 2)
    assert first.error == second.error == "InvalidOption"
    assert "rank 1: beta(1) must lie in" in first.message


def disagree(what: str) -> None:
    odd = dist.get_rank() == 1
    model = two_heads(seed=int(odd and what == "values"))
    if odd and what == "shape":
        model.left = nn.Linear(5, 2, dtype=torch.float64)
    if odd and what == "dtype":
        model.float()
    if odd and what == "name":
        model.other = model.left
        del model.left
        model.forward = lambda x: (model.other(model.trunk(x))[:, 0], model.right(model.trunk(x))[:, 0])  # type: ignore[method-assign]
    if odd and what == "frozen":
        model.left.bias.requires_grad_(False)
    losses: Any = two_losses
    if odd and what == "objectives":
        losses = lambda model, batch: (*two_losses(model, batch), two_losses(model, batch)[0])  # noqa: E731
    batch: Any = data(8, dtype=torch.float32 if odd and what == "dtype" else torch.float64)
    if odd and what == "structure":
        batch = {"x": batch[0], "y": batch[1]}
    mg = MultiGradient(model, losses, MiniBatch())
    if odd and what == "step":
        mg.t = 3
    mg.backward(batch)


DIFFERENCES = [
    ("values", "RankMismatch", "parameter 'trunk.weight' is [5, 4] of torch.float64 with values"),
    ("shape", "RankMismatch", "parameter 'left.weight' is [2, 5] of"),
    ("dtype", "RankMismatch", "of torch.float32"),
    ("name", "RankMismatch", "trunk.bias, right.weight, right.bias, other.weight, other.bias on rank 1 and"),
    ("frozen", "RankMismatch", "the order of the parameters is"),
    ("objectives", "InvalidLosses", "2 on rank 0, 3 on rank 1"),
    ("structure", "RankMismatch", "the structure of the batch is"),
    ("step", "RankMismatch", "the step is 3 on rank 1 and 0 on rank 0"),
]


def disagree_about_all() -> list[tuple[str, str]]:
    found = []
    for what, *_ in DIFFERENCES:
        try:
            disagree(what)
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found


def test_processes_that_differ_are_told_before_the_first_step() -> None:
    for found in values(disagree_about_all, 2):
        for (_, error, message), (raised, said) in zip(DIFFERENCES, found, strict=True):
            assert raised == error, said
            assert message in said
            assert "rank 1" in said


def bad_options() -> list[str]:
    tries: list[dict[str, Any]] = [{"process_group": "world"}, {"rows_dtype": torch.bfloat16}, {"shard": 1}]
    found = []
    for options in tries:
        with pytest.raises(InvalidOption) as caught:
            MultiGradient(two_heads(), two_losses, MiniBatch(), **options)
        found.append(str(caught.value))
    return found


def test_options_that_cannot_work_with_others() -> None:
    for group, dtype, shard in values(bad_options, 2):
        assert "found 'world'" in group
        assert "found torch.bfloat16; shard=True lowers" in dtype
        assert "shard must be True or False, found 1" in shard


def test_distributed_options_need_distributed() -> None:
    for options in ({"shard": True}, {"process_group": "world"}):
        with pytest.raises(InvalidOption, match="init_process_group first"):
            MultiGradient(two_heads(), two_losses, MiniBatch(), **options)  # type: ignore[arg-type]


def measured() -> list[float]:
    return measure(two_heads(), two_losses, [COLUMNS]).losses if dist.get_rank() == 0 else []


def test_measures_are_those_of_one_process() -> None:
    """Where only the first process evaluates, nobody waits for the others."""
    first: Said = launch(measured, 2)[0]
    assert first.get() == measure(two_heads(), two_losses, [COLUMNS]).losses
