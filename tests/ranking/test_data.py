"""Files and frames of ranking data, whole and damaged."""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stimulus_moo import StimulusError
from stimulus_moo.ranking import InvalidRankingData, from_frame, has_qid, line_reader, load_letor, load_lightgbm

LETOR = b"# a comment\n2 qid:10 1:0.5 4:1.5 #doc1\n0 qid:10 2:0.25\n1 qid:3 1:1e-3 # doc 3\n"


def write(folder: Path, content: bytes, name: str = "data.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_letor_file(tmp_path: Path) -> None:
    X, Y, qid = load_letor(write(tmp_path, LETOR))
    np.testing.assert_allclose(X.toarray(), [[0.5, 0, 0, 1.5], [0, 0.25, 0, 0], [1e-3, 0, 0, 0]], rtol=1e-6)
    assert X.dtype == np.float32
    assert Y.tolist() == [[2.0], [0.0], [1.0]]
    assert qid.tolist() == [10, 10, 3]


def test_the_first_line_tells_the_layout(tmp_path: Path) -> None:
    assert has_qid(write(tmp_path, LETOR))
    assert has_qid(write(tmp_path, gzip.compress(LETOR), "a.gz"))
    assert not has_qid(write(tmp_path, b"\n1 1:0.5\n"))


def test_letor_options(tmp_path: Path) -> None:
    assert load_letor(write(tmp_path, LETOR), n_features=9).X.shape == (3, 9)
    assert load_letor(write(tmp_path, LETOR), zero_based=True).X.shape == (3, 5)
    (tmp_path / "data.txt.gz").write_bytes(gzip.compress(LETOR))
    assert load_letor(tmp_path / "data.txt.gz").qid.tolist() == [10, 10, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a LETOR file"),
        (b"# only comments\n", "expected a LETOR file"),
        (b"1 1:0.5\n", "use load_lightgbm"),
        (b"1 qid:1 1:0.5\n1 1:0.5\n", "a qid in 1 of 2 lines"),
        (b"1 qid:1 1:0.5\n0 qid:1 2:", "expected a LETOR file.*found"),
        (b"1 qid:1 1:0.5\n0 qid:1 2", "expected a LETOR file.*found"),
        (b"1 qid:1 0:0.5\n", r"indices start at 1 \(zero_based=False\)"),
        (b"1 qid:1 3:0.5 2:1\n", "sorted"),
        (b"1 qid:1 999999999:1\n", "feature indices up to 16,777,216, found 999,999,999"),
        (b"1 qid:1 99999999999999999999999:1\n", "expected a LETOR file"),
        (b"-1 qid:1 1:1\n", "found -1.0 for label 0 in row 0"),
        (b"nan qid:1 1:1\n", "expected finite labels, found NaN"),
        (b"1 qid:1 1:inf\n", "expected finite values"),
        (b"one qid:1 1:1\n", "expected a LETOR file"),
        (b"\x00\xff\xfe qid:\x80 \x00" * 50, "expected a LETOR file"),
        (b"1 qid:1 " + b"x" * (1 << 24), "expected lines shorter than 16,777,216 bytes"),
    ],
)
def test_damaged_letor_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InvalidRankingData, match=message) as caught:
        load_letor(path)
    assert str(path) in str(caught.value)


def test_damaged_gzip_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidRankingData, match="expected a LETOR file"):
        load_letor(write(tmp_path, gzip.compress(LETOR)[:-12], "cut.gz"))
    with pytest.raises(InvalidRankingData, match="found nothing"):
        load_letor(tmp_path / "nowhere")
    with pytest.raises(InvalidRankingData, match="no regular file"):
        load_letor(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRankingData, match="no regular file"):
        load_letor(tmp_path / "pipe")


