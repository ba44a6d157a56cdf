"""Small ranking files for tests: queries of different lengths, three features that say something."""

from pathlib import Path

import numpy as np


def lines(queries: int, seed: int, with_qid: bool = True, features: int = 5) -> tuple[str, list[int]]:
    generator = np.random.default_rng(seed)
    written, lengths = [], []
    for query in range(queries):
        lengths.append(int(generator.integers(2, 9)))
        for x in generator.normal(size=(lengths[-1], features)):
            grade = int(np.digitize(x[0] + 0.3 * generator.normal(), [0, 1]))
            qid = f"qid:{query + 10} " if with_qid else ""
            written.append(f"{grade} {qid}" + " ".join(f"{i + 1}:{value:.4f}" for i, value in enumerate(x)))
    return "\n".join(written) + "\n", lengths


def write_letor(folder: Path, train: int = 30, test: int = 12) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text(lines(train, seed=0)[0])
    (folder / "test.txt").write_text(lines(test, seed=1)[0])
    return folder
