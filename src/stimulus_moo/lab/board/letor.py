"""The ranking problem of the scoreboard: MQ2008 with the grade, PageRank and inlinks as labels, five folds."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stimulus_moo.lab.board.problem import Made

if TYPE_CHECKING:
    from stimulus_moo.lab.data import RankingSplits

FOLDS = 5


@lru_cache(maxsize=FOLDS)
def _fold(fold: int, folder: Any) -> RankingSplits:
    from stimulus_moo.lab.data import load_mq2008
    from stimulus_moo.lab.experiments.ranking import standardised

    return standardised(load_mq2008(fold=fold, data=folder))


def mq2008(seed: int, folder: Any) -> Made:
    """Make a fold of MQ2008; the seed determines the fold. One scorer ranks for all labels."""
    from stimulus_moo.lab.experiments.ranking import ranking_problem
    from stimulus_moo.ranking import ndcg

    splits = _fold(seed % FOLDS + 1, folder)
    torch.manual_seed(seed)
    problem = ranking_problem(splits, hidden=(32,))

    def score(model: nn.Module, split: str) -> list[float]:
        part = splits.test if split == "test" else splits.validation
        assert part is not None
        with torch.no_grad():
            found = model(torch.from_numpy(part.X)).numpy()
        values: list[float] = ndcg(part.Y, found, part.qid, k=10).tolist()
        return values

    return Made(problem.model, problem.losses, problem.data, score)
