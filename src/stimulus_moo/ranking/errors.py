"""Errors of the ranking package."""

from __future__ import annotations

from stimulus_moo import StimulusError
from stimulus_moo.errors import DOCS


class InvalidRankingData(StimulusError, ValueError):
    """Features, labels, query ids or a data file are invalid.

    >>> from stimulus_moo.ranking import ndcg
    >>> try:
    ...     ndcg([1, 0], [0.5, 0.1, 0.2], [7, 7])
    ... except InvalidRankingData as error:
    ...     print(error)
    y_score must hold one finite number per row (2), found shape [3]
    """

    page = DOCS + "ranking.html#data"


class InvalidModelFile(StimulusError, ValueError):
    """A file is not a saved ranker, is damaged, or has an unknown version."""

    page = DOCS + "ranking.html#saving"
