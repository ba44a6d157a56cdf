"""Multi-label learning to rank: losses, metrics, data, and a ranker with scikit-learn's interface."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    from stimulus_moo.errors import MissingDependency

    raise MissingDependency("stimulus_moo.ranking needs scikit-learn: pip install 'stimulus-moo[ranking]'") from error

from stimulus_moo.ranking.binning import FeatureLabels, labels_from_features
from stimulus_moo.ranking.data import RankingData, from_frame, has_qid, load_letor, load_lightgbm
from stimulus_moo.ranking.errors import InvalidModelFile, InvalidRankingData
from stimulus_moo.ranking.front import ParetoFront, pareto_front
from stimulus_moo.ranking.lists import Queries, QueryBatch, QueryDataset
from stimulus_moo.ranking.losses import (
    LOSSES,
    approx_ndcg_loss,
    lambda_loss,
    listnet_loss,
    ranknet_loss,
    softmax_loss,
)
from stimulus_moo.ranking.metrics import counted_queries, mean_average_precision, mrr, ndcg
from stimulus_moo.ranking.missing import labelled_queries, skip_missing
from stimulus_moo.ranking.preferences import EpsilonConstraint
from stimulus_moo.ranking.ranker import MultiLabelRanker
from stimulus_moo.ranking.saving import SavedRanker, load_ranker, save_ranker
from stimulus_moo.ranking.scaler import Scaler
from stimulus_moo.ranking.scorer import Scorer

__all__ = [
    "LOSSES",
    "EpsilonConstraint",
    "FeatureLabels",
    "InvalidModelFile",
    "InvalidRankingData",
    "MultiLabelRanker",
    "ParetoFront",
    "Queries",
    "QueryBatch",
    "QueryDataset",
    "RankingData",
    "SavedRanker",
    "Scaler",
    "Scorer",
    "approx_ndcg_loss",
    "counted_queries",
    "from_frame",
    "has_qid",
    "labelled_queries",
    "labels_from_features",
    "lambda_loss",
    "listnet_loss",
    "load_letor",
    "load_lightgbm",
    "load_ranker",
    "mean_average_precision",
    "mrr",
    "ndcg",
    "pareto_front",
    "ranknet_loss",
    "save_ranker",
    "skip_missing",
    "softmax_loss",
]
