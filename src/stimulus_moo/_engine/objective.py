"""The user's ``losses(model, batch)``: checked, evaluated in pieces; between the batch and the estimator."""

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from stimulus_moo._engine.counts import Counts, check_function, checked_counts, require_finite
from stimulus_moo._engine.flat import Gradients, overwritten
from stimulus_moo._engine.hooks import noticing_retain_grad, registered
from stimulus_moo._engine.loss_names import label, unpacked
from stimulus_moo._engine.module_tree import ModuleTree
from stimulus_moo._engine.nonfinite import non_finite_loss
from stimulus_moo._engine.norms import distance
from stimulus_moo._engine.placement import find_placement, reaches_nothing
from stimulus_moo._engine.precompiled import forget_compiled, gives_buffers_away, is_compiled, keep_buffers, plain_name
from stimulus_moo._engine.replay import Snapshot
from stimulus_moo.data.batches import leading_size, split, tensors
from stimulus_moo.errors import InvalidBatch, InvalidLosses, InvalidOption
from stimulus_moo.options import positive_integer

Losses = Callable[[Any, Any], Sequence[Tensor] | Mapping[str, Tensor] | Tensor]


@dataclass(eq=False)
class Evaluated:
    """One forward pass: the S losses as numbers, and with their graphs; were hooks registered meanwhile?"""

    losses: Tensor
    vector: Tensor  # with its graph
    single: list[Tensor] | None  # the same as single losses, if they are known already
    hooked: bool = False

    @property
    def graphs(self) -> list[Tensor]:
        """The losses, each with its graph; a step on one loss needs none of them."""
        if self.single is None:
            with torch.enable_grad():
                self.single = list(self.vector)
        return self.single

    def present(self, counts: Sequence[float] | None) -> Sequence[Tensor | None]:
        """Return the graphs, without those whose count is 0."""
        return self.graphs if counts is None else [g if c else None for g, c in zip(self.graphs, counts, strict=True)]


