"""A device that counts its transfers: CPU memory behind the name of an accelerator.

torch treats its tensors as it treats those of a GPU: values reach Python only by a copy to the CPU, or as one number
that the host waits for. Both are counted, with the function that asked. A backend cannot be unregistered, so this
is a program: ``python -m tests.counting_device`` trains small models and prints the counts as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    return_and_correct_aliasing,
)
from torch.utils._pytree import tree_leaves, tree_map_only

from stimulus_moo import Adaptive, Balanced, DoG, Filtered, MiniBatch, MultiGradient, Recursive, Safeguard
from stimulus_moo._engine import warnings

aten, CPU, NAME = torch.ops.aten, torch.device("cpu"), "counting"
WAIT, FETCH, SEND = "waits", "copies to the CPU", "copies to the device"
FIRST, STEPS = 2, 6
counts: Counter[str] = Counter()
INNER = {"sq_norm_of", "_one_transfer", "<genexpr>", "<listcomp>", "finite"}  # called by the function that is named


def note(kind: str) -> None:
    """Count a transfer, by the innermost function of the library that has a name of its own."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        place = frame.f_code
        if "stimulus_moo" in place.co_filename and place.co_name not in INNER:
            counts[f"{kind}: {place.co_name}"] += 1
            return
        frame = frame.f_back


class DeviceTensor(Tensor):
    """A tensor whose values are those of a CPU tensor, which only this module reads."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> DeviceTensor:
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device=f"{NAME}:0", **layout)
        made.values = values
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], *_: Any) -> DeviceTensor:
        return DeviceTensor(parts["values"])

    def tolist(self) -> Any:
        note(FETCH)
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        return run(function, args, options or {})


def run(function: Any, args: Any, options: dict[str, Any]) -> Any:
    """Run an operation on the CPU values, and count it if it crosses."""
    here = any(isinstance(leaf, DeviceTensor) for leaf in tree_leaves((args, options)))
    asked = options.get("device")
    there = here if asked is None else torch.device(asked).type == NAME
    if asked is not None:
        options = {**options, "device": CPU, "pin_memory": False}
    if function is aten._local_scalar_dense.default:
        note(WAIT)
    elif function is aten._to_copy.default and here != there:
        note(FETCH if here else SEND)
    elif function is aten.copy_.default and isinstance(args[0], DeviceTensor) != isinstance(args[1], DeviceTensor):
        there = isinstance(args[0], DeviceTensor)
        note(SEND if there else FETCH)
    plain_args, plain_options = tree_map_only(DeviceTensor, lambda tensor: tensor.values, (args, options))
    with _disable_current_modes():
        found = function(*plain_args, **plain_options)
    if not there:
        return found
    wrapped = tree_map_only(Tensor, DeviceTensor, found)
    return return_and_correct_aliasing(function, args, options, wrapped) if here else wrapped


class Counting(TorchDispatchMode):
    """Makes what is created on the device, too."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        options = options or {}
        asked = options.get("device")
        made = asked is not None and torch.device(asked).type == NAME
        if made or any(isinstance(leaf, DeviceTensor) for leaf in tree_leaves((args, options))):
            return run(function, args, options)
        return function(*args, **options)


class Module(backend_registration._DummyBackendModule):
    """What torch asks of a device; nothing here draws random numbers."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass


def register() -> torch.library.Library:
    """Register the backend; ``torch.tensor(..., device=)`` reaches it below the dispatch mode."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("aten", "IMPL")

    def empty(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))

    def copy_from(source: Tensor, target: Any, non_blocking: bool = False) -> Tensor:
        note(SEND)
        target.values.copy_(source)
        return target

    library.impl("empty_strided", empty, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    return library


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean(0)


Case = tuple[Callable[[Any, Any, Any], tuple[MultiGradient, Any]], Any]


def train(device: str, case: Case, steps: int) -> tuple[list[Any], Tensor]:
    """Return the transfers of every step, and the parameters at the end."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)]
    model = nn.Sequential(*layers).to(device)
    data = tuple(column.to(device) for column in (torch.randn(64, 8), torch.randn(64, 3)))
    build, kind = case
    optimizer = kind(model.parameters(), lr=1e-3)
    (mg, rate), found = build(model, data, optimizer), []
    for t in range(steps):
        batch = tuple(column[8 * (t % 8) : 8 * (t % 8) + 8] for column in data)
        counts.clear()
        step = mg.backward(batch)
        if isinstance(rate, DoG):
            rate.step()
        optimizer.step()
        found.append(["anchor" if step.anchored else "solve" if step.reweighed else "kept", dict(counts)])
    return found, torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def cases() -> dict[str, Case]:
    """Return what is trained, by name."""
    sgd, adam = torch.optim.SGD, torch.optim.Adam

    def case(estimator: Callable[[Any], Any], weighting: Any = None, *, metric: bool = False, **options: Any) -> Any:
        beside = options.pop("beside", None)  # Safeguard or DoG

        def build(model: Any, data: Any, optimizer: Any) -> tuple[MultiGradient, Any]:
            chosen = {} if weighting is None else {"weighting": weighting()}
            more = {"metric": optimizer} if metric else {}
            mg = MultiGradient(model, losses, estimator(data), check=False, **chosen, **more, **options)
            return mg, None if beside is None else beside(optimizer, mg)

        return build

    return {
        "mini-batch, batched": (case(lambda data: MiniBatch(), engine="batched"), sgd),
        "mini-batch, kept": (case(lambda data: MiniBatch(), reweigh=4, engine="rowwise"), sgd),
        "recursive": (case(lambda data: Recursive([data], 4), engine="rowwise"), sgd),
        "recursive, kept": (case(lambda data: Recursive([data], 4), reweigh="anchor", engine="rowwise"), sgd),
        "auto": (case(lambda data: Adaptive([data]), lambda: Balanced(0.9), metric=True, reweigh="auto"), adam),
        "metric, kept": (case(lambda data: MiniBatch(), Balanced, metric=True, reweigh=4, engine="rowwise"), adam),
        "recursive, safeguard": (case(lambda data: Recursive([data], 4), engine="rowwise", beside=Safeguard), sgd),
        "filtered": (case(lambda data: Filtered(), engine="batched"), sgd),
        "filtered, kept": (case(lambda data: Filtered(), reweigh=4, engine="rowwise"), sgd),
        "mini-batch, kept, DoG": (case(lambda data: MiniBatch(), reweigh=4, engine="rowwise", beside=DoG), sgd),
        "rows on the CPU": (case(lambda data: Recursive([data], 4), rows_device="cpu", engine="rowwise"), sgd),
    }


def main() -> None:
    """Print, by case, the transfers of the last steps and the largest difference from a run on the CPU."""
    warnings._FIRST = 0  # the first 16 steps are examined for their length; here as all others
    library, report = register(), {}
    for name, case in cases().items():
        _, expected = train("cpu", case, STEPS)
        with Counting():
            found, parameters = train(NAME, case, STEPS)
        report[name] = {"steps": found[FIRST:], "difference": float((parameters - expected).abs().max())}
    print(json.dumps(report))
    del library


if __name__ == "__main__":
    main()
