"""What must be the same in all processes before they make a step together, and the error that says where it is not."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from stimulus_moo._engine.store import Store
from stimulus_moo.errors import RankMismatch
from stimulus_moo.estimators import Update

Fingerprint = dict[str, str]


def fingerprint_of(store: Store, update: Update, step: int) -> Fingerprint:
    """Return by name what must be the same in all processes: parameters with their values, the step and its update."""
    objective = store.objective
    anchor = "no anchor" if update.anchor is None else update.anchor.kind
    about = {
        "the step": str(step),
        "the estimator's update": f"{update.keep} {update.now} {update.before} {anchor}",
        "the order of the parameters": ", ".join(objective.names),
        "the kind of rows": f"{type(store.reducer).__name__} of {store.storage.dtype or 'the type of the parameters'}",
        "what the estimator keeps": f"{store.rows is not None} {store.previous is not None} {store.layout}",
    }
    for name, parameter, decisive in zip(objective.names, objective.parameters, objective.decisive, strict=True):
        kind = f"{list(parameter.shape)} of {parameter.dtype}{'' if decisive else ', not shared'}"
        about[f"parameter {name!r}"] = f"{kind} with values {_fingerprint(parameter)}"
    return about


def structure_of(batch: Any) -> Fingerprint | None:
    """Return what a batch must have in common with those of the other processes; None where there is none."""
    if batch is None:
        return None
    leaves, structure = tree_flatten(batch)
    kinds = [f"{leaf.dim()}-d {leaf.dtype}" if isinstance(leaf, Tensor) else type(leaf).__name__ for leaf in leaves]
    return {"the structure of the batch": f"{structure} of {', '.join(kinds)}"}


def mismatch(fingerprints: Sequence[Fingerprint], ranks: Sequence[int], step: int) -> RankMismatch:
    """Return the error for the first of these ranks that differs from the first one."""
    expected = fingerprints[ranks[0]]
    for rank in ranks[1:]:
        for name in [*expected, *fingerprints[rank]]:
            first, other = expected.get(name, "missing"), fingerprints[rank].get(name, "missing")
            if first != other:
                return RankMismatch(
                    f"before step {step}: {name} is {other} on rank {rank} and {first} on rank {ranks[0]}; build the "
                    "same model from the same seed (or load the same state) on every rank, and let all batches have "
                    "one structure"
                )
    raise AssertionError("their digests differ")


def digest(fingerprint: Fingerprint | None) -> tuple[int, int]:
    """Return two numbers that stand for a fingerprint; zeros for none."""
    if fingerprint is None:
        return 0, 0
    code = hashlib.sha256(repr(sorted(fingerprint.items())).encode()).digest()
    return 1 + int.from_bytes(code[:7], "little"), int.from_bytes(code[7:14], "little")


def _fingerprint(parameter: Tensor) -> str:
    """Return a short code for a tensor's values, bit for bit."""
    values = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(values.data, digest_size=6).hexdigest()
