"""Models whose backward pass runs Python code, for every engine; a program, since the wrong engine ends a process.

Prints, for every model, the engine that was used in the end, its warnings, the distance to single rows, how many
gradients a hook has kept and how many of them are no plain tensors.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stimulus_moo import MiniBatch, MultiGradient, Recursive, StimulusWarning
from stimulus_moo._engine import compiled

STEPS = 8
X = torch.randn(64, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

kept: list[Tensor] = []


def clamp(gradient: Tensor) -> Tensor:
    kept.append(gradient)
    return gradient.data.clamp(-0.02, 0.02)


def double_all(module: Any, *gradients: Any) -> Any:
    """Serve as any hook of a module or node: double what comes first, read through ``.data``."""
    kept.extend(gradient for gradient in gradients[0] if gradient is not None)
    return tuple(None if gradient is None else 2.0 * gradient.data for gradient in gradients[0])


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        kept.append(gradient)
        return -gradient.data


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        kept.append(gradient)
        return 3.0 * ctx.saved_tensors[0] ** 2 * gradient.data


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 2.0 * ctx.saved_tensors[0].data * gradient.data


class Model(nn.Module):
    """Two layers with something in between."""

    def __init__(self, between: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 5, dtype=torch.float64), nn.Linear(5, 3, dtype=torch.float64)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(h if self.between is None else self.between(h))


def with_tensor_hook(hook: Callable[[Tensor], Any]) -> Model:
    def between(h: Tensor) -> Tensor:
        h.register_hook(hook)
        return h

    return Model(between)


def with_node_hooks() -> Model:
    def between(h: Tensor) -> Tensor:
        h.grad_fn.register_hook(double_all)
        h.grad_fn.register_prehook(lambda gradients: double_all(None, gradients))
        return h

    return Model(between)


def with_parameter_hook() -> Model:
    model = Model()
    model.first.weight.register_hook(clamp)
    return model


def with_module_hook(register: str) -> Model:
    model = Model()
    getattr(model.last, register)(double_all)
    return model


def with_saved_tensor_hooks() -> Model:
    def between(h: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.data.clone(), lambda t: t.data.clone()):
            return h.square()

    return Model(between)


def with_accumulate_hook() -> Model:
    model = Model()
    model.first.weight.register_post_accumulate_grad_hook(lambda p: kept.append(p.grad.data))
    return model


class Late(Model):
    """Gets a hook on its parameters, a module or an activation after the model was used a few times."""

    def __init__(self, add: Callable[[Late], Any]) -> None:
        super().__init__()
        self.add: Any = add

    def advance(self, step: int) -> None:
        if step == 5:
            self.add(self)


def late_between(model: Late) -> None:
    def between(h: Tensor) -> Tensor:
        h.register_hook(clamp)
        return h

    model.between = between


def late_node(model: Late) -> None:
    model.between = Reversal.apply


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tensor hook": lambda: with_tensor_hook(clamp),
    "a hook that stores": lambda: with_tensor_hook(kept.append),
    "parameter hook": with_parameter_hook,
    "full backward hook": lambda: with_module_hook("register_full_backward_hook"),
    "full backward pre-hook": lambda: with_module_hook("register_full_backward_pre_hook"),
    "autograd function": lambda: Model(Square.apply),
    "autograd function with a vmap rule": lambda: Model(Cube.apply),
    "gradient reversal": lambda: Model(Reversal.apply),
    "checkpoint": lambda: Model(lambda h: checkpoint(torch.exp, h, use_reentrant=False)),
    "node hooks": with_node_hooks,
    "saved-tensor hooks": with_saved_tensor_hooks,
    "post-accumulate hook": with_accumulate_hook,
    "a late tensor hook": lambda: Late(late_between),
    "a late parameter hook": lambda: Late(lambda model: model.first.weight.register_hook(clamp)),
    "a late module hook": lambda: Late(lambda model: model.last.register_full_backward_hook(double_all)),
    "a late autograd function": lambda: Late(late_node),
}


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean(0)


def walk(name: str, engine: str, *, compiling: bool = False) -> tuple[Tensor, str]:
    model = MODELS[name]()
    estimator = MiniBatch() if compiling else Recursive([X], period=4)  # one point takes half as long to compile
    mg = MultiGradient(model, losses, estimator, engine=engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = []
    for step, x in enumerate(X.split(64 // STEPS)):
        if isinstance(model, Late):
            model.advance(step)
        mg.backward(x)
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(path), mg.engine


def main(engine: str) -> None:
    compiled.BACKEND = "aot_eager"
    for name in MODELS:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            expected, _ = walk(name, "rowwise", compiling=engine == "compiled")
            kept.clear()
            found, used = walk(name, engine, compiling=engine == "compiled")
        report = {
            "model": name,
            "asked": engine,
            "engine": used,
            "warnings": [str(one.message) for one in said if issubclass(one.category, StimulusWarning)],
            "distance": float((found - expected).abs().max()),
            "kept": len(kept),
            "unreadable": sum(not math.isfinite(tensor.data.sum()) for tensor in kept),  # or the process ends here
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    for engine in sys.argv[1:]:
        main(engine)
