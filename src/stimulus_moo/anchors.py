"""Anchors: the batches over which an estimator takes its accurate gradient, all of the data or an adaptive draw."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.batches import require_batches
from stimulus_moo.errors import InvalidBatch, InvalidOption
from stimulus_moo.options import positive_integer, real, seed_number
from stimulus_moo.sources import Collate, Source, Stream, as_source
from stimulus_moo.state import Stateful

_MOST_BATCHES = 1 << 16  # of an anchor without a length
_PIECES = 4  # an anchor that estimates sigma^2 is evaluated in at least this many pieces, where it has the samples


class Anchor(Stateful, ABC):
    """What an anchor step evaluates, and what it learns from it."""

    #: whether ``observe`` wants the norms of each piece's gradients
    estimates_variance = False

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """Yield the batches of one anchor step."""

    def observe(self, size: int, piece: Tensor, total: Callable[[], Tensor]) -> None:
        """Learn from one evaluated piece: its size m, ||g^s||^2, and a way to ask for ||sum of m g^s so far||^2."""

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Learn from a finished step: ||d_t||^2, and whether it was an anchor."""


class FullAnchor(Anchor):
    """Every batch of an iterable that can be iterated again, such as a DataLoader over the whole data set.

    One that does not say how long it is may give 65,536 batches; beyond that it is taken for endless.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable

    def batches(self) -> Iterator[Any]:
        """Yield all batches.

        Raises:
            InvalidBatch: there seems to be no end of them.
        """
        most = math.inf if isinstance(self.iterable, Sized) else _MOST_BATCHES
        for count, batch in enumerate(self.iterable):
            if count == most:
                raise InvalidBatch(
                    f"the anchor has given {count} batches and does not say how many it has: it may be endless; pass "
                    "AdaptiveBatch(stream, ...) for a stream, or give a finite anchor a __len__"
                )
            yield batch


class FullPass:
    """A finite source in runs of ``batch_size`` samples: the re-iterable anchor ``fit`` uses."""

    def __init__(self, source: Source, batch_size: int) -> None:
        self.source = source
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        return self.source.spans(self.batch_size)


class AdaptiveBatch(Anchor):
    r"""The adaptive anchor of STIMULUS+ and STIMULUS-M+ (STIMULUS, eq. 5).

    .. code-block:: text

        |N| = ceil(min{ c_gamma sigma^2 / gamma_t,  c_epsilon sigma^2 / epsilon,  n })       drawn without replacement
        gamma_{t+1} = (1/q) sum_i ||d_i||^2                   over the q iterations i since the last anchor, it included
        gamma_{t+1} = (1/q) sum_i ||alpha^(t-i) d_i||^2       with momentum alpha > 0

    There is no gamma before the first anchor: its term drops out then. For an endless stream n is infinite.

    Args:
        dataset: tensors in memory, a map-style data set, or an endless iterable of samples.
        epsilon: the accuracy ||d||^2 aimed at, > 0.
        sigma2: bound on the variance of one sample's gradient, or ``"auto"``: the variance between the pieces of the
            last anchor, the largest over the objectives. The first anchor starts with a pilot of ``micro_batch``
            samples (at least 4), which is part of the draw; every anchor has at least two samples, so that an estimate
            of zero is not the last one.
        c_gamma, c_epsilon: the paper's constants; theory asks c_gamma >= 8 and c_epsilon >= lr.
        momentum: alpha of the heavy-ball step, for the momentum variant's gamma.
        micro_batch: samples per batch handed on.
        seed: of the draw.
        collate_fn: for map-style data sets and streams.

    >>> import torch
    >>> from stimulus_moo import AdaptiveBatch
    >>> anchor = AdaptiveBatch((torch.randn(1000, 3), torch.randn(1000)), epsilon=0.1, sigma2=2.0)
    >>> anchor.size()
    20
    """

    state_names = ("generator", "window", "terms", "variance", "source_state")
    optional_names = MappingProxyType({"variance": float})

    def __init__(
        self,
        dataset: Any,
        *,
        epsilon: float,
        sigma2: float | str = "auto",
        c_gamma: float = 8.0,
        c_epsilon: float = 1.0,
        momentum: float = 0.0,
        micro_batch: int = 256,
        seed: int = 0,
        collate_fn: Collate | None = None,
    ) -> None:
        self.source = as_source(dataset, collate_fn)
        self.epsilon = real("epsilon", epsilon, low=0.0, open_low=True)
        self.estimates_variance = isinstance(sigma2, str)
        if isinstance(sigma2, str) and sigma2 != "auto":
            raise InvalidOption(f"sigma2 must be a number >= 0 or 'auto', found {sigma2!r}")
        #: sigma^2, given or estimated; None while nothing is known
        self.variance = None if isinstance(sigma2, str) else real("sigma2", sigma2, low=0.0)
        self.c_gamma = real("c_gamma", c_gamma, low=0.0, open_low=True)
        self.c_epsilon = real("c_epsilon", c_epsilon, low=0.0, open_low=True)
        self.momentum = real("momentum", momentum, low=0.0)
        if self.momentum >= 1.0:
            raise InvalidOption(f"momentum must lie in [0, 1), found {momentum!r}")
        self.micro_batch = positive_integer("micro_batch", micro_batch)
        self.generator = torch.Generator().manual_seed(seed_number(seed))
        self.window = 0.0  # sum over i of ||alpha^(t-i) d_i||^2 since the last anchor
        self.terms = 0  # q, the number of terms in the window
        self._spread = _Spread()

    @property
    def source_state(self) -> int:
        """How far a stream has been read; 0 for a finite data set."""
        return self.source.consumed if isinstance(self.source, Stream) else 0

    @source_state.setter
    def source_state(self, consumed: int) -> None:
        if isinstance(self.source, Stream):
            self.source.consumed = consumed

    @property
    def gamma(self) -> float | None:
        """gamma_t, or None before the first step."""
        return self.window / self.terms if self.terms else None

    def size(self) -> int:
        """Return ``|N|`` for an anchor taken now (the pilot's size while sigma^2 is unknown)."""
        n = math.inf if isinstance(self.source, Stream) else len(self.source)
        if self.variance is None:
            return int(min(n, max(self.micro_batch, _PIECES)))
        bounds = [self.c_epsilon * self.variance / self.epsilon, n]
        if self.gamma:
            bounds.append(self.c_gamma * self.variance / self.gamma)
        least = min(n, 2) if self.estimates_variance else 1
        return math.ceil(max(least, min(bounds)))

    def batches(self) -> Iterator[Any]:
        """Draw |N| samples and yield them piece by piece; a pilot decides |N| when sigma^2 is not known yet."""
        self._spread = _Spread()
        order = None if isinstance(self.source, Stream) else torch.randperm(len(self.source), generator=self.generator)
        drawn = 0
        for _ in range(2 if self.variance is None else 1):
            target = self.size()
            piece = min(self.micro_batch, math.ceil(target / _PIECES)) if self.estimates_variance else self.micro_batch
            while drawn < target:
                count = min(piece, target - drawn)
                if isinstance(self.source, Stream):
                    yield self.source.take(count)
                else:
                    assert order is not None
                    yield self.source.take(order[drawn : drawn + count])
                drawn += count
            self._estimate()
        self._spread = _Spread()  # let go of the rows it could ask

    def observe(self, size: int, piece: Tensor, total: Callable[[], Tensor]) -> None:
        """Collect the spread between pieces."""
        self._spread.add(size, piece, total)

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Move the window of gamma on."""
        if anchored:
            self.window, self.terms = 0.0, 0
        decay = self.momentum**2 if self.momentum else 1.0
        self.window = decay * self.window + sq_norm
        self.terms += 1

    def _estimate(self) -> None:
        estimate = self._spread.variance() if self.estimates_variance else None
        if estimate is not None:
            self.variance = estimate


class _Spread:
    """Per-sample variance from the means of pieces: E[m ||g_piece - g||^2] = sigma^2 whatever the piece's size m."""

    def __init__(self) -> None:
        self.pieces = 0
        self.samples = 0
        self.weighted: Tensor | float = 0.0  # sum of m ||g||^2 over the pieces
        self.total: Callable[[], Tensor] | None = None  # gives ||sum of m g||^2; a pass over all rows, so asked late

    def add(self, size: int, piece: Tensor, total: Callable[[], Tensor]) -> None:
        self.pieces += 1
        self.samples += size
        self.weighted = self.weighted + size * piece
        self.total = total

    def variance(self) -> float | None:
        if self.pieces < 2 or self.total is None:
            return None
        spread = (torch.as_tensor(self.weighted) - self.total() / self.samples) / (self.pieces - 1)
        return max(0.0, float(spread.max()))


def as_anchor(anchor: Any) -> Anchor:
    """Return an Anchor, taking any iterable that can be iterated again.

    Raises:
        InvalidOption: it cannot be iterated, or only once.
    """
    if isinstance(anchor, Anchor):
        return anchor
    require_batches("anchor", anchor, again=True)
    return FullAnchor(anchor)
