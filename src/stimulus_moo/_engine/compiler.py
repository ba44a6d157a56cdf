"""When a compiled function may be used: only after it has agreed with single rows on the user's own batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stimulus_moo._engine.compiled import CompiledRows, call_quietly, compile_rows, kind_of
from stimulus_moo._engine.differentiation import Engine, autocasts, full_precision, rowwise
from stimulus_moo._engine.nonfinite import finite
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.parameter_swap import ParameterSwap
from stimulus_moo._engine.replay import Snapshot
from stimulus_moo._engine.rows import Rows

if TYPE_CHECKING:
    from stimulus_moo._engine.store import Store
    from stimulus_moo._engine.transaction import Transaction

logger = logging.getLogger("stimulus_moo")

#: kinds of batches (structure, shapes, training flags) that are compiled; any more are run uncompiled
MOST_KINDS = 4

#: Up to this many entries of U the compiled engine is used: it needs a second U for a moment.
COMPILED_ENTRIES = 1 << 22

#: what torch.compile is asked to use
BACKEND = "inductor"

#: largest relative distance at which compiled rows count as equal, by the type of the parameters
AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-3}


class Compiler:
    """Compiles each kind of batch once, on first sight, and remembers what may be used."""

    def __init__(self, objective: Objective, engine: Engine) -> None:
        self.objective = objective
        self.engine = engine
        self._known: dict[Any, CompiledRows | None] = {}

    def find(
        self, batch: Any, previous: Sequence[Tensor] | None, like: Rows | None, keep: bool, step: int
    ) -> CompiledRows | None:
        """Return the compiled update for batches of this kind, or None if this one has to be run uncompiled.

        Args:
            batch: of the step.
            previous: x_{t-1}, if it is to be evaluated too.
            like: any rows of this model, for their layout.
            keep: whether U_{t-1} is part of the update.
            step: t, for messages.
        """
        if like is None or not like.blocks or autocasts(self.objective.devices):
            return None
        kind = kind_of(batch, self.objective.model)
        if kind is None:
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
        """Compile, and compare with single rows at the same points; the model is left as it is."""
        objective, engine = self.objective, self.engine
        snapshot = Snapshot(objective.model, objective.parameters)
        expected = Rows(objective.parameters, like.objectives, objective.decisive)
        expected.make_room(like.layout)
        try:
            self._add_rows(batch, expected, 1.0, step)
            if previous is not None:
                with ParameterSwap(objective.parameters, previous):
                    self._add_rows(batch, expected, 0.5, step)
            if not snapshot.untouched():
                engine.give_up("it draws random numbers or changes its buffers in a forward pass")
                return None
        finally:
            snapshot.restore()
        layout = [(block.objectives, block.members) for block in expected.blocks]
        function = compile_rows(objective.model, objective.losses, objective.names, like.objectives, layout, BACKEND)
        # sums: a difference of near points would have few digits to compare
        weights = torch.tensor([0.25, 1.0, 0.5], dtype=torch.float64)
        zero = [torch.zeros_like(block.matrix) for block in expected.blocks] if keep else None
        try:
            _, _, blocks = call_quietly(function, objective.parameters, previous, batch, weights, zero)
        except Exception as error:
            snapshot.restore()
            engine.give_up(f"it could not be compiled ({type(error).__name__}: {str(error).strip().splitlines()[0]})")
            return None
        if not all(_agree(block.matrix, found) for block, found in zip(expected.blocks, blocks, strict=True)):
            engine.give_up("compiled, it gives other gradients; does it use parameters from outside the model?")
            return None
        logger.debug("compiled the losses for batches like that of step %d", step)
        return CompiledRows(function, expected.reach)

    def _add_rows(self, piece: Any, rows: Rows, weight: float, step: int) -> None:
        graphs = self.objective.evaluate(piece, step).graphs
        with full_precision(self.objective.devices):
            for objective, row in enumerate(rowwise(graphs, self.objective.parameters)):
                rows.add(objective, row, weight)


def evaluate_compiled(transaction: Transaction, batch: Any, size: int, keep: float, factor: float) -> bool:
    """Make the whole update of a transaction in one compiled call.

    Returns False, with nothing done, where there is no compiled function for it, and where a value is not finite:
    single rows then tell which one it is.
    """
    store, update, probe = transaction.store, transaction.update, transaction.probe
    if probe is not None and (probe.halves or not (probe.in_rows or store.reducer is None)):
        return False  # the probe needs single gradients
    like = store.spare if store.rows is None else store.rows
    if not _supported(store, like):
        return False
    previous = store.previous if update.look_back else None
    compiled = store.compiler.find(batch, previous, like, bool(keep), transaction.step)
    if compiled is None:
        return False
    assert like is not None
    old = [block.matrix for block in like.blocks] if keep else None
    weights = torch.tensor([keep, update.now * factor, update.before * factor], dtype=torch.float64)
    losses, before, matrices = compiled.function(store.objective.parameters, previous, batch, weights, old)
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
    elif like is not None and (
        like.objectives * store.objective.dimension > COMPILED_ENTRIES or not store.storage.plain
    ):
        store.engine.give_up(f"it supports at most {COMPILED_ENTRIES} entries of U (S x P), stored by default")
    return store.engine.name == "compiled"


def _agree(expected: Tensor, found: Tensor) -> bool:
    scale = torch.linalg.vector_norm(expected, dtype=torch.float64)
    distance = torch.linalg.vector_norm(expected.double() - found.double())
    return bool(distance <= AGREEMENT.get(expected.dtype, 1e-2) * scale)
