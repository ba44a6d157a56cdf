"""Literal twins of the ranking losses: one query, one label, plain Python loops, straight from the formulas."""

from __future__ import annotations

import math


def informative(labels: list[float]) -> bool:
    return len(set(labels)) > 1


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    powers = [math.exp(v - top) for v in values]
    return [p / sum(powers) for p in powers]


def softmax_loss(scores: list[float], labels: list[float]) -> float:
    p = softmax(scores)
    return -sum(y / sum(labels) * math.log(q) for y, q in zip(labels, p, strict=True))


def listnet_loss(scores: list[float], labels: list[float]) -> float:
    return -sum(q * math.log(p) for q, p in zip(softmax(labels), softmax(scores), strict=True))


def ranknet_loss(scores: list[float], labels: list[float]) -> float:
    found = [
        math.log1p(math.exp(scores[m] - scores[i]))
        for i in range(len(scores))
        for m in range(len(scores))
        if labels[i] > labels[m]
    ]
    return sum(found) / len(found)


def ideal_dcg(labels: list[float], k: int | None = None) -> float:
    best = sorted(labels, reverse=True)[:k]
    return sum((2**y - 1) / math.log2(r + 2) for r, y in enumerate(best))


def approx_ndcg_loss(scores: list[float], labels: list[float], temperature: float = 0.1) -> float:
    dcg = 0.0
    for i, y in enumerate(labels):
        rank = 1.0
        for m in range(len(labels)):
            if m != i:
                rank += 1 / (1 + math.exp(-(scores[m] - scores[i]) / temperature))
        dcg += (2**y - 1) / math.log2(1 + rank)
    return 1 - dcg / ideal_dcg(labels)


def lambda_loss(scores: list[float], labels: list[float], k: int = 10) -> float:
    order = sorted(range(len(scores)), key=lambda i: -scores[i])  # stable: ties in the order of the rows
    rank = {row: r + 1 for r, row in enumerate(order)}

    def discount(r: int) -> float:
        return 1 / math.log2(1 + r) if r <= k else 0.0

    total = 0.0
    for i in range(len(scores)):
        for m in range(len(scores)):
            if labels[i] > labels[m]:
                distance = abs(rank[i] - rank[m])
                rho = discount(distance) - discount(distance + 1)
                total += rho * (2 ** labels[i] - 2 ** labels[m]) * math.log2(1 + math.exp(scores[m] - scores[i]))
    return total / ideal_dcg(labels, k)


TWINS = {
    "softmax": softmax_loss,
    "listnet": listnet_loss,
    "ranknet": ranknet_loss,
    "approx-ndcg": approx_ndcg_loss,
    "lambdaloss": lambda_loss,
}
