"""The errors of ranking: which file or argument, what was found there and what to do."""

from __future__ import annotations

from stimulus_moo import StimulusError
from stimulus_moo.errors import DOCS


class InvalidRankingData(StimulusError, ValueError):
    """Rows, labels, query ids or a file of them cannot be used as given.

    >>> from stimulus_moo.ranking import ndcg
    >>> try:
    ...     ndcg([1, 0], [0.5, 0.1, 0.2], [7, 7])
    ... except InvalidRankingData as error:
    ...     print(error)
    y_score must hold one finite number per row (2), found shape [3]
    """

    page = DOCS + "ranking.html#data"


class InvalidModelFile(StimulusError, ValueError):
    """A file is no saved ranker, a damaged one, or one of a version that this library does not know."""

    page = DOCS + "ranking.html#saving"
