"""What must be the same in all processes before they make a step together."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten

from stimulus_moo._engine.store import Store
from stimulus_moo.errors import RankMismatch
from stimulus_moo.estimators import Update

Fingerprint = dict[str, str]


def fingerprint_of(store: Store, update: Update, step: int) -> Fingerprint:
    """Return by name what must be the same in all processes: the step, its update, and the parameters' values."""
    objective = store.objective
    anchor = "no anchor" if update.anchor is None else update.anchor.kind
    about = {
        "the step": str(step),
        "the estimator's update": f"{update.keep} {update.now} {update.before} {anchor}",
        "the order of the parameters": ", ".join(objective.names),
        "the kind of rows": f"{type(store.reducer).__name__} of {store.storage.dtype or 'the type of the parameters'}",
        "whether counts are given": str(objective.counts is not None),
        "what the estimator keeps": f"{store.rows is not None} {store.previous is not None} {store.layout}",
    }
    own = zip(objective.names, objective.model_parameters, objective.decisive, strict=True)
    for name, parameter, decisive in own:
        kind = f"{list(parameter.shape)} of {parameter.dtype}{'' if decisive else ', not shared'}"
        about[f"parameter {name!r}"] = f"{kind} with values {objective.placement.digest(parameter)}"
    return about


def structure_of(batch: Any) -> Fingerprint:
    """Return what a batch must have in common with those of the other processes; nothing where there is none."""
    if batch is None:
        return {}
    leaves, structure = tree_flatten(batch)
    kinds = [f"{leaf.dim()}-d {leaf.dtype}" if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves]
    return {"the structure of the batch": f"{structure} of {', '.join(kinds)}"}


def require_same(found: Sequence[Fingerprint], step: int) -> None:
    """Raise RankMismatch for the first entry in which two processes differ; an entry may be missing in some."""
    first: dict[str, tuple[int, str]] = {}
    for rank, fingerprint in enumerate(found):
        for name, value in fingerprint.items():
            other, expected = first.setdefault(name, (rank, value))
            if value != expected:
                raise RankMismatch(
                    f"before step {step}: {name} is {value} on rank {rank} and {expected} on rank {other}; build the "
                    "same model from the same seed (or load the same state) on every rank, and let all batches have "
                    "one structure"
                )
