"""Ragged lists: rows grouped by query, and a data set whose samples are queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stimulus_moo.ranking.checks import checked_labels, checked_qid, is_sparse
from stimulus_moo.ranking.errors import InvalidRankingData

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class QueryBatch:
    """A batch of queries with concatenated documents.

    Attributes:
        lengths: documents per query; the first tensor, so that batch sizes and counters are in queries.
        features: one row per document.
        labels: one row per document, one column per label.

    >>> import torch
    >>> QueryBatch(torch.tensor([2, 1]), torch.zeros(3, 5), torch.zeros(3, 2)).lengths.tolist()
    [2, 1]
    """

    lengths: Tensor
    features: Tensor
    labels: Tensor


class Queries:
    """Grouping of rows by query, in any order.

    Queries are numbered by first appearance, and the documents of a query keep the order of their rows. Every query has
    at least one row.

    Args:
        qid: one id per row: numbers or strings, neither sorted nor contiguous.

    Attributes:
        ids: id of each query.
        lengths: number of rows of each query.
        query: query number of each row.

    >>> queries = Queries(["b", "a", "b"])
    >>> queries.ids.tolist(), queries.lengths.tolist(), queries.rows([1, 0]).tolist()
    (['b', 'a'], [2, 1], [1, 0, 2])
    """

    def __init__(self, qid: ArrayLike) -> None:
        ids, first, query, lengths = np.unique(
            checked_qid(qid), return_index=True, return_inverse=True, return_counts=True
        )
        appearance = np.argsort(first)
        number = np.empty_like(appearance)
        number[appearance] = np.arange(len(appearance))
        self.ids: NDArray[Any] = ids[appearance]
        self.lengths: IntArray = lengths[appearance]
        self.query: IntArray = number[query]
        self.starts: IntArray = np.cumsum(self.lengths) - self.lengths
        grouped = bool((np.diff(self.query) >= 0).all())
        self._order: IntArray | None = None if grouped else np.argsort(self.query, kind="stable")

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, queries: Sequence[int] | IntArray) -> IntArray:
        """Return the rows of some queries, query by query."""
        chosen = np.asarray(queries, dtype=np.int64)
        lengths = self.lengths[chosen]
        shift = self.starts[chosen] - (np.cumsum(lengths) - lengths)
        rows: IntArray = np.repeat(shift, lengths) + np.arange(lengths.sum())
        return rows if self._order is None else self._order[rows]


class QueryDataset:
    """Data set of queries for ``fit``, ``AdaptiveBatch`` or a ``DataLoader``, always with ``collate_fn=collate``.

    The feature matrix is not copied, sorted or padded: a batch gathers the rows of its queries in one indexing
    operation, and only these are converted to dense float32.

    Args:
        features: rows x features, a numpy array or a scipy CSR matrix.
        labels: rows, or rows x labels, at least 0; NaN where missing, for ``skip_missing``.
        qid: one query id per row, in any order.
        transform: function applied to a block of rows before conversion to a tensor, such as a fitted ``Scaler``.

    >>> import numpy as np
    >>> from stimulus_moo import fit
    >>> X, y, qid = np.eye(4), [0, 1, 2, 0], [3, 3, 5, 5]
    >>> data = QueryDataset(X, y, qid)
    >>> batch = data.__getitems__([1, 0])
    >>> len(data), batch.lengths.tolist(), batch.labels.flatten().tolist()
    (2, [2, 2], [2.0, 0.0, 0.0, 1.0])
    >>> from stimulus_moo.ranking import softmax_loss
    >>> model = torch.nn.Linear(4, 1, bias=False)
    >>> def losses(model, batch):
    ...     return softmax_loss(model(batch.features).squeeze(1), batch.labels, batch.lengths)
    >>> fit(model, losses, data, collate_fn=QueryDataset.collate, steps=3, batch_size=1).samples  # queries
    3
    """

    def __init__(
        self, features: Any, labels: ArrayLike, qid: ArrayLike, transform: Callable[[Any], Any] | None = None
    ) -> None:
        self.features = features.tocsr() if is_sparse(features) else np.asarray(features)
        if self.features.ndim != 2:
            raise InvalidRankingData(f"features must be rows x features, found shape {list(self.features.shape)}")
        self.labels = checked_labels(labels, self.features.shape[0])
        self.queries = Queries(checked_qid(qid, self.features.shape[0]))
        self.transform = transform
        self.chosen: IntArray = np.arange(len(self.queries))

    def subset(self, queries: Sequence[int] | IntArray) -> QueryDataset:
        """Return a data set of some of the queries; it shares all arrays with this one."""
        part = object.__new__(QueryDataset)
        vars(part).update(vars(self), chosen=self.chosen[np.asarray(queries, dtype=np.int64)])
        return part

    def rows(self) -> IntArray:
        """Return the rows of all queries, query by query."""
        return self.queries.rows(self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> QueryBatch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int] | IntArray) -> QueryBatch:
        """Return the batch of these queries."""
        chosen = self.chosen[np.asarray(indices, dtype=np.int64)]
        rows = self.queries.rows(chosen)
        block: Any = self.features[rows]
        if self.transform is not None:
            block = self.transform(block)
        dense = block.toarray() if is_sparse(block) else block
        return QueryBatch(
            torch.from_numpy(self.queries.lengths[chosen]),
            torch.from_numpy(np.ascontiguousarray(dense, dtype=np.float32)),
            torch.from_numpy(self.labels[rows].astype(np.float32)),
        )

    def batches(self, size: int) -> Iterator[QueryBatch]:
        """Yield all queries in batches of at most ``size``."""
        for start in range(0, len(self), size):
            yield self.__getitems__(np.arange(start, min(start + size, len(self))))

    @staticmethod
    def collate(batch: Any) -> Any:
        """Return the batch unchanged; ``__getitems__`` has already gathered it."""
        return batch
