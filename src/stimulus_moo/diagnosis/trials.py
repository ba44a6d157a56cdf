"""Short training runs on copies of the model: each loss alone, on shuffled inputs, on the mean, and with auto."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from stimulus_moo import InvalidOption, NonFiniteError, Result, fit
from stimulus_moo._engine.loss_names import unpacked
from stimulus_moo.data.batches import rebuild, tensors
from stimulus_moo.data.sources import Columns, Source, as_source
from stimulus_moo.training.target import Alone

_MOST = 16_384  # samples in use
_HELD_OUT = 0.2
_PIECES, _EVALUATION = 16, 512  # batches of an evaluation at least, and samples per batch at most

Losses = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Split:
    """Training data, held-out batches, and the training data with shuffled inputs, or None if that is impossible."""

    train: Any
    held_out: list[Any]
    shuffled: Any
    size: int  # samples for training


def in_order(losses: Losses) -> Losses:
    """Return losses whose dicts have the order of the first one."""
    names: tuple[str, ...] | None = None

    def ordered(model: Any, batch: Any) -> Any:
        nonlocal names
        found, names = unpacked(losses(model, batch), names)
        return dict(zip(names, found, strict=True)) if names else found

    return ordered


def split(dataset: Any, seed: int) -> Split:
    """Split at most 16,384 random samples.

    Raises:
        InvalidOption: the data is a stream, or has fewer than 20 samples.
    """
    source = as_source(dataset)
    if not source.finite or len(source) < 20:
        found = f"{len(source)} samples" if source.finite else "a stream"
        raise InvalidOption(f"data must be a data set of at least 20 samples, found {found}; pass some of the samples")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(source), generator=generator)[:_MOST]
    held = max(1, int(_HELD_OUT * len(order)))
    held_out, train = order[:held], order[held:]
    piece = min(max(held // _PIECES, 1), _EVALUATION)
    batches = [source.take(part) for part in held_out.split(piece) if len(part) == piece]
    return Split(_part(dataset, source, train), batches, _shuffled(source, train, generator), len(train))


def _part(dataset: Any, source: Source, rows: Tensor) -> Any:
    return source.take(rows) if isinstance(source, Columns) else Subset(dataset, rows.tolist())


def _shuffled(source: Source, rows: Tensor, generator: torch.Generator) -> Any:
    """Return the samples with the first tensor, the inputs, in another order than the rest."""
    if not isinstance(source, Columns):
        return None
    whole = source.take(rows)
    leaves = list(tensors(whole))
    if len(leaves) < 2:
        return None
    first, order = leaves[0], torch.randperm(len(rows), generator=generator)
    return rebuild(whole, lambda leaf: leaf[order] if leaf is first else leaf)


@dataclass
class Trials:
    """Runs with the same number of steps, from the same model, evaluated on held-out data.

    Attributes:
        model, losses, counts: as for ``diagnose``; the model is copied for each run.
        data: the split.
        options: further options of ``fit``.
        shared: names of the parameters that determine the weights; None for all.
    """

    model: nn.Module
    losses: Losses
    counts: Callable[[Any], Any] | None
    data: Split
    options: dict[str, Any]
    shared: list[str] | None = None
    auto: Result | None = field(default=None, init=False)  # of the last run with all losses and method auto

    def held_out(self, model: nn.Module) -> Tensor:
        """Return the losses on held-out data, one row per batch; NaN where a batch has no label."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # dropout
            return torch.stack([self._losses(model, batch) for batch in self.data.held_out])

    def _losses(self, model: nn.Module, batch: Any) -> Tensor:
        found = self.losses(model, batch)
        values = list(found.values()) if isinstance(found, dict) else list(found)
        losses = torch.stack([value.detach().double().cpu() for value in values])
        if self.counts is None:
            return losses
        counts = torch.as_tensor(self.counts(batch), dtype=torch.float64).cpu()
        return torch.where(counts > 0, losses, torch.nan)

    def parameters(self, model: nn.Module) -> list[Tensor] | None:
        """Return the parameters of a copy that determine the weights."""
        return None if self.shared is None else [dict(model.named_parameters())[name] for name in self.shared]

    def together(self, method: str, *, points: Sequence[float] = ()) -> tuple[nn.Module | None, list[nn.Module]]:
        """Train on all losses; return the model, None if it diverged, and copies at shares of the run."""
        model, copies = copy.deepcopy(self.model), list[nn.Module]()
        due = [max(1, int(share * self.options["steps"])) for share in points]

        def keep(progress: Any) -> None:
            if progress.step in due:
                copies.append(copy.deepcopy(progress.model))

        own = {"method": method, "shared": self.parameters(model), "counts": self.counts, "callbacks": [keep]}
        result = self._fit(model, self.losses, self.data.train, own)
        if method == "auto":
            self.auto = result
        return (None if result is None else model), copies

    def alone(self, s: int) -> Tensor:
        """Return the held-out losses, one per batch, of a model trained on one loss; NaN if it diverged."""
        model = copy.deepcopy(self.model)
        own = {"weighting": Alone(s), "counts": self.counts}
        result = self._fit(model, self.losses, self.data.train, own)
        return torch.full((len(self.data.held_out),), math.nan) if result is None else self.held_out(model)[:, s]

    def without_inputs(self) -> Tensor | None:
        """Return the held-out losses after training with shuffled inputs, which teaches nothing but means."""
        if self.data.shuffled is None:
            return None
        model = copy.deepcopy(self.model)
        own = {"method": "auto", "shared": self.parameters(model), "counts": self.counts}
        return None if self._fit(model, self.losses, self.data.shuffled, own) is None else self.held_out(model)

    def depends_on_pairing(self) -> list[bool]:
        """Return for every loss whether shuffled inputs change it; a penalty on weights, say, does not change."""
        if self.data.shuffled is None:
            return []
        found = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for data in (self.data.train, self.data.shuffled):
                torch.manual_seed(0)  # dropout
                batch = as_source(data).span(0, min(_EVALUATION, self.data.size))
                found.append(self._losses(copy.deepcopy(self.model), batch))
        return [bool(abs(a - b) > 1e-9 * abs(a)) for a, b in zip(*found, strict=True)]

    def _fit(self, model: nn.Module, losses: Losses, data: Any, own: dict[str, Any]) -> Result | None:
        nothing = [self.data.held_out[0]]  # evaluated here instead
        try:
            return fit(model, losses, data, evaluation=nothing, progress=False, check=False, **self.options, **own)
        except NonFiniteError:
            return None
