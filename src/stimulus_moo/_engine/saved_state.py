"""The ``state_dict`` of a MultiGradient: saved, checked and loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stimulus_moo._engine.differentiation import ENGINES
from stimulus_moo._engine.interrupts import DeferredInterrupts
from stimulus_moo.errors import StateMismatch
from stimulus_moo.state import Stateful

if TYPE_CHECKING:
    from stimulus_moo._engine.proposal import Proposal
    from stimulus_moo.multigradient import MultiGradient

VERSION = 5
_COUNTS = ("step", "samples", "gradients", "passes", "skipped", "skipped_in_a_row")
_ENTRIES = {
    *_COUNTS,
    *("kind", "version", "objectives", "names", "engine", "rows", "previous", "layout", "estimator", "weighting"),
    "reweigh",
    *("weights", "sq_norm", "losses"),
}


def save(mg: MultiGradient) -> dict[str, Any]:
    """Return the state of the last committed step: with an open proposal, that after discarding it."""
    proposal = mg.proposal if mg.proposal is not None and mg.proposal.open else None
    return {
        "kind": "MultiGradient",
        "version": VERSION,
        "step": mg.t,
        "samples": mg.samples,
        "gradients": mg.gradients,
        "passes": mg.passes,
        "skipped": mg.policy.total,
        "skipped_in_a_row": mg.policy.in_a_row,
        "objectives": mg.objective.count,
        "names": _names(mg),
        "engine": mg.store.engine.name,
        "rows": [] if proposal is not None and proposal.overwrites else mg.rows(),
        "previous": mg.store.saved_point(),
        "layout": mg.store.saved_layout(),
        "estimator": _state(mg.estimator, proposal),
        "weighting": _state(mg.weighting, proposal),
        "reweigh": None if mg.reweigh is None else _state(mg.reweigh, proposal),
        "weights": None if mg.weights is None else mg.weights.clone(),
        "sq_norm": mg.sq_norm,
        "losses": None if mg.store.loss_values is None else mg.store.loss_values.clone(),
    }


def _state(part: Stateful, proposal: Proposal | None) -> dict[str, Any]:
    return part.state_dict() if proposal is None else proposal.state_before(part)


def check(mg: MultiGradient, state: Any, path: str) -> None:
    """Raise StateMismatch if ``state`` does not fit, naming the entry and the parameter."""
    if not isinstance(state, dict) or set(state) != _ENTRIES or state["kind"] != "MultiGradient":
        found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise StateMismatch(f"the state of {path} must be a dict with {sorted(_ENTRIES)}, found {found}")
    if not isinstance(state["version"], int) or state["version"] != VERSION:
        raise StateMismatch(f"{path}.version is {state['version']!r}; this version of the library reads {VERSION}")
    count, objectives = mg.objective.count, state["objectives"]
    if count is not None and _is_count(objectives) and objectives != count:
        raise StateMismatch(f"{path}.objectives is {objectives}, this model has {count}")
    needed = {name: ("a count", _is_count(state[name])) for name in _COUNTS}
    needed["engine"] = (f"one of {ENGINES}", isinstance(state["engine"], str) and state["engine"] in ENGINES)
    counted = _is_count(objectives) and objectives >= 1
    needed["objectives"] = ("a positive integer or None", objectives is None or counted)
    needed["names"] = (
        "empty or one string per objective, or None before the first step",
        _are_names(state["names"], objectives),
    )
    for name in ("weights", "losses"):
        needed[name] = (f"{objectives} numbers of torch.float64", _is_vector(state[name], objectives))
    length = state["sq_norm"]
    needed["sq_norm"] = ("a number or None", length is None or (isinstance(length, float) and not length < 0))
    for name, (kind, right) in needed.items():
        if not right:
            raise StateMismatch(f"{path}.{name} must be {kind}, found {state[name]!r}")
    names, own = state["names"], _names(mg)
    if names is not None and own is not None and sorted(names) != sorted(own):
        raise StateMismatch(f"{path}.names is {names}, the losses of this object are {own}")
    mg.store.check(objectives, state["rows"], state["previous"], state["layout"], path)
    mg.estimator.check_state(state["estimator"], f"{path}.estimator")
    mg.weighting.check_state(state["weighting"], f"{path}.weighting")
    if (mg.reweigh is None) != (state["reweigh"] is None):
        made = "with" if state["reweigh"] is not None else "without"
        raise StateMismatch(f"{path}.reweigh was saved {made} kept weights; pass the same reweigh as when it was saved")
    if mg.reweigh is not None:
        mg.reweigh.check_state(state["reweigh"], f"{path}.reweigh")
    _check_sizes(state, objectives, path)


def _check_sizes(state: dict[str, Any], objectives: int | None, path: str) -> None:
    """Raise StateMismatch where a tensor or list with an entry per objective has another length."""
    inner, shapes = state["weighting"], {"previous": 1, "losses": 1, "gramian": 2}
    while isinstance(inner, dict):  # a weighting may hold another one
        for name, dimensions in shapes.items():
            found = inner.get(name)
            if isinstance(found, Tensor) and found.shape != (objectives,) * dimensions:
                where, needed = f"{path}.weighting.{name}", [objectives] * dimensions
                raise StateMismatch(f"{where} must have the shape {needed}, found shape {list(found.shape)}")
        inner = inner.get("weighting")
    for name, value in (state["reweigh"] or {}).items():
        if isinstance(value, list) and len(value) != objectives:
            raise StateMismatch(f"{path}.reweigh.{name} must have {objectives} numbers, found {len(value)}")


def _names(mg: MultiGradient) -> list[str] | None:
    """Return the names of the losses in the order of the rows; None before the first step is committed."""
    return None if mg.objective.count is None else list(mg.objective.loss_names or ())


def _are_names(names: Any, objectives: int | None) -> bool:
    if names is None or names == []:
        return names is not None or objectives is None
    return isinstance(names, list) and len(names) == objectives and all(isinstance(name, str) for name in names)


def _is_vector(value: Any, objectives: Any) -> bool:
    fits = isinstance(value, Tensor) and value.shape == (objectives,) and value.dtype == torch.float64
    return value is None or fits


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_for_current_model(mg: MultiGradient, state: Any, path: str) -> None:
    """As ``check``, for the model as it is now: parameters may have been frozen since the last step."""
    if mg.objective.unchanged():
        check(mg, state, path)
        return
    adopted, store = dict(mg.objective.__dict__), mg.store
    with DeferredInterrupts():
        try:
            mg.adopt()
            check(mg, state, path)
        finally:
            mg.objective.__dict__.update(adopted)
            mg.store = store


def load(mg: MultiGradient, state: dict[str, Any]) -> None:
    mg.store.load(state["rows"], state["previous"], state["layout"])
    mg.t, mg.samples, mg.gradients, mg.passes = (state[name] for name in _COUNTS[:4])
    mg.policy.total, mg.policy.in_a_row = state["skipped"], state["skipped_in_a_row"]
    mg.objective.count = state["objectives"]
    mg.objective.loss_names = None if state["names"] is None else tuple(state["names"])  # the order of the rows
    mg.store.engine.resume(state["engine"])
    mg.weights = None if state["weights"] is None else state["weights"].detach().double().cpu().clone()
    mg.sq_norm = state["sq_norm"]
    mg.store.loss_values = None if state["losses"] is None else state["losses"].detach().clone()
    mg.estimator.load_state_dict(state["estimator"])
    mg.weighting.load_state_dict(state["weighting"])
    if mg.reweigh is not None:
        mg.reweigh.load_state_dict(state["reweigh"])
