"""Learning to rank by two conflicting labels, and their Pareto front.

    python examples/ranking.py

Needs the extra `ranking` (scikit-learn, moocore). The queries are synthetic; ``load_letor`` reads files.
"""

from __future__ import annotations

import numpy as np

from stimulus_moo.ranking import MultiLabelRanker, ndcg, pareto_front


def main(epochs: int = 10) -> dict[str, float]:
    rng = np.random.default_rng(0)
    X, qid = rng.normal(size=(3000, 10)), np.repeat(np.arange(150), 20)  # 150 queries of 20 documents
    Y = np.digitize(X @ rng.normal(size=(10, 2)), [0, 2, 4])  # two labels, grades 0 to 3
    train, test = qid < 100, qid >= 100
    held_out = X[test], Y[test], qid[test]

    ranker = MultiLabelRanker(method="stimulus-m+", epochs=epochs, random_state=0)
    ranker.fit(X[train], Y[train], qid[train])
    both = ndcg(Y[test], ranker.predict(X[test]), qid[test])
    print("NDCG@10 of both labels:", both, "after", ranker.gradients_, "per-query multi-gradients")

    preferences = [[9, 1], [1, 1], [1, 9]]
    front = pareto_front(ranker, X[train], Y[train], qid[train], preferences, evaluation=held_out)
    for preference, reached in zip(preferences, front.ndcg, strict=True):
        print("preference", preference, "NDCG@10", reached)
    print("hypervolume", front.hypervolume)
    return {"worst": float(both.min()), "spread": float(front.ndcg[0, 0] - front.ndcg[2, 0])}


if __name__ == "__main__":
    main()