def test_a_file_that_unpacks_to_far_more_than_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "_MOST_UNPACKED", 1 << 16)
    bomb = b"0 qid:1 1:1\n" * 20_000
    with pytest.raises(InvalidRankingData, match="at most 300 times its size, found more"):
        load_letor(write(tmp_path, bz2.compress(bomb), "bomb.bz2"))
    honest = b"".join(b"%d qid:%d 1:%d 2:1\n" % (i % 5, i // 10, i * i) for i in range(20_000))
    assert len(load_letor(write(tmp_path, gzip.compress(honest), "honest.gz")).qid) == 20_000


def test_a_long_line_is_refused_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "_LONGEST_LINE", 1 << 10)
    content = b"1 qid:1 1:1\n0 qid:1 2:1" + b" " * 2000 + b"\n"
    for name, packed in (("late.txt", content), ("late.gz", gzip.compress(content))):
        with pytest.raises(InvalidRankingData, match="expected lines shorter than 1,024 bytes"):
            load_letor(write(tmp_path, packed, name))


def test_damage_in_the_middle_of_a_packed_file(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(os.urandom(4000).hex().encode()))
    packed[200:240] = bytes(40)
    with pytest.raises(InvalidRankingData, match=r"hurt\.gz: expected"):
        load_letor(write(tmp_path, bytes(packed), "hurt.gz"))


def test_every_truncation_is_read_or_refused_with_a_typed_error(tmp_path: Path) -> None:
    for stop in range(len(LETOR)):
        try:
            data = load_letor(write(tmp_path, LETOR[:stop]))
        except StimulusError:
            continue
        assert 1 <= len(data.Y) <= 3
        assert len(data.Y) == len(data.qid) == data.X.shape[0]


def test_lightgbm_files(tmp_path: Path) -> None:
    write(tmp_path, b"2\n0\n1\n", "rank.train.query")
    data = load_lightgbm(write(tmp_path, b"1 1:2\n0 3:4\n4 2:1\n", "rank.train"))
    assert data.qid.tolist() == [0, 0, 2]
    assert data.X.shape == (3, 3)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (b"2\n", "add up to 2, but .* has 3 rows"),
        (b"9223372036854775807\n9223372036854775807\n5\n", "add up to 18446744073709551619"),
        (b"99999999999999999999\n", "expected one list length per line"),
        (b"2\n" + b"1" * 1_000_000, "found: a word of 1,000,000 bytes"),
        (b"4\n-1\n", "all at least 0, found -1"),
        (b"three\n", "expected one list length per line"),
        (b"1.5\n1.5\n", "expected one list length per line"),
        (b"", "found none"),
        (None, "found no such file"),
    ],
)
def test_damaged_lightgbm_lengths(tmp_path: Path, lengths: bytes | None, message: str) -> None:
    path = write(tmp_path, b"1 1:2\n0 3:4\n4 2:1\n", "rank.train")
    if lengths is not None:
        write(tmp_path, lengths, "rank.train.query")
    with pytest.raises(InvalidRankingData, match=message):
        load_lightgbm(path)


@pytest.mark.skipif("STIMULUS_MOO_DATA" not in os.environ, reason="STIMULUS_MOO_DATA names no folder with real data")
def test_shared_data() -> None:
    folder = Path(os.environ["STIMULUS_MOO_DATA"], "ltr")
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    train, test = load_lightgbm(folder / "rank.train"), load_lightgbm(folder / "rank.test", n_features=300)
    assert (train.X.shape, test.X.shape) == ((3005, 300), (768, 300))
    assert (len(np.unique(train.qid)), len(np.unique(test.qid))) == (201, 50)
    assert sorted(np.unique(train.Y)) == [0, 1, 2, 3, 4]


def frame() -> pd.DataFrame:
    return pd.DataFrame({"q": [1, 1, 2], "a": [0, 1, 2], "b": [1, 0, 0], "x": [0.5, 1.5, 2.5], "z": [1, 2, 3]})


def test_frame() -> None:
    X, Y, qid = from_frame(frame(), labels=["b", "a"], qid="q")
    assert X.tolist() == [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]
    assert Y.tolist() == [[1, 0], [0, 1], [0, 2]]
    assert qid.tolist() == [1, 1, 2]
    assert from_frame(frame(), labels=["a"], qid="q", features=["z"]).X.tolist() == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_frame(frame(), labels=["c"], qid="q"), "no column 'c'; it has 'q', 'a'"),
        (lambda: from_frame(frame(), labels=["a"], qid="id"), "no column 'id'"),
        (lambda: from_frame(frame(), labels="a", qid="q"), "list of at least one column name, found 'a'"),
        (lambda: from_frame(frame().assign(x="text"), labels=["a"], qid="q"), "features must be numbers"),
        (lambda: from_frame(frame().assign(a=-1), labels=["a"], qid="q"), "at least 0"),
        (lambda: from_frame(frame()[["q", "a"]], labels=["a"], qid="q"), "no feature column"),
        (lambda: from_frame(frame().assign(q=[1, None, 2]), labels=["a"], qid="q"), "qid must not be missing"),
    ],
)
def test_frames_that_do_not_fit(call: Callable[[], object], message: str) -> None:
    with pytest.raises(StimulusError, match=message):
        call()
