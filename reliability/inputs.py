"""Every kind of file that the library reads, with valid examples from which the fuzzers start.

A reader takes a path. It must return or raise a ``StimulusError``, in bounded time and memory, and must not open files
for writing.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stimulus_moo.lab.data.arff import read_numeric_arff
from stimulus_moo.lab.data.celeba_lists import ATTRIBUTES, read_attributes, read_partition
from stimulus_moo.lab.data.idx import read_idx
from stimulus_moo.lab.runs import load_runs
from stimulus_moo.lab.runs.storage import read_json, read_lines
from stimulus_moo.ranking import MultiLabelRanker, load_letor, load_lightgbm, load_ranker, save_ranker
from stimulus_moo.training import checkpoint


@dataclass(frozen=True)
class Input:
    """A kind of file.

    Attributes:
        file: its name in its folder.
        read: the reader, which takes the path.
        examples: valid contents.
        words: tokens of the format, for mutations that get past the first line.
    """

    file: str
    read: Callable[[Path], Any]
    examples: Callable[[], list[bytes]]
    words: tuple[bytes, ...] = (b"\0",)


def _idx() -> list[bytes]:
    plain = struct.pack(">BBBBII", 0, 0, 8, 2, 2, 3) + bytes(range(6))
    return [plain, gzip.compress(plain), struct.pack(">BBBBI", 0, 0, 0x0D, 1, 2) + bytes(8)]


def _attributes() -> list[bytes]:
    names = " ".join(f"a{i}" for i in range(ATTRIBUTES))
    rows = "".join(f"{i:06d}.jpg {' '.join(['1', '-1'] * (ATTRIBUTES // 2))}\n" for i in range(3))
    return [f"3\n{names}\n{rows}".encode()]


def _checkpoint() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint.save(folder, {"step": 3, "model": {"w": torch.arange(4.0)}, "none": None, "list": [1, "a"]}, 1)
        (written,) = checkpoint.files(folder)
        foreign = io.BytesIO()
        torch.save({"w": torch.zeros(2)}, foreign)
        return [written.read_bytes(), foreign.getvalue()]


def _ranker() -> list[bytes]:
    rng = np.random.default_rng(0)
    X, qid = rng.normal(size=(12, 2)), np.repeat(np.arange(3), 4)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "ranker.json")
        save_ranker(MultiLabelRanker(epochs=1, hidden=(2,), random_state=0).fit(X, X[:, :1] > 0, qid), path)
        return [path.read_bytes()]


def _lines() -> list[bytes]:
    record = {
        "step": 0,
        "samples": 4,
        "gradients": 4,
        "losses": [0.5],
        "weights": [1.0],
        "sq_norm": 2.0,
        "anchored": True,
    }
    return [b"".join(json.dumps({**record, "step": i}).encode() + b"\n" for i in range(3))]


def _settings() -> list[bytes]:
    return [json.dumps({"experiment": "tiny", "method": "mgd", "seed": 0, "tasks": ["a"], "lr": 0.1}).encode()]


def _read_lightgbm(path: Path) -> Any:
    path.with_name(path.name.removesuffix(".query")).write_bytes(b"1 1:0.5\n0 2:0.1\n3 1:0.2\n")
    return load_lightgbm(path.with_name(path.name.removesuffix(".query")))


INPUTS: dict[str, Input] = {
    "IDX": Input("images-idx3-ubyte", read_idx, _idx, (b"\0\0\x08\x01", b"\xff\xff\xff\xff", b"\x1f\x8b\x08")),
    "ARFF": Input(
        "table.arff",
        read_numeric_arff,
        lambda: [b"% c\n@relation r\n@attribute a numeric\n@attribute 'b c' real\n@data\n1,2\n?,-4e5\n"],
        (b"@attribute ", b"@data\n", b"numeric", b"{a,b}", b"'", b"?", b",", b"1e999", b"date", b"%"),
    ),
    "LETOR": Input(
        "train.txt",
        load_letor,
        lambda: [b"2 qid:7 1:0.5 3:1 # c\n0 qid:7 2:0.25\n1 qid:8 1:-1\n"],
        (b" qid:", b"1000000000000:1", b"-1:1", b"nan", b"inf", b"#", b"1e999", b":", b"4294967296:1"),
    ),
    "LETOR, gzipped": Input("train.txt.gz", load_letor, lambda: [gzip.compress(b"2 qid:7 1:0.5\n0 qid:7 2:0.25\n")]),
    "LightGBM list lengths": Input(
        "rank.train.query", _read_lightgbm, lambda: [b"2\n1\n"], (b"1000000000000", b"-1", b"9223372036854775808", b"0")
    ),
    "CelebA attributes": Input(
        "list_attr_celeba.txt", read_attributes, _attributes, (b"1000000000000", b"-1", b"../../x.jpg", b"\n", b" 1")
    ),
    "CelebA partition": Input(
        "list_eval_partition.txt",
        lambda path: read_partition(path, ["000000.jpg", "000001.jpg"]),
        lambda: [b"000000.jpg 0\n000001.jpg 2\n"],
        (b" 1", b"000000.jpg", b"\n", b"3"),
    ),
    "checkpoint": Input(
        "checkpoint-000000003.pt", checkpoint.read, _checkpoint, (b"PK\x03\x04", b"PK\x01\x02", b"\x80\x02")
    ),
    "saved ranker": Input(
        "ranker.json", load_ranker, _ranker, (b"null", b"[]", b"{}", b"1e999", b"NaN", b'"', b"1000000000000", b"-1")
    ),
    "run settings": Input("settings.json", lambda path: load_runs(path.parent), _settings, (b"null", b"[", b"{", b'"')),
    "metrics": Input("metrics.jsonl", read_lines, _lines, (b"\n", b"null", b"{", b"[" * 2000, b"1e999", b'"')),
    "JSON": Input("summary.json", read_json, _settings, (b"null", b"[" * 2000, b'{"a":', b"1e999", b'"')),
}
