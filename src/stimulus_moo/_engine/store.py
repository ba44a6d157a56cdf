"""What the ledger keeps, as plain values by parameter name: saved, checked against a model, loaded."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stimulus_moo._engine.transaction import Ledger
from stimulus_moo.errors import StateMismatch


def save_rows(ledger: Ledger) -> list[dict[str, Tensor]]:
    """Return copies of the rows by parameter name, one dict per objective; empty where none are kept."""
    rows, names = ledger.rows, ledger.objective.names
    if rows is None:
        return []
    return [{names[i]: part.clone() for i, part in rows.row(s).items()} for s in range(rows.objectives)]


def save_point(ledger: Ledger) -> dict[str, Tensor] | None:
    """Return a copy of x_{t-1} by parameter name, or None."""
    if ledger.previous is None:
        return None
    return {name: x.clone() for name, x in zip(ledger.objective.names, ledger.previous, strict=True)}


def save_layout(ledger: Ledger) -> dict[str, int]:
    """Return by parameter name the bit mask of the objectives that ever reached it; it decides how sums are rounded."""
    return dict(zip(ledger.objective.names, ledger.layout, strict=True))


def check(ledger: Ledger, objectives: int | None, rows: Any, point: Any, layout: Any, path: str) -> None:
    """Raise StateMismatch, naming the parameter, where what was saved does not fit the model."""
    if not isinstance(rows, list) or len(rows) not in (0, objectives):
        found = f"{len(rows)} rows" if isinstance(rows, list) else type(rows).__name__
        raise StateMismatch(f"{path}.rows must be a list of rows for {objectives} objectives, found {found}")
    if not isinstance(layout, dict) or set(layout) != set(ledger.objective.names):
        raise StateMismatch(f"{path}.layout must name the parameters {ledger.objective.names}, found {layout!r}")
    for name, mask in layout.items():
        if not isinstance(mask, int) or mask < 0 or mask >> (objectives or 0):
            raise StateMismatch(f"{path}.layout[{name!r}] must be a mask of {objectives} objectives, found {mask!r}")
    for s, row in enumerate(rows):
        _check_tensors(ledger, row, f"{path}.rows[{s}]", point=False)
    if point is not None:
        _check_tensors(ledger, point, f"{path}.previous", point=True)


def load(
    ledger: Ledger, rows: list[dict[str, Tensor]], point: dict[str, Tensor] | None, layout: dict[str, int]
) -> None:
    """Put checked values into the ledger."""
    ledger.clear()
    ledger.layout = [layout[name] for name in ledger.objective.names]
    parameters = dict(zip(ledger.objective.names, ledger.objective.parameters, strict=True))
    if point is not None:
        ledger.previous = [point[name].to(parameter.device, copy=True) for name, parameter in parameters.items()]
    if not rows:
        return
    ledger.rows = ledger.new_rows(len(rows))
    for s, row in enumerate(rows):
        parts = [row.get(name) for name in parameters]
        ledger.rows.load(s, parts)


def _check_tensors(ledger: Ledger, found: Any, path: str, *, point: bool) -> None:
    own = dict(zip(ledger.objective.names, ledger.objective.parameters, strict=True))
    if not isinstance(found, dict):
        raise StateMismatch(f"{path} must be a dict by parameter name, found {type(found).__name__}")
    missing = sorted(set(own) - set(found)) if point else []  # a row holds only what its objective reaches
    unknown = sorted(map(str, set(found) - set(own)))
    if missing or unknown:
        raise StateMismatch(f"{path} has no entry for {missing} and unknown entries {unknown}")
    for name, tensor in found.items():
        shape = list(tensor.shape) if isinstance(tensor, Tensor) else repr(tensor)
        if shape != list(own[name].shape):
            raise StateMismatch(f"{path}[{name!r}] has shape {shape}, the model has {list(own[name].shape)}")
        needed = own[name].dtype if point else ledger.storage.dtype_for(own[name])
        if tensor.dtype != needed:
            raise StateMismatch(f"{path}[{name!r}] is of {tensor.dtype}, this model needs {needed}")
