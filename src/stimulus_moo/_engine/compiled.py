"""The compiled engine: both points and all rows in one function, used only after it agreed with single rows."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from stimulus_moo._engine.compiled_function import Function, Seal, compile_rows
from stimulus_moo._engine.differentiation import Engine, autocasts, full_precision, rowwise
from stimulus_moo._engine.flat import views
from stimulus_moo._engine.graphs import precision
from stimulus_moo._engine.hooks import hooks_of
from stimulus_moo._engine.loss_forms import AnyRows, LossForm
from stimulus_moo._engine.module_tree import ModuleTree
from stimulus_moo._engine.nonfinite import finite
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.replay import ParameterSwap
from stimulus_moo._engine.row import Row
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

#: largest relative distance at which compiled rows count as equal, by the least precise type they are computed in
AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class CompiledRows(NamedTuple):
    """A compiled update that has been seen to agree with single rows, and what it reaches."""

    function: Function
    reach: list[int]
    seal: Seal
    factors: dict[tuple[float, ...], Tensor]  # by value: making a small tensor takes as long as a small kernel


class Compiler:
    """Compiles each kind of batch once, on first sight, and remembers what may be used."""

    def __init__(self, objective: Objective, engine: Engine) -> None:
        self.objective, self.engine = objective, engine
        self._known: dict[Any, CompiledRows | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}  # compiled functions belong to this model: a copy compiles its own

    def find(
        self,
        batch: Any,
        previous: Sequence[Tensor] | Tensor | None,
        like: AnyRows,
        old: AnyRows | None,
        step: int,
        form: LossForm,
    ) -> CompiledRows | None:
        """Return the compiled update for batches of this kind, or None if this one has to be run uncompiled."""
        kind = kind_of(batch, self.objective.tree)
        if not any(like.layout) or kind is None:
            return None
        if old is not None and old.layout != like.layout:
            return None
        key = (kind, previous is None, old is None, form.weighted, tuple(like.layout))
        if key not in self._known:
            if len(self._known) >= MOST_KINDS:
                return None
            self._known[key] = self._prove(batch, previous, like, old is not None, step, form)
        return self._known[key]

    def _prove(
        self,
        batch: Any,
        previous: Sequence[Tensor] | Tensor | None,
        like: AnyRows,
        keep: bool,
        step: int,
        form: LossForm,
    ) -> CompiledRows | None:
        """Compile, and compare with single rows at the same points; the model is unchanged."""
        objective, engine = self.objective, self.engine
        snapshot = objective.snapshot()
        expected = Rows(objective.parameters, like.objectives, objective.decisive)
        try:
            tolerance = self._add_rows(batch, expected, 1.0, step, form)
            if tolerance is None:
                return None
            if previous is not None:
                point = views(previous, objective.parameters) if isinstance(previous, Tensor) else list(previous)
                with ParameterSwap(objective.parameters, point):
                    if self._add_rows(batch, expected, 0.5, step, form) is None:
                        return None
            if not snapshot.untouched():
                engine.give_up_compiling("it draws random numbers or changes its buffers in a forward pass")
                return None
        finally:
            snapshot.restore()
        arranged = self._arranged(expected, like)
        seal = Seal()
        function = compile_rows(
            objective.model,
            objective.losses,
            objective.names,
            objective.loss_names or (),
            objective.returned,
            arranged.blocks_cut(),
            objective.decisive,
            seal,
            BACKEND,
        )
        # sums, since a difference of near points has few digits to compare
        factors = torch.tensor([0.25, 1.0, 0.5], dtype=torch.float64)
        logger.info("compiling the losses for batches like that of step %d; large models take minutes", step)
        start = perf_counter()
        zero = [torch.zeros_like(matrix) for matrix in arranged.matrices()] if keep else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own, which are not about the user's code
                weights = form.weights_for(objective.returned)
                _, _, blocks, *_ = function(objective.parameters, previous, batch, factors, zero, weights)
        except Exception as error:
            snapshot.restore()
            engine.give_up_compiling(
                f"it could not be compiled ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
            )
            return None
        if not all(_agree(matrix, found, tolerance) for matrix, found in zip(arranged.matrices(), blocks, strict=True)):
            engine.give_up_compiling(
                "compiled, it gives other gradients; does it use parameters from outside the model?"
            )
            return None
        logger.info("compiled the losses in %.1f s", perf_counter() - start)
        seal.closed = True
        return CompiledRows(function, arranged.reach, seal, {})

    def _add_rows(self, piece: Any, rows: Rows, weight: float, step: int, form: LossForm) -> float | None:
        """Add single rows and return how closely compiled ones must agree.

        Returns None, and gives up, where the backward pass runs Python code.
        """
        evaluated = self.objective.evaluate(piece, step)
        if self.engine.refuses(evaluated.graphs, self.objective.parameters, evaluated.hooked):
            return None
        tolerance = AGREEMENT.get(precision(evaluated.graphs), max(AGREEMENT.values()))
        with full_precision(self.objective.devices):
            for objective, row in enumerate(rowwise(form.losses(evaluated), self.objective.parameters)):
                rows.add(objective, row, weight)
        return tolerance

    def _arranged(self, found: Rows, like: AnyRows) -> AnyRows:
        """Return rows in the form of ``like``."""
        if isinstance(like, Rows):
            arranged: AnyRows = Rows(found.parameters, found.objectives, found.decisive)
            arranged.make_room(like.layout)
        else:
            arranged = Row(found.parameters)
        for s in range(found.objectives):
            row = found.row(s)
            arranged.add(s, [row.get(i) for i in range(len(found.parameters))], 1.0)
        return arranged


def evaluate_compiled(transaction: Transaction, batch: Any, size: int, keep: float, factor: float) -> bool:
    """Make the whole update of a transaction in one compiled call.

    Returns False, with nothing done, where there is no compiled function for it, and where a value is not finite:
    single rows then tell which one it is.
    """
    pieces, engine = transaction.evaluated, transaction.store.engine
    reason = _prevented(transaction)
    if reason is not None and engine.name == "compiled":
        engine.give_up_compiling(reason)
    possible = reason is None and len(pieces) == 1 and pieces[0].scales is None
    used = possible and _evaluate(transaction, batch, size, keep, factor)
    engine.uncompiled = not used and transaction.store.objective.count is not None
    return used


def _prevented(transaction: Transaction) -> str | None:
    """Return why no step of this run can be compiled, as far as this one shows it."""
    objective, halves = transaction.store.objective, transaction.probe is not None and transaction.probe.halves
    if autocasts(objective.devices):
        return "autocast is on around backward; use it inside losses instead"
    if len(transaction.evaluated) > 1 and not halves:
        return f"micro_batch={objective.micro_batch} evaluates a batch in pieces, which are not compiled"
    return None


def _evaluate(transaction: Transaction, batch: Any, size: int, keep: float, factor: float) -> bool:
    store, update, probe, form = transaction.store, transaction.update, transaction.probe, transaction.form
    if form.sketched or (probe is not None and (probe.halves or not (probe.in_rows or store.reducer is None))):
        return False  # single gradients are needed
    objectives = store.objective.count
    if objectives is None or not _supported(store, form.rows(objectives)):
        return False
    pending = store.blank(form, objectives, forget=False)
    old = store.rows if keep else None
    if isinstance(old, Rows):
        old.make_room(pending.layout)
    previous = None if not update.look_back else store.previous if store.flat_previous is None else store.flat_previous
    compiled = store.compiler.find(batch, previous, pending, old, transaction.step, form)
    arguments = store.objective.parameters, previous, batch
    numbers = keep, update.now * factor, update.before * factor
    if compiled is None or not _replace(transaction, pending, compiled, arguments, numbers, old, size):
        store.spare = pending
        return False
    return True


def _replace(
    transaction: Transaction,
    pending: AnyRows,
    compiled: CompiledRows,
    arguments: tuple[Any, ...],
    numbers: tuple[float, ...],
    old: AnyRows | None,
    size: int,
) -> bool:
    """Call a compiled function and take what it returns; return False where it is of no use."""
    store, form, objectives = transaction.store, transaction.form, transaction.store.objective.count
    assert objectives is not None
    factors = compiled.factors.get(numbers)
    if factors is None:
        factors = torch.tensor(numbers, dtype=torch.float64)
        compiled.factors.clear()
        compiled.factors[numbers] = factors
    kept, weights = None if old is None else old.matrices(), form.weights_for(objectives)
    try:
        losses, before, matrices, products, transaction.point = compiled.function(*arguments, factors, kept, weights)
    except Exception:
        if not compiled.seal.broken:
            raise
        store.engine.give_up_compiling(
            "a Python value that its losses use has changed, which would be compiled anew at every change; pass such "
            "values as tensors in the batch"
        )
        return False
    summed = products is not None and (form.weighted or all(store.objective.decisive))
    values = losses.tolist()
    if products is not None:
        values.append(products.item() if form.weighted else products.sum().item())
    if not all(map(math.isfinite, values)) or not (summed or all(map(finite, matrices))):
        return False  # an overflow of the sum counts too: single rows tell
    reach = compiled.reach if old is None else [new | kept for new, kept in zip(compiled.reach, old.reach, strict=True)]
    pending.replace(reach, matrices)
    transaction.objectives, transaction.pending = objectives, pending
    transaction.products = products if store.reducer is None else None
    transaction.account.add(losses, size, transaction.evaluated[0].counts)
    transaction.account.before = before
    return True


def _supported(store: Store, rows: int) -> bool:
    """Return whether the compiled engine serves this model; it gives up where it does not."""
    if store.sharded:
        store.engine.give_up_compiling("it needs all of U in one process, and shard=True splits it")
        return False
    if rows * store.objective.dimension > COMPILED_ENTRIES or not store.storage.plain:
        store.engine.give_up_compiling(
            f"it supports at most {COMPILED_ENTRIES} entries of U (S x P), stored by default"
        )
        return False
    return True


def _agree(expected: Tensor, found: Tensor, tolerance: float) -> bool:
    scale = torch.linalg.vector_norm(expected, dtype=torch.float64)
    distance = torch.linalg.vector_norm(expected.double() - found.double())
    return bool(distance <= tolerance * scale)


def kind_of(batch: Any, tree: ModuleTree) -> tuple[Any, ...] | None:
    """Return what a compiled function is specialised on, or None where a batch cannot be told from others."""
    if type(batch) in (tuple, list) and all(isinstance(leaf, Tensor) for leaf in batch):
        leaves: Sequence[Any] = batch  # the usual case, without the time of tree_flatten
        structure: Any = type(batch), len(batch)
    else:
        leaves, structure = tree_flatten(batch)
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            described.append((leaf.shape, leaf.dtype, leaf.device, leaf.layout))
        elif isinstance(leaf, int | float | str | bytes | bool | None):
            described.append(leaf)
        else:
            return None
    training = [module.training for module in tree.modules]
    replaced = ["forward" in module.__dict__ for module in tree.modules]
    return (structure, *described, *training, *replaced, *hooks_of(tree.modules, tree.parameters))
