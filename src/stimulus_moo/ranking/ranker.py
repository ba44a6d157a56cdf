"""``MultiLabelRanker``: multi-label learning to rank with scikit-learn's interface."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from stimulus_moo import InvalidOption, StimulusWarning
from stimulus_moo.options import positive_integer
from stimulus_moo.ranking.checks import checked_labels, fraction, index
from stimulus_moo.ranking.errors import InvalidRankingData
from stimulus_moo.ranking.lists import QueryDataset
from stimulus_moo.ranking.losses import LOSSES, RankingLoss
from stimulus_moo.ranking.metrics import ndcg
from stimulus_moo.ranking.scaler import Scaler
from stimulus_moo.ranking.training import Plan, single_label_floors, train, warn_of_missed_floors
from stimulus_moo.ranking.validation import scores_of

_ENTRIES = 1 << 23  # entries per block of features in predict
_ONE_LIST = 1000  # rows above which one list is probably a forgotten qid


class MultiLabelRanker(BaseEstimator):  # type: ignore[misc]
    """Rank documents by one score, trained on several labels at once.

    There is one loss per label and one scorer for all: the labels are the objectives of a multi-gradient method, and
    the samples are queries. Features are standardised internally (sparse ones only scaled).

    Args:
        loss: ``"listnet"``, ``"softmax"``, ``"ranknet"``, ``"approx-ndcg"``, ``"lambdaloss"``, or a function
            ``loss(scores, labels, lengths)`` that returns one mean loss per label.
        hidden: widths of the hidden layers of a tanh perceptron; none for a linear scorer.
        method: a name in ``stimulus_moo.METHODS``.
        lr: step size. None: found while training for ``"auto"``, 0.01 for other methods with Adam, else 1 / (2 L),
            where L is the largest eigenvalue of the mean covariance of the standardised features within a list,
            computed from the training data. L is the smoothness constant of the softmax losses for a linear scorer at
            0, and 1 / (2 L) is the step size in the theory of the STIMULUS methods. For deep scorers and
            ``approx-ndcg`` it is only a starting point.
        momentum: momentum of the heavy-ball methods.
        batch_size: queries per step; None for the square root of their number.
        period: steps between two anchors; None for the square root of the number of queries.
        epochs: passes over the training queries by mini-batches; anchors are additional.
        max_gradients: stop after this number of per-query multi-gradients, including anchors.
        max_passes: stop after this number of per-query derivatives of one scalar: one per label for a multi-gradient,
            one for a weighted loss, as in scalarisation.
        preference: one positive number per label. Min-norm methods decrease the labels' losses in proportion to it
            where they conflict, ``"auto"`` in proportion to it times the length of the loss's gradient; scalarisation
            weights the losses by it. None treats all labels equally.
        bounds: ``{label: share}``: maximum relative loss of validation NDCG, compared with a model trained on this
            label alone. One such model is trained per bounded label and determines the floor of the label.
            ``EpsilonConstraint`` modifies the weights whenever the validation NDCG, measured after every epoch, is
            below its floor. The best measured model that meets all floors is kept; if there is none, the closest one,
            with a warning.
        early_stopping: a label, to monitor its validation NDCG, or ``"hypervolume"``, the product of the NDCG of all
            labels; the best measured model is kept. None trains to the end and keeps the last iterate.
        patience: epochs without improvement before training stops.
        validation_fraction: fraction of queries held out for early stopping or bounds.
        k: cutoff of NDCG in validation and ``score``.
        random_state: an int, a ``numpy.random.RandomState``, or None for a random seed; global random states are
            neither used nor changed.
        verbose: show a progress bar.

    Attributes:
        scorer_: the torch module, on scaled features.
        scaler_: the fitted ``Scaler``.
        history_: one record per step, as in ``stimulus_moo.fit``.
        validation_: one record per measurement: step, samples, gradients, passes, ndcg per label, floors_kept.
        best_: record of the final model; empty without validation.
        floors_: minimum validation NDCG by bounded label.
        samples_, gradients_, passes_: queries drawn, per-query multi-gradient evaluations, and per-query derivatives of
            one scalar.
        losses_, stationarity_: mean losses and Pareto stationarity of the final model over the training queries.
        lr_: the step size; the largest one if the method chooses it at every step.
        stopped_: reason why training ended, as in ``stimulus_moo.fit``.
        n_labels_, n_features_in_, feature_names_in_: number of labels, and features of the training data.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 5))
    >>> Y = np.column_stack([X[:, 0] > 0.5, X[:, 0] + X[:, 1] > 1.0])
    >>> qid = np.repeat(np.arange(40), 10)
    >>> ranker = MultiLabelRanker(random_state=0).fit(X[:300], Y[:300], qid[:300])
    >>> ranker.predict(X[300:]).shape, bool(ranker.score(X[300:], Y[300:], qid[300:]) > 0.85)
    ((100,), True)
    """

    def __init__(
        self,
        *,
        loss: str | RankingLoss = "listnet",
        hidden: Sequence[int] = (),
        method: str = "auto",
        lr: float | None = None,
        momentum: float = 0.5,
        batch_size: int | None = None,
        period: int | None = None,
        epochs: int = 20,
        max_gradients: int | None = None,
        max_passes: int | None = None,
        preference: Sequence[float] | None = None,
        bounds: Mapping[int, float] | None = None,
        early_stopping: int | str | None = None,
        patience: int = 5,
        validation_fraction: float = 0.2,
        k: int = 10,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.loss = loss
        self.hidden = hidden
        self.method = method
        self.lr = lr
        self.momentum = momentum
        self.batch_size = batch_size
        self.period = period
        self.epochs = epochs
        self.max_gradients = max_gradients
        self.max_passes = max_passes
        self.preference = preference
        self.bounds = bounds
        self.early_stopping = early_stopping
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.k = k
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: ArrayLike, qid: ArrayLike | None = None) -> MultiLabelRanker:
        """Train on documents with labels. If an exception is raised, an earlier fit is kept.

        Args:
            X: rows x features, an array or a scipy CSR matrix.
            y: rows, or rows x K labels, at least 0; 0 is not relevant, NaN is missing. The loss and the NDCG of a label
                are over the documents and the queries that have it.
            qid: query id of each row, in any order. None treats all rows as *one* list.

        Raises:
            InvalidOption: a parameter is invalid.
            InvalidRankingData: X, y or qid is invalid.
        """
        before = dict(self.__dict__)
        try:
            self._fit(X, y, qid)
        except BaseException:
            self.__dict__ = before
            raise
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return one score per row. Sort the rows of a list by descending score."""
        check_is_fitted(self)
        X = self._matrix(X, reset=False)
        step = max(1, _ENTRIES // X.shape[1])
        blocks = (self.scaler_(X[start : start + step]) for start in range(0, X.shape[0], step))
        return scores_of(self.scorer_, map(torch.from_numpy, blocks))

    def score(self, X: Any, y: ArrayLike, qid: ArrayLike | None = None) -> float:
        """Return the mean NDCG@k over the labels that have a relevant document."""
        labels = checked_labels(y, name="y")
        scores = self.predict(X)
        found = ndcg(labels, scores, np.zeros(len(scores)) if qid is None else qid, k=self.k)
        return float(np.nanmean(found)) if not np.isnan(found).all() else float("nan")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = True
        return tags

    def _fit(self, X: Any, y: ArrayLike, qid: ArrayLike | None) -> None:
        if y is None:
            raise InvalidRankingData("MultiLabelRanker requires y to be passed, but the target y is None")
        X = self._matrix(X, reset=True)
        labels = checked_labels(y, X.shape[0], name="y")
        plan = self._plan(labels.shape[1])
        bounds = self._bounds(labels.shape[1])
        if qid is None and len(labels) > _ONE_LIST:
            message = f"qid is None, so all {len(labels)} rows are one list; pass qid=, the query id of each row"
            warnings.warn(message, StimulusWarning, stacklevel=4)
        data = QueryDataset(X, labels, np.zeros(len(labels)) if qid is None else qid)
        held_out = None
        if bounds or self.early_stopping is not None:
            data, held_out = self._split(data, plan.seed)
        absent = np.flatnonzero(np.isnan(labels[data.rows()]).all(axis=0))
        if len(absent):
            raise InvalidRankingData(
                f"y must have each label in some row, found label {absent[0]} missing in all {len(data)} training "
                "queries; leave this column out"
            )
        scaler = Scaler().fit(X, data.rows())
        data.transform = scaler
        floors: dict[int, float] = {}
        if held_out is not None:
            held_out.transform = scaler
            floors = single_label_floors(plan, data, held_out, bounds)
        trained = train(plan, data, held_out, floors)
        warn_of_missed_floors(trained.best, floors)
        self.scorer_, self.scaler_, self.n_labels_ = trained.scorer, scaler, labels.shape[1]
        self.history_, self.validation_, self.best_ = trained.history, trained.validation, trained.best
        self.floors_, self.lr_, self.stopped_ = floors, trained.lr, trained.stopped
        self.samples_, self.gradients_, self.passes_ = trained.samples, trained.gradients, trained.passes
        self.losses_, self.stationarity_ = trained.losses, trained.stationarity

    def _matrix(self, X: Any, *, reset: bool) -> Any:
        try:
            return validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=reset)
        except ValueError as error:
            raise InvalidRankingData(str(error)) from error

    def _plan(self, labels: int) -> Plan:
        if not callable(self.loss) and self.loss not in LOSSES:
            raise InvalidOption(f"loss must be a function or one of {', '.join(LOSSES)}, found {self.loss!r}")
        if isinstance(self.hidden, str) or not isinstance(self.hidden, Sequence):
            raise InvalidOption(f"hidden must be a sequence of widths, found {self.hidden!r}")
        stop = self.early_stopping
        is_label = isinstance(stop, numbers.Integral) and not isinstance(stop, bool) and 0 <= int(stop) < labels
        if stop is not None and stop != "hypervolume" and not is_label:
            raise InvalidOption(
                f"early_stopping must be None, 'hypervolume' or a label from 0 to {labels - 1}, found {stop!r}"
            )
        try:
            source = check_random_state(np.random.RandomState() if self.random_state is None else self.random_state)
        except ValueError as error:
            raise InvalidOption(f"random_state must be an int, a RandomState or None, {error}") from error
        return Plan(
            loss=self.loss if callable(self.loss) else LOSSES[self.loss],
            hidden=[positive_integer(f"hidden[{i}]", width) for i, width in enumerate(self.hidden)],
            method=str(self.method).lower(),
            lr=self.lr,
            momentum=self.momentum,
            batch_size=None if self.batch_size is None else positive_integer("batch_size", self.batch_size),
            period=self.period,
            epochs=positive_integer("epochs", self.epochs),
            max_gradients=self.max_gradients,
            max_passes=self.max_passes,
            preference=self.preference,
            k=positive_integer("k", self.k),
            criterion=None if stop is None or isinstance(stop, str) else int(stop),
            patience=None if stop is None else positive_integer("patience", self.patience),
            progress=bool(self.verbose),
            seed=int(source.randint(2**31 - 1)),
        )

    def _bounds(self, labels: int) -> dict[int, float]:
        found = {}
        for label, share in (self.bounds or {}).items():
            if index("a label of bounds", label) >= labels:
                raise InvalidOption(f"bounds must name labels from 0 to {labels - 1}, found {label!r}")
            found[int(label)] = fraction(f"bounds[{label}]", share)
        return found

    def _split(self, data: QueryDataset, seed: int) -> tuple[QueryDataset, QueryDataset]:
        held_out = round(fraction("validation_fraction", self.validation_fraction) * len(data))
        if not 0 < held_out < len(data):
            raise InvalidRankingData(
                f"validation_fraction={self.validation_fraction} of {len(data)} queries holds out {held_out}: early "
                "stopping and bounds need queries on both sides; give qid, more queries or another fraction"
            )
        order = np.random.default_rng(seed).permutation(len(data))
        return data.subset(np.sort(order[held_out:])), data.subset(np.sort(order[:held_out]))
