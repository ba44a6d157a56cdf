"""The adaptive anchor of STIMULUS+ and STIMULUS-M+: its size follows the gradients of the last steps."""

import math
from collections.abc import Generator, Iterator
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from stimulus_moo.anchors.base import Anchor, Tally
from stimulus_moo.anchors.variance import CLIP, Place, Spread
from stimulus_moo.data.partition import ALL, Partition
from stimulus_moo.data.sources import Collate, as_source
from stimulus_moo.errors import InvalidOption
from stimulus_moo.options import positive_integer, real, seed_number

_PIECES = 4  # an anchor that estimates sigma^2 is evaluated in at least this many pieces, if it has enough samples


class AdaptiveBatch(Anchor):
    r"""The adaptive anchor of STIMULUS+ and STIMULUS-M+ (STIMULUS, eq. 5).

    .. code-block:: text

        |N| = ceil(min{ c_gamma sigma^2 / gamma_t,  c_epsilon sigma^2 / epsilon,  n })       drawn without replacement
        gamma_{t+1} = (1/q) sum_i ||d_i||^2                   over the q iterations i since the last anchor, it included
        gamma_{t+1} = (1/q) sum_i ||alpha^(t-i) d_i||^2       with momentum alpha > 0

    The first anchor has no gamma, so this term is omitted. For an endless stream n is infinite.

    Args:
        dataset: tensors in memory, a map-style data set, or an endless iterable of samples.
        epsilon: the target accuracy ||d||^2 > 0. ``"auto"`` omits its term, so the first anchor is only the pilot.
        sigma2: bound on the variance of one sample's gradient. ``"auto"`` estimates it for the lambda-weighted sum of
            the gradients from the last anchor (see ``Spread``), and from the batches with ``Recursive(period="auto")``.
            The first anchor starts with a pilot of ``micro_batch`` samples (at least 4), part of the draw. Every anchor
            has at least two samples, so that an estimate of zero can recover.
        c_gamma, c_epsilon: the paper's constants; the theory requires c_gamma >= 8 and c_epsilon >= lr.
        momentum: alpha of the heavy-ball step, for gamma.
        micro_batch, seed: samples per evaluated batch, and the seed of the draw.
        collate_fn: for map-style data sets and streams.

    >>> import torch
    >>> from stimulus_moo import AdaptiveBatch
    >>> anchor = AdaptiveBatch((torch.randn(1000, 3), torch.randn(1000)), epsilon=0.1, sigma2=2.0)
    >>> anchor.size()
    20
    """

    state_names = ("generator", "window", "terms", "variance", "consumed")
    optional_names = MappingProxyType({"variance": float})
    count_names, amount_names = ("terms", "consumed"), ("window", "variance")
    adapts = True

    def __init__(
        self,
        dataset: Any,
        *,
        epsilon: float | str,
        sigma2: float | str = "auto",
        c_gamma: float = 8.0,
        c_epsilon: float = 1.0,
        momentum: float = 0.0,
        micro_batch: int = 256,
        seed: int = 0,
        collate_fn: Collate | None = None,
    ) -> None:
        self.source = as_source(dataset, collate_fn)
        for name, value, bound in (("epsilon", epsilon, "> 0"), ("sigma2", sigma2, ">= 0")):
            if isinstance(value, str) and value != "auto":
                raise InvalidOption(f"{name} must be a number {bound} or 'auto', found {value!r}")
        if isinstance(epsilon, str) and not self.source.finite:
            raise InvalidOption("epsilon='auto' needs a data set with an end, found a stream; pass a number as epsilon")
        self.epsilon = None if isinstance(epsilon, str) else real("epsilon", epsilon, low=0.0, open_low=True)
        self.estimates_variance = isinstance(sigma2, str)
        # sigma^2, given or estimated; None while it is unknown
        self.variance = None if isinstance(sigma2, str) else real("sigma2", sigma2, low=0.0)
        self.c_gamma = real("c_gamma", c_gamma, low=0.0, open_low=True)
        self.c_epsilon = real("c_epsilon", c_epsilon, low=0.0, open_low=True)
        self.momentum = real("momentum", momentum, low=0.0, high=1.0, open_high=True)
        self.micro_batch = positive_integer("micro_batch", micro_batch)
        self.generator = torch.Generator().manual_seed(seed_number(seed))
        self.window = 0.0  # sum over i of ||alpha^(t-i) d_i||^2 since the last anchor
        self.terms = 0  # q, the number of terms in the window

    @property
    def consumed(self) -> int:
        """Number of samples read from a stream; 0 for a finite data set."""
        return self.source.consumed

    @consumed.setter
    def consumed(self, samples: int) -> None:
        self.source.consumed = samples

    @property
    def repeats(self) -> bool:
        """Whether the draw is known beforehand: it is not while a pilot decides its size, nor from a stream."""
        return self.source.finite and self.variance is not None

    @property
    def gamma(self) -> float | None:
        """gamma_t, or None before the first step."""
        return self.window / self.terms if self.terms else None

    def size(self) -> int:
        """Return ``|N|`` for an anchor taken now, or the size of the pilot while sigma^2 is unknown."""
        n = len(self.source) if self.source.finite else math.inf
        if self.variance is None or (self.epsilon is None and self.gamma is None):
            return int(min(n, max(self.micro_batch, _PIECES)))
        by_epsilon = math.inf if self.epsilon is None else self.c_epsilon * self.variance / self.epsilon
        by_gamma = self.c_gamma * self.variance / self.gamma if self.gamma else math.inf
        least = min(n, 2) if self.estimates_variance else 1
        return math.ceil(max(least, min(n, by_epsilon, by_gamma)))

    def batches(self, partition: Partition = ALL, tally: Tally | None = None) -> Iterator[Any]:
        """Draw |N| samples and yield them piece by piece; a pilot determines |N| while sigma^2 is unknown.

        Every process makes the whole draw and evaluates its part of it: whole pairs of pieces if sigma^2 is estimated,
        so that the estimate is that of a single process, else a part of every piece.
        """
        self.spread = Spread()
        order = self.source.shuffled(self.generator)
        drawn = pairs = 0
        if self.variance is None:
            drawn = self.size()
            pairs = yield from self._pieces(order, 0, drawn, 0, partition)
            if tally is not None:
                self.learn(tally(self.spread))
        yield from self._pieces(order, drawn, self.size(), pairs, partition)

    def learn(self, spread: Spread) -> None:
        """Estimate sigma^2 unless it was given."""
        if self.estimates_variance:
            estimate = spread.variance()
            self.variance = self.variance if estimate is None else estimate

    def observe(self, variance: float) -> None:
        """Update an estimated sigma^2."""
        if self.estimates_variance and self.variance is not None:
            found = min(variance, CLIP * self.variance) if self.variance else variance
            self.variance = 0.9 * self.variance + 0.1 * found

    def record(self, sq_norm: float, *, anchored: bool) -> None:
        """Update the window of gamma."""
        if anchored:
            self.window, self.terms = 0.0, 0
        decay = self.momentum**2 if self.momentum else 1.0
        self.window = decay * self.window + sq_norm
        self.terms += 1

    def _pieces(
        self, order: Tensor, drawn: int, target: int, pairs: int, partition: Partition
    ) -> Generator[Any, None, int]:
        """Yield this process's pieces of the draw, from ``drawn`` to ``target`` samples; return the number of pairs."""
        piece = min(self.micro_batch, math.ceil(target / _PIECES)) if self.estimates_variance else self.micro_batch
        starts = range(drawn, target, piece)
        for k, start in enumerate(starts):
            count = min(piece, target - start)
            mine = partition.part(count)
            if self.estimates_variance:
                mine = slice(0, count if partition.takes(k // 2) else 0)
                self.place = Place(pairs + k // 2, k % 2) if k // 2 < len(starts) // 2 else None
            batch = self.source.draw(order, start, count, mine)
            if batch is not None:
                yield batch
        return pairs + len(starts) // 2
