"""U and x_{t-1} as they stand between two steps: memory for the next update, and their form in a ``state_dict``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stimulus_moo._engine.compiled import Compiler
from stimulus_moo._engine.differentiation import Engine
from stimulus_moo._engine.flat import can_be_flat, of_one_kind, views
from stimulus_moo._engine.objective import Objective
from stimulus_moo._engine.replay import ParameterSwap
from stimulus_moo._engine.row import Row
from stimulus_moo._engine.rows import Rows
from stimulus_moo._engine.storage import Storage
from stimulus_moo.errors import StateMismatch

if TYPE_CHECKING:
    from stimulus_moo._engine.loss_forms import LossForm
    from stimulus_moo.distributed.reducer import AllReduce
    from stimulus_moo.weightings.metric import Metric

#: The staging threshold. Up to this many entries of U (S x P) an update is built beside the old rows and can be
#: discarded exactly. Above, rows are updated in place, so that no second S x P matrix exists.
STAGED_ENTRIES = 1 << 18


class Store:
    """Keeps U, x_{t-1} and spare memory for the next update; transactions change them."""

    def __init__(
        self,
        objective: Objective,
        engine: Engine,
        storage: Storage | None = None,
        reducer: AllReduce | None = None,
        *,
        one_row: bool = False,
        metric: Metric | None = None,
    ) -> None:
        self.one_row = one_row  # are weights kept between solves, so that one row is remembered?
        self.metric = metric  # None for the Euclidean one
        self.objective, self.engine, self.storage = objective, engine, storage or Storage()
        self.reducer = reducer  # None for a process on its own
        self.sharded = reducer is not None and reducer.sharded
        self.compiler = Compiler(objective, engine)
        self.rows: Rows | Row | None = None  # U_{t-1}, or its one row under kept weights, where it is needed again
        self.previous: list[Tensor] | None = None  # x_{t-1}
        self.flat_previous: Tensor | None = None  # its memory, if that is one piece
        self.swap: ParameterSwap | None = None  # puts x_{t-1} into the parameters for a while
        self.layout = [0] * len(objective.parameters)  # every reach seen so far: how the rows are cut into blocks
        self.spare: Rows | Row | None = None  # memory for the next update
        self.undivided = False  # have all processes seen the same samples at the last anchor?
        self.loss_values: Tensor | None = None  # running values of the losses, for weightings that use them

    def __getstate__(self) -> dict[str, Any]:
        # the rows are views of one block of memory, which pickle would take apart
        return {**self.__dict__, "rows": self.saved_rows(), "spare": None, "flat_previous": None, "swap": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.rows, self.previous = self._loaded(state["rows"]), None
        if state["previous"] is not None:
            self.set_previous(state["previous"])

    def roots(self) -> list[Tensor | None] | None:
        """Return D^(-1/2) of the metric for each parameter; None for the Euclidean one."""
        if self.metric is None:
            return None
        parameters, part_of = self.objective.model_parameters, self.objective.placement.part_of
        found = zip(self.metric.roots(parameters), parameters, strict=True)
        return [None if root is None else part_of(root, parameter) for root, parameter in found]

    def stages(self, objectives: int) -> bool:
        """Return whether updates of so many rows are built beside the old ones; a part of sharded rows is small."""
        return self.sharded or (objectives * self.objective.dimension <= STAGED_ENTRIES and self.storage.plain)

    @property
    def plain_row(self) -> bool:
        """Whether one row is kept as plain training keeps ``p.grad``, see ``Row``."""
        if self.reducer is not None and (self.sharded or not of_one_kind(self.objective.parameters)):
            return False
        return self.storage.for_one_row().plain and not self.objective.narrow

    def new_rows(self, objectives: int) -> Rows:
        rows = self._make(objectives, self.storage, self.layout)
        rows.staged = self.stages(objectives)
        return rows

    def new_row(self) -> Rows | Row:
        """Return one row; updates are built beside it at any size of the model."""
        storage, room = self.storage.for_one_row(), [int(mask > 0) for mask in self.layout]
        if self.plain_row:
            return Row(self.objective.parameters, room=room)
        row = self._make(1, storage, room)
        row.weighted = True
        return row

    def row_of(self, parts: Sequence[Tensor | None]) -> Rows | Row:
        """Return one row with these values, one tensor per parameter or None; it may use their memory."""
        row = self.new_row()
        if isinstance(row, Row):
            row.parts = list(parts)
            row.make_room(row.reach)
        else:
            row.load(0, parts)
        return row

    def _make(self, objectives: int, storage: Storage, layout: Sequence[int]) -> Rows:
        make = Rows if self.reducer is None else self.reducer.new_rows
        rows = make(self.objective.parameters, objectives, self.objective.decisive, storage)
        rows.make_room(layout)
        return rows

    def blank(self, form: LossForm, objectives: int, *, forget: bool) -> Rows | Row:
        """Return empty rows, in spare memory if there is any; what is in a ``Row`` is left to its ``begin``.

        A large update that forgets the old rows takes their memory: if it fails, the rows are lost.
        """
        blank, room = None, form.room(self.layout)
        spare = None if form.sketched else self.spare
        if spare is not None and (spare.weighted, spare.objectives) == (form.weighted, form.rows(objectives)):
            blank, self.spare = spare, None
        if blank is None and isinstance(self.rows, Rows) and forget and not self.rows.staged:
            blank, self.rows = self.rows, None
        if blank is None:
            return form.new_rows(self, objectives)
        if isinstance(blank, Rows):
            blank.clear(lazily=not blank.staged)
        if blank.layout != room:
            blank.make_room(room)
        return blank

    def remember_point(self, flat: Tensor | None = None) -> None:
        """Keep a copy of x_t as x_{t-1}, for a small model in one piece of memory; ``flat`` is x_t if it is known."""
        if flat is not None and self.flat_previous is not None:
            self.flat_previous.copy_(flat)
        else:
            self.set_previous([parameter.detach() for parameter in self.objective.parameters])

    def set_previous(self, point: Sequence[Tensor]) -> None:
        """Keep a copy of these values, one for each parameter, as x_{t-1}."""
        if self.previous is not None:  # without torch.no_grad, whose exit a signal could skip
            torch._foreach_copy_(self.previous, list(point))
            return
        parameters = self.objective.parameters
        flat = torch.cat([part.reshape(-1) for part in point]) if can_be_flat(parameters) else None
        previous = [part.clone() for part in point] if flat is None else views(flat, parameters)
        self.swap = ParameterSwap(parameters, previous)
        self.flat_previous, self.previous = flat, previous

    def masks(self, graphs: Sequence[Tensor | None], counts: Sequence[float] | None = None) -> list[int]:
        """Return for each parameter the bit mask of the losses that reach it, read off the autograd graph.

        A loss whose count is 0 may reach nothing.
        """
        return self.objective.placement.masks(graphs, self.objective.model_parameters, counts)

    def survey(self, batch: Any, step: int) -> tuple[int, list[int]]:
        """Evaluate a batch without side effects; return S and which objectives reach each parameter, as bit masks."""
        self.objective.tree.update()
        snapshot = self.objective.snapshot()
        try:
            piece, _ = self.objective.pieces(batch)[0]
            counts = None if self.objective.counts is None else self.objective.count_labels(piece)
            evaluated = self.objective.evaluate(piece, step, counts)
        finally:
            snapshot.restore()
        return len(evaluated.losses), self.masks(evaluated.graphs, counts)

    def clear(self) -> None:
        self.rows = self.previous = self.flat_previous = self.swap = self.spare = self.loss_values = None
        if self.reducer is not None:
            self.reducer.clear()

    def saved_rows(self) -> list[dict[str, Tensor]]:
        """Return copies of the rows by parameter name, one dict per objective; empty where none are kept."""
        rows, names = self.rows, self.objective.names
        if rows is None:
            return []
        joined, own = self.objective.placement.joined, self.objective.model_parameters
        return [
            {names[i]: joined(part.clone(), own[i]) for i, part in rows.row(s).items()} for s in range(rows.objectives)
        ]

    def saved_point(self) -> dict[str, Tensor] | None:
        if self.previous is None:
            return None
        joined, objective = self.objective.placement.joined, self.objective
        found = zip(objective.names, self.previous, objective.model_parameters, strict=True)
        return {name: joined(x.clone(), parameter) for name, x, parameter in found}

    def saved_layout(self) -> dict[str, int]:
        """Return by parameter name the bit mask of the objectives that ever reached it; it decides the rounding."""
        return dict(zip(self.objective.names, self.layout, strict=True))

    def check(self, objectives: int | None, rows: Any, point: Any, layout: Any, path: str) -> None:
        """Raise StateMismatch, naming the parameter, where a saved state does not fit the model."""
        needed = 1 if self.one_row else objectives
        if not isinstance(rows, list) or len(rows) not in (0, needed):
            found = f"{len(rows)} rows" if isinstance(rows, list) else type(rows).__name__
            kept = "one row, of kept weights" if self.one_row else f"{objectives} rows, one per objective"
            raise StateMismatch(f"{path}.rows must be an empty list or {kept}, found {found}; was reweigh another?")
        if not isinstance(layout, dict) or set(layout) != set(self.objective.names):
            raise StateMismatch(f"{path}.layout must name the parameters {self.objective.names}, found {layout!r}")
        for name, mask in layout.items():
            if not isinstance(mask, int) or isinstance(mask, bool) or mask < 0 or mask >> (objectives or 0):
                raise StateMismatch(
                    f"{path}.layout[{name!r}] must be a mask of {objectives} objectives, found {mask!r}"
                )
        for s, row in enumerate(rows):
            self._check_tensors(row, f"{path}.rows[{s}]", self._row_storage().dtype_for)
            if not row and self.objective.counts is None:
                raise StateMismatch(f"{path}.rows[{s}] must have an entry for some parameter, found none")
        if point is not None:
            self._check_tensors(point, f"{path}.previous", None)

    def load(self, rows: list[dict[str, Tensor]], point: dict[str, Tensor] | None, layout: dict[str, int]) -> None:
        self.clear()
        self.layout = [layout[name] for name in self.objective.names]
        if point is not None:
            parts = zip(self._parts(point), self.objective.parameters, strict=True)
            self.set_previous([part.to(own.device) for part, own in parts if part is not None])
        self.rows = self._loaded(rows)

    def _parts(self, values: dict[str, Tensor]) -> list[Tensor | None]:
        """Return this process's parts of values by parameter name, None where there is none."""
        objective = self.objective
        return [
            None if (value := values.get(name)) is None else objective.placement.part_of(value, parameter)
            for name, parameter in zip(objective.names, objective.model_parameters, strict=True)
        ]

    def _loaded(self, rows: list[dict[str, Tensor]]) -> Rows | Row | None:
        if not rows:
            return None
        loaded = self.new_row() if self.one_row else self.new_rows(len(rows))
        for s, row in enumerate(rows):
            loaded.load(s, self._parts(row))
        return loaded

    def _row_storage(self) -> Storage:
        return self.storage.for_one_row() if self.one_row else self.storage

    def _check_tensors(self, found: Any, path: str, dtype_for: Callable[[Tensor], torch.dtype] | None) -> None:
        """Check the tensors of a row, or of a point if no types are given: it has those of the parameters."""
        own = dict(zip(self.objective.names, self.objective.model_parameters, strict=True))
        if not isinstance(found, dict):
            raise StateMismatch(f"{path} must be a dict by parameter name, found {type(found).__name__}")
        missing = (
            sorted(set(own) - set(found)) if dtype_for is None else []
        )  # a row has only what its objective reaches
        unknown = sorted(map(str, set(found) - set(own)))
        if missing or unknown:
            raise StateMismatch(f"{path} has no entry for {missing} and unknown entries {unknown}")
        for name, tensor in found.items():
            shape = list(tensor.shape) if isinstance(tensor, Tensor) else repr(tensor)
            if shape != list(own[name].shape):
                raise StateMismatch(f"{path}[{name!r}] has shape {shape}, the model has {list(own[name].shape)}")
            needed = own[name].dtype if dtype_for is None else dtype_for(own[name])
            if tensor.dtype != needed:
                raise StateMismatch(f"{path}[{name!r}] is of {tensor.dtype}, this model needs {needed}")
