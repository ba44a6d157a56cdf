"""The random projection of the rows: linear, the same everywhere, and its inner products are those of the rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from stimulus_moo import MiniBatch, MultiGradient, NonFiniteError, Storm
from stimulus_moo._engine.sketch import WIDTH, Sketch
from tests.harness import cut, data, two_heads, two_losses

P = 3 * WIDTH + 1000


def parameters(*sizes: int) -> list[Tensor]:
    return [torch.zeros(size) for size in sizes]


def sketch_of(rows: Tensor, sizes: tuple[int, ...], weight: float = 1.0) -> Sketch:
    found = Sketch(parameters(*sizes), len(rows), [True] * len(sizes))
    for s, row in enumerate(rows):
        found.add(s, row.split(sizes), weight)
    return found


def rows_of(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, P, generator=generator)
    rows[1] = 0.8 * rows[0] + 0.6 * rows[1]  # correlated, as gradients are
    return rows


def test_inner_products_are_within_the_stated_error_and_unbiased() -> None:
    """The signs are fixed, so the rows are drawn anew: 12 draws of 6 products each."""
    errors = []
    for seed in range(12):
        rows = rows_of(seed)
        exact = rows.double() @ rows.double().T
        lengths = exact.diagonal().sqrt()
        found = sketch_of(rows, (P,)).gramian()
        errors.append(((found - exact) / torch.outer(lengths, lengths))[torch.triu_indices(3, 3).unbind()])
    relative = torch.stack(errors)
    bound = math.sqrt(2 / WIDTH)  # of the standard deviation, in the docstring
    assert float(relative.abs().max()) < 4.5 * bound  # 72 normal numbers exceed it with odds of 1 in 2000
    assert float(relative.square().mean().sqrt()) < 1.2 * bound  # its own error is below 10%
    assert float(relative.mean().abs()) < 4 * bound / math.sqrt(len(relative))  # no bias, products of a draw correlate
    assert float(relative.square().mean().sqrt()) > 0.2 * bound  # it is a sketch, not the rows


def test_few_parameters_are_projected_exactly() -> None:
    rows = rows_of(0)[:, :1000].double()
    found = Sketch([torch.zeros(600).double(), torch.zeros(20, 20).double()], 3, [True, True])
    for s, row in enumerate(rows):
        found.add(s, [row[:600], row[600:].view(20, 20)], 1.0)
    torch.testing.assert_close(found.gramian(), rows @ rows.T, rtol=1e-13, atol=1e-10)


def test_a_sketch_is_linear_and_the_same_in_two_objects() -> None:
    sizes = (WIDTH + 17, 40_000, P - WIDTH - 17 - 40_000)
    first, second = rows_of(1), rows_of(2)
    total = Sketch(parameters(*sizes), 3, [True] * 3)
    for s in range(3):
        total.add(s, first[s].split(sizes), 0.25)
        total.add(s, second[s].split(sizes), -2.0)
    expected = sketch_of(0.25 * first - 2.0 * second, sizes)
    # float32 sums of about four terms each, in another order
    torch.testing.assert_close(total.matrices()[0], expected.matrices()[0], rtol=0, atol=1e-5)
    again = sketch_of(first, sizes)
    assert torch.equal(sketch_of(first, sizes).matrices()[0], again.matrices()[0])
    one_by_one = Sketch(parameters(*sizes), 3, [True] * 3)
    one_by_one.add_stacked([part.contiguous() for part in first.split(sizes, dim=1)], 1.0)
    assert torch.equal(one_by_one.matrices()[0], again.matrices()[0])
    again.clear()
    assert float(again.matrices()[0].abs().max()) == 0.0


def test_parameters_that_are_not_shared_do_not_enter() -> None:
    rows = rows_of(3)
    sizes = (100, P - 100)
    found = Sketch(parameters(*sizes), 3, [False, True])
    alone = Sketch(parameters(P - 100), 3, [True])
    for s, row in enumerate(rows):
        found.add(s, row.split(sizes), 1.0)
        alone.add(s, [row[100:]], 1.0)
    exact = rows[:, 100:].double() @ rows[:, 100:].double().T
    scale = float(exact.diagonal().max())
    for one in (found, alone):  # the signs depend on a parameter's place, so the two differ
        assert float((one.gramian() - exact).abs().max()) < 4.5 * math.sqrt(2 / WIDTH) * scale


class Wide(nn.Module):
    """A trunk of more parameters than a sketch has sums, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(400, 200)
        self.head = nn.Linear(200, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.trunk(x)))