class Objective:
    """S objectives of one model, evaluated wherever the parameters stand."""

    def __init__(
        self,
        model: torch.nn.Module,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        micro_batch: int | None = None,
        batch_size: Callable[[Any], int] | None = None,
        counts: Counts | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise InvalidOption(f"model must be a torch.nn.Module, found {type(model).__name__}")
        if not callable(losses):
            raise InvalidOption(f"losses must be a function of (model, batch), found {losses!r}")
        if batch_size is not None and not callable(batch_size):
            raise InvalidOption(f"batch_size must be a function from a batch to its size, found {batch_size!r}")
        check_function(counts)
        self.model = model
        self.placement = find_placement(model)
        self.losses = losses
        self.counts = counts  # None: every loss is a mean over the whole batch
        self.micro_batch = None if micro_batch is None else positive_integer("micro_batch", micro_batch)
        self.batch_size = batch_size
        if shared is not None and (not isinstance(shared, Iterable) or isinstance(shared, Tensor)):
            kind = type(shared).__name__
            raise InvalidOption(f"shared must be an iterable of parameters, say model.trunk.parameters(), found {kind}")
        self.shared = None if shared is None else list(shared)
        self.count: int | None = None  # S, known after the first step
        self.loss_names: tuple[str, ...] | None = None  # empty if losses returns no dict; None before the first step
        self.returned = 0  # how many losses the last evaluation returned
        self.tree = ModuleTree(model)
        self.adopt()

    def adopt(self) -> None:
        """Adopt the model's current trainable parameters; raise InvalidOption where they or ``shared`` do not fit."""
        trainable = {plain_name(name): p for name, p in self.model.named_parameters() if p.requires_grad}
        if not trainable:
            raise InvalidOption("model must have at least one parameter with requires_grad=True, found none")
        for name, parameter in trainable.items():
            if is_lazy(parameter):
                raise InvalidOption(
                    f"parameters must be initialized, found {name} of a lazy module; run one forward pass first, say "
                    "model(x), so that its shape is known"
                )
            if parameter.is_meta:
                raise InvalidOption(
                    f"parameters must have values, found {name} on the meta device; call "
                    "model.to_empty(device=...), then initialize or load them"
                )
            if not parameter.dtype.is_floating_point:
                raise InvalidOption(f"parameters must be real floating point, found {name} of {parameter.dtype}")
        self.decisive = self._decisive(list(trainable.values()))  # whose gradients decide the weights
        self.names = list(trainable)
        self.model_parameters = list(trainable.values())
        self.parameters = self.placement.parts(self.model_parameters)  # what this process has of them
        self.frozen = [p for p in self.model.parameters() if not p.requires_grad]
        self.dimension = sum(parameter.numel() for parameter in self.parameters)  # P
        self._gradients: Gradients | None = None  # the memory of ``p.grad``, where it is one piece
        self.devices = {parameter.device for parameter in self.parameters}
        self.accelerators = [device for device in self.devices if device.type not in ("cpu", "meta")]
        self._signature = [(p.shape, p.dtype, p.device) for p in self.model_parameters]
        self._batch_norms = {plain_name(n): m for n, m in self.model.named_modules() if isinstance(m, _BatchNorm)}
        self.compiled = is_compiled(self.model, self.losses)  # by the user
        self.has_batch_norm = bool(self._batch_norms)
        self.narrow = any(parameter.element_size() < 4 for parameter in self.parameters)  # half precision

    def unchanged(self) -> bool:
        """Return whether the model still has the parameters that were adopted."""
        self.placement.renew()
        self.tree.update()
        current = [p for p in self.tree.parameters if p.requires_grad]
        return (
            [*map(id, current)] == [*map(id, self.model_parameters)]
            and [(p.shape, p.dtype, p.device) for p in current] == self._signature
            and self.placement.keeps(self.parameters, self.model_parameters)
        )

    def snapshot(self) -> Snapshot:
        """Return the random state and the buffers as they are now."""
        return Snapshot(self.tree.modules, self.accelerators)

    def current(self, snapshot: Snapshot) -> Snapshot:
        """Return the state from which both points of a step start: the one given, or that after numbers were drawn."""
        return snapshot if snapshot.undrawn() else self.snapshot()

    def pieces(self, batch: Any) -> list[tuple[Any, int]]:
        """Return (piece, size) for the batch cut by ``micro_batch``."""
        if self.micro_batch is None:
            return [(batch, self.size(batch))]
        return [(piece, self.size(piece)) for piece in split(batch, self.micro_batch)]

    def is_empty(self, batch: Any) -> bool:
        """Return whether a batch has no samples, which a process may bring to a step of several."""
        if self.batch_size is not None:
            return False
        first = next(tensors(batch), None)
        return first is not None and first.dim() > 0 and first.shape[0] == 0

    def size(self, batch: Any) -> int:
        size = leading_size(batch) if self.batch_size is None else self.batch_size(batch)
        if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < 1:
            raise InvalidBatch(f"a batch must hold at least one sample, found size {size!r}")
        return int(size)

    def count_labels(self, piece: Any) -> list[float]:
        """Return over how many samples each loss of a piece is a mean; raise InvalidBatch where that cannot be."""
        assert self.counts is not None
        return checked_counts(self.counts(piece), self.count)

    def evaluate(self, piece: Any, step: int, counts: Sequence[float] | None = None) -> Evaluated:
        """Run the losses on a piece where the parameters stand now; raise InvalidLosses or NonFiniteError.

        Losses whose count is 0 may have any value and any graph, unless the parameters are split: all processes then
        differentiate all losses together.
        """
        torch.clear_autocast_cache()  # low-precision copies of the weights may be of another point
        self.placement.renew()
        hooks = registered()
        first = self.count is None  # later ones are alike, and noticing takes time
        notice: AbstractContextManager[list[Tensor]] = noticing_retain_grad() if first else nullcontext([])
        with torch.enable_grad(), notice as retained:
            returned = self._run_compiled(piece) if self.compiled else self.losses(self.model, piece)
            vector, single = self._checked(returned)
        hooked, self.returned = registered() != hooks or bool(retained), len(vector)
        values = vector.detach().to(torch.promote_types(vector.dtype, torch.float32), copy=True)
        if counts is not None and len(counts) != len(values):
            raise InvalidBatch(f"counts must return one number per loss ({len(values)}), found {len(counts)}")
        if counts is not None and not self.placement.independent:
            require_finite(values, step, counts)
        if not all(map(math.isfinite, values.tolist())) and (bad := non_finite_loss(values, step, counts)) is not None:
            raise bad
        for s, loss in enumerate([vector] * len(vector) if single is None else single):
            if not loss.requires_grad and (counts is None or counts[s]):
                raise reaches_nothing(s)
        return Evaluated(values, vector, single, hooked)

    def _run_compiled(self, piece: Any) -> Any:
        """Run losses that the user has compiled; what was compiled for a single backward pass is compiled again."""
        snapshot = self.snapshot()
        with keep_buffers():
            returned = self.losses(self.model, piece)
            vector, single = self._checked(returned)
            losses = single or list(vector)
            if len(losses) > 1 and gives_buffers_away(losses):
                snapshot.restore()
                forget_compiled()
                returned = self.losses(self.model, piece)
        return returned

    def distance(self, point: Sequence[Tensor]) -> float:
        """Return the Euclidean distance of the parameters from a point."""
        return self.placement.norm(distance(self.parameters, point))

    def label(self, objective: int) -> str:
        """Return how messages call an objective."""
        return label(objective, self.loss_names or ())

    def write_gradients(self, direction: Sequence[Tensor | None], *, copy: bool = False) -> None:
        """Write one gradient per trainable parameter into ``p.grad``; frozen parameters have none.

        With ``copy``, the direction keeps its memory. An old gradient to which nobody else refers is overwritten, any
        other one is released before its successor is made.
        """
        for parameter in self.frozen:
            parameter.grad = None
        direction = self.placement.directions(direction, self.model_parameters)
        for parameter, gradient in zip(self.model_parameters, direction, strict=True):
            if copy and gradient is not None:
                if overwritten(parameter, gradient):
                    continue
                parameter.grad = None
                gradient = gradient.clone()
            parameter.grad = gradient

    def write_flat(self, direction: Tensor) -> None:
        """As ``write_gradients`` for one vector over all trainable parameters, which keeps its memory."""
        for parameter in self.frozen:
            parameter.grad = None
        if self._gradients is None or not self._gradients.write(direction, self.parameters):
            self._gradients = Gradients(direction, self.parameters)

    def batch_norms(self) -> list[str]:
        """Return the names of the BatchNorm layers that use batch statistics now."""
        return [
            name or type(module).__name__
            for name, module in self._batch_norms.items()
            if module.training or module.running_mean is None
        ]

    def _decisive(self, trainable: list[Tensor]) -> list[bool]:
        if self.shared is None:
            return [True] * len(trainable)
        own = {id(parameter) for parameter in self.model.parameters()}
        for i, parameter in enumerate(self.shared):
            if id(parameter) not in own:
                raise InvalidOption(
                    f"shared must hold parameters of the model, found {type(parameter).__name__} at position {i} that "
                    "is not one; pass for instance model.trunk.parameters()"
                )
        chosen = {id(parameter) for parameter in self.shared}
        decisive = [id(parameter) in chosen for parameter in trainable]
        if not any(decisive):
            raise InvalidOption("shared must hold at least one trainable parameter of the model, found none")
        return decisive

    def _checked(self, returned: Any) -> tuple[Tensor, list[Tensor] | None]:
        """Return the losses as one tensor, and one by one if they came so; raise InvalidLosses."""
        returned, names = unpacked(returned, None if self.count is None else self.loss_names)
        if not isinstance(returned, tuple | list) and not (isinstance(returned, Tensor) and returned.dim() == 1):
            shape = f"a tensor of shape {list(returned.shape)}" if isinstance(returned, Tensor) else None
            found = shape or type(returned).__name__
            raise InvalidLosses(
                f"losses must return S losses as a dict, a tuple or a 1-D tensor, found {found}"
                f"{'; for one objective return (loss,)' if shape else ''}"
            )
        whole = returned if isinstance(returned, Tensor) and returned.dtype.is_floating_point else None
        losses = list(returned) if whole is None else []
        for s, loss in enumerate(losses):
            if not isinstance(loss, Tensor) or loss.dim() != 0 or not loss.dtype.is_floating_point:
                found = f"shape {list(loss.shape)} of {loss.dtype}" if isinstance(loss, Tensor) else repr(loss)
                raise InvalidLosses(
                    f"{label(s, names)} must be a real 0-d tensor, the mean over the batch, found {found}"
                )
        count = len(returned)
        if not count:
            raise InvalidLosses("losses must return at least one loss, found none")
        if self.count is not None and count != self.count:
            raise InvalidLosses(f"losses returned {self.count} losses before and {count} now")
        self.loss_names = names
        return (torch.stack(losses), losses) if whole is None else (whole, None)
