"""The random streams of a run: one seed, and for every purpose a stream of its own.

Batches come from numpy's PCG64, keyed by seed, purpose and epoch through ``SeedSequence``, which is made to give
independent streams. What the user may also build alone (``AdaptiveBatch``, ``Page``, ``RandomClock``) takes a seed for
a ``torch.Generator``. Of such a seed torch uses 32 bits, so two of them carry the purpose: no two purposes of a run
can ever have the same seed.
"""

import numpy as np
import torch
from torch import Tensor

#: what has a stream; the order decides the numbers, so new purposes are added at the end
PURPOSES = ("batches", "anchor", "coin", "clock")


def permutation(seed: int, purpose: str, index: int, size: int) -> Tensor:
    """Return a random order of ``size`` items, the ``index``-th of its stream.

    >>> permutation(0, "batches", 0, 5).tolist() == permutation(0, "batches", 0, 5).tolist()
    True
    """
    return torch.from_numpy(np.random.Generator(np.random.PCG64(_sequence(seed, purpose, index))).permutation(size))


def stream_seed(seed: int, purpose: str) -> int:
    """Return the seed of a ``torch.Generator`` for one purpose of a run.

    >>> len({stream_seed(0, purpose) for purpose in PURPOSES})
    4
    """
    mixed = int(_sequence(seed, purpose).generate_state(1, np.uint32)[0])
    return mixed & ~3 | PURPOSES.index(purpose)


def _sequence(seed: int, purpose: str, *index: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose), *index))