def test_weights_of_a_wide_model_are_near_the_exact_ones() -> None:
    x = torch.randn(16, 400, generator=torch.Generator().manual_seed(1))

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) - torch.tensor([1.0, -2.0, 3.0])).square().mean(0)

    for reweigh in (1, 3):
        exact, sketch = Wide(), Wide()
        plain = MultiGradient(exact, losses, MiniBatch(), reweigh=reweigh)
        mg = MultiGradient(sketch, losses, MiniBatch(), reweigh=reweigh, gramian="sketch")
        one, other = plain.backward(x), mg.backward(x)
        # the Gramian is right to 1%, and the direction takes the exact gradients for these weights
        assert float((one.weights - other.weights).abs().max()) < 0.05
        parts = torch.autograd.grad(losses(sketch, x) @ other.weights, list(sketch.parameters()))
        for parameter, part in zip(sketch.parameters(), parts, strict=True):
            torch.testing.assert_close(parameter.grad, part, rtol=1e-4, atol=1e-6)  # float32
        assert (mg.samples, mg.gradients, mg.passes) == (16, 32, 16 * 4)
        assert mg.rows() == []


@pytest.mark.parametrize("objective", [0, 1])
@pytest.mark.parametrize("engine", ["rowwise", "batched"])
def test_nan_in_a_parameter_that_is_not_shared_is_found(objective: int, engine: str) -> None:
    """The head of one objective, which does not decide the weights, has no finite gradient."""
    model = two_heads()

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        found = list(two_losses(model, batch))
        head = model.left if objective == 0 else model.right
        found[objective] = found[objective] + (0.0 * head.bias).abs().sqrt().sum()
        return tuple(found)

    mg = MultiGradient(
        model, losses, MiniBatch(), shared=model.trunk.parameters(), gramian="sketch", reweigh=2, engine=engine
    )
    with pytest.raises(NonFiniteError, match=f"gradient of objective {objective} .* at step 0"):
        mg.backward(data(6))


def test_large_entries_of_a_parameter_that_is_not_shared_are_finite() -> None:
    model = two_heads(dtype=torch.float32)

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        left, right = two_losses(model, batch)
        return left + 2e38 * (model.left.weight - model.left.weight.detach()).sum(), right

    for gramian in ("exact", "sketch"):
        mg = MultiGradient(model, losses, MiniBatch(), shared=model.trunk.parameters(), reweigh=2, gramian=gramian)
        assert not mg.backward(data(6, dtype=torch.float32)).skipped


def test_the_sketch_of_a_wide_model_is_the_same_in_pieces() -> None:
    x = torch.randn(12, 400, generator=torch.Generator().manual_seed(1))
    weights = []
    for micro_batch in (None, 5):
        mg = MultiGradient(
            Wide(),
            lambda model, x: (model(x) - 1.0).square().mean(0),
            Storm(0.3),
            micro_batch=micro_batch,
            reweigh=2,
            gramian="sketch",
        )
        weights.append(mg.backward(x).weights)
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-4)  # float32 sums in another order


def test_batches_of_one_sample_are_sketched() -> None:
    mg = MultiGradient(two_heads(), two_losses, MiniBatch(), gramian="sketch")
    exact = MultiGradient(two_heads(), two_losses, MiniBatch())
    for batch in cut(data(3), 1):
        torch.testing.assert_close(mg.backward(batch).weights, exact.backward(batch).weights, rtol=0, atol=1e-12)
