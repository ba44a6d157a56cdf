"""The compiled engine: both points and all rows in one function, used only after it agreed with single rows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_flatten

from stimulus_moo._engine.differentiation import Engine, autocasts, full_precision, rowwise
from stimulus_moo._engine.hooks import hooks_of
from stimulus_moo._engine.nonfinite import finite
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.replay import ParameterSwap, Snapshot
from stimulus_moo._engine.rows import Rows

if TYPE_CHECKING:
    from stimulus_moo._engine.store import Store
    from stimulus_moo._engine.transaction import Transaction

logger = logging.getLogger("stimulus_moo")

#: how many kinds of batches (structure, shapes, training flags) are compiled; others run uncompiled
MOST_KINDS = 4

#: Up to this many entries of U the compiled engine is used: it needs a second U for a moment.
COMPILED_ENTRIES = 1 << 22

#: the backend of torch.compile
BACKEND = "inductor"

#: largest relative distance at which compiled rows count as equal, by the type of the parameters
AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-3}

#: (x_t, x_{t-1} or None, batch, [keep, now, before], U_{t-1} by block or None) to the losses at both points and U_t
Function = Callable[..., tuple[Tensor, Tensor | None, list[Tensor]]]


class Seal:
    """Refuses to trace a function again once it is closed.

    torch.compile traces again where a Python value has changed that the losses use: the new version would not have been
    compared with single rows, and a value that changes at every step would be compiled at every step.
    """

    def __init__(self) -> None:
        self.closed = self.broken = False

    def traced(self) -> bool:
        """Called at tracing only, which takes the result as a constant."""
        self.broken = self.closed
        if self.broken:
            raise RuntimeError("a function that was compiled and compared would have to be compiled again")
        return True


class CompiledRows(NamedTuple):
    """A compiled update that has been seen to agree with single rows, and what it reaches."""

    function: Function
    reach: list[int]
    seal: Seal


class _Losses(torch.nn.Module):
    """The user's losses as a module, so that its parameters can be replaced for a call."""

    def __init__(self, model: torch.nn.Module, losses: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Any) -> Tensor:
        returned = self._losses(self.model, batch)
        return returned if isinstance(returned, Tensor) else torch.stack(list(returned))


def compile_rows(
    model: torch.nn.Module,
    losses: Callable[[Any, Any], Any],
    names: Sequence[str],
    objectives: int,
    layout: Sequence[tuple[list[int], list[int]]],
    seal: Seal,
) -> Function:
    """Return U_t = keep U_{t-1} + now J(x_t) + before J(x_{t-1}) as a function; the first call compiles it.

    ``layout`` has for each block its objectives, and the parameters whose gradients are its columns. ``seal``, once it
    is closed, refuses further compilations.
    """
    wrapped = _Losses(model, losses)
    keys = [f"model.{name}" for name in names]
    traced = torch.compiler.assume_constant_result(lambda: seal.traced())

    def jacobian(parameters: Sequence[Tensor], batch: Any) -> tuple[Tensor, list[Tensor]]:
        def values(point: Sequence[Tensor]) -> Tensor:
            found: Tensor = functional_call(wrapped, dict(zip(keys, point, strict=True)), (batch,))
            return found

        found, pull = vjp(values, tuple(parameters))  # type: ignore[misc]
        (gradients,) = vmap(pull)(torch.eye(objectives, dtype=found.dtype, device=found.device))
        blocks = []
        for rows, members in layout:
            flat = torch.cat([gradients[i].reshape(objectives, -1) for i in members], dim=1)
            blocks.append(flat if len(rows) == objectives else flat[rows])
        return found, blocks

    def update(
        parameters: Sequence[Tensor],
        previous: Sequence[Tensor] | None,
        batch: Any,
        weights: Tensor,
        rows: Sequence[Tensor] | None,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        traced()
        keep, now, before = weights.unbind()
        found, blocks = jacobian(parameters, batch)
        earlier = None
        blocks = [block * now for block in blocks]
        if previous is not None:
            earlier, others = jacobian(previous, batch)
            blocks = [a + b * before for a, b in zip(blocks, others, strict=True)]
        if rows is not None:
            blocks = [a + b * keep for a, b in zip(blocks, rows, strict=True)]
        return found, earlier, blocks

    # torch.compile keeps at most a few versions of one code object, and every model would bring one of this
    own = FunctionType(update.__code__.replace(), update.__globals__, update.__name__, None, update.__closure__)
    # a step of a small model is shorter than the Python that inductor would wrap its kernels in
    options: dict[str, Any] | None = {"cpp_wrapper": True} if BACKEND == "inductor" else None
    return torch.compile(own, fullgraph=True, dynamic=False, backend=BACKEND, options=options)


class Compiler:
    """Compiles each kind of batch once, on first sight, and remembers what may be used."""

    def __init__(self, objective: Objective, engine: Engine) -> None:
        self.objective, self.engine = objective, engine
        self._known: dict[Any, CompiledRows | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}  # compiled functions belong to this model: a copy compiles its own

    def find(
        self, batch: Any, previous: Sequence[Tensor] | None, like: Rows, keep: bool, step: int
    ) -> CompiledRows | None:
        """Return the compiled update for batches of this kind, or None if this one has to be run uncompiled."""
        kind = kind_of(batch, self.objective.model)
        if not like.blocks or kind is None or autocasts(self.objective.devices):
            return None
        key = (kind, previous is None, keep, tuple(like.layout))
        if key not in self._known:
            if len(self._known) >= MOST_KINDS:
                return None
            self._known[key] = self._prove(batch, previous, like, keep, step)
        return self._known[key]

    def _prove(
        self, batch: Any, previous: Sequence[Tensor] | None, like: Rows, keep: bool, step: int
    ) -> CompiledRows | None:
        """Compile, and compare with single rows at the same points; the model is unchanged."""
        objective, engine = self.objective, self.engine
        snapshot = Snapshot(objective.model, objective.parameters)
        expected = Rows(objective.parameters, like.objectives, objective.decisive)
        expected.make_room(like.layout)
        try:
            if self._add_rows(batch, expected, 1.0, step):
                return None
            if previous is not None:
                with ParameterSwap(objective.parameters, previous):
                    if self._add_rows(batch, expected, 0.5, step):
                        return None
            if not snapshot.untouched():
                engine.give_up("it draws random numbers or changes its buffers in a forward pass")
                return None
        finally:
            snapshot.restore()
        layout = [(block.objectives, block.members) for block in expected.blocks]
        seal = Seal()
        function = compile_rows(objective.model, objective.losses, objective.names, like.objectives, layout, seal)
        # sums, since a difference of near points has few digits to compare
        weights = torch.tensor([0.25, 1.0, 0.5], dtype=torch.float64)
        zero = [torch.zeros_like(block.matrix) for block in expected.blocks] if keep else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own, which are not about the user's code
                _, _, blocks = function(objective.parameters, previous, batch, weights, zero)
        except Exception as error:
            snapshot.restore()
            engine.give_up(f"it could not be compiled ({type(error).__name__}: {str(error).strip().splitlines()[0]})")
            return None
        if not all(_agree(block.matrix, found) for block, found in zip(expected.blocks, blocks, strict=True)):
            engine.give_up("compiled, it gives other gradients; does it use parameters from outside the model?")
            return None
        logger.debug("compiled the losses for batches like that of step %d", step)
        seal.closed = True
        return CompiledRows(function, expected.reach, seal)

    def _add_rows(self, piece: Any, rows: Rows, weight: float, step: int) -> bool:
        """Add single rows; or return True, and give up, where the backward pass runs Python code."""
        _, graphs, hooked = self.objective.evaluate(piece, step)
        if self.engine.refuses(graphs, self.objective.parameters, hooked):
            return True
        with full_precision(self.objective.devices):
            for objective, row in enumerate(rowwise(graphs, self.objective.parameters)):
                rows.add(objective, row, weight)
        return False


def evaluate_compiled(transaction: Transaction, batch: Any, size: int, keep: float, factor: float) -> bool:
    """Make the whole update of a transaction in one compiled call.

    Returns False, with nothing done, where there is no compiled function for it, and where a value is not finite:
    single rows then tell which one it is.
    """
    store, update, probe = transaction.store, transaction.update, transaction.probe
    if probe is not None and (probe.halves or not (probe.in_rows or store.reducer is None)):
        return False  # the probe needs single gradients
    like = store.spare if store.rows is None else store.rows
    if not _supported(store, like) or like is None:
        return False
    previous = store.previous if update.look_back else None
    compiled = store.compiler.find(batch, previous, like, bool(keep), transaction.step)
    if compiled is None:
        return False
    old = [block.matrix for block in like.blocks] if keep else None
    weights = torch.tensor([keep, update.now * factor, update.before * factor], dtype=torch.float64)
    try:
        losses, before, matrices = compiled.function(store.objective.parameters, previous, batch, weights, old)
    except Exception:
        if not compiled.seal.broken:
            raise
        store.engine.give_up(
            "a Python value that its losses use has changed, which would be compiled anew at every change; pass such "
            "values as tensors in the batch"
        )
        return False
    if not all(map(finite, (losses, *matrices))):
        return False
    pending, store.spare = store.spare, None
    if pending is None or pending.layout != like.layout:
        pending = store.new_rows(like.objectives)
        pending.make_room(like.layout)
    reach = [new | kept for new, kept in zip(compiled.reach, like.reach, strict=True)]
    pending.replace(reach if keep else compiled.reach, matrices)
    transaction.pending = pending
    transaction.account.add(losses, size)
    transaction.account.before = before
    return True


def _supported(store: Store, like: Rows | None) -> bool:
    """Return whether the compiled engine serves this model; it gives up where it does not."""
    if store.sharded:
        store.engine.give_up("it needs all of U in one process, and shard=True splits it")
    elif like and (like.objectives * store.objective.dimension > COMPILED_ENTRIES or not store.storage.plain):
        store.engine.give_up(f"it supports at most {COMPILED_ENTRIES} entries of U (S x P), stored by default")
    return store.engine.name == "compiled"


def _agree(expected: Tensor, found: Tensor) -> bool:
    scale = torch.linalg.vector_norm(expected, dtype=torch.float64)
    distance = torch.linalg.vector_norm(expected.double() - found.double())
    return bool(distance <= AGREEMENT.get(expected.dtype, 1e-2) * scale)


def kind_of(batch: Any, model: torch.nn.Module) -> tuple[Any, ...] | None:
    """Return what a compiled function is specialised on, or None where a batch cannot be told from others."""
    leaves, structure = tree_flatten(batch)
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            described.append((leaf.shape, leaf.dtype, leaf.device, leaf.layout))
        elif isinstance(leaf, int | float | str | bytes | bool | None):
            described.append(leaf)
        else:
            return None
    return (structure, *described, *(module.training for module in model.modules()), *hooks_of(model))
