"""Files of any content: read, or refused with a typed error, in bounded memory, and nothing in them is run."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import resource
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliability.inputs import INPUTS
from stimulus_moo import StateMismatch, StimulusError, StimulusWarning
from stimulus_moo.lab.data import DataError
from stimulus_moo.lab.data.cache import load_or_build
from stimulus_moo.lab.data.idx import read_idx
from stimulus_moo.ranking import load_letor
from stimulus_moo.training import checkpoint

_CAUGHT: list[tuple[str, Any]] = []
_WATCHING = [False]
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _hook(event: str, arguments: Any) -> None:
    """Note what reading a file must not do; Python cannot take such a hook away again, so it is switched."""
    if not _WATCHING[0]:
        return
    writes = event == "open" and (arguments[2] & _WRITING if isinstance(arguments[2], int) else False)
    if writes or event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "socket.connect"):
        _CAUGHT.append((event, arguments))


sys.addaudithook(_hook)


@contextmanager
def nothing_is_run_or_written() -> Iterator[None]:
    _CAUGHT.clear()
    _WATCHING[0] = True
    try:
        yield
    finally:
        _WATCHING[0] = False
    assert _CAUGHT == []


@contextmanager
def bounded_memory(megabytes: int = 512) -> Iterator[None]:
    """Refuse what is more than so much beyond what the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (megabytes << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


EXAMPLES = {name: kind.examples() for name, kind in INPUTS.items()}


@st.composite
def mutated(draw: Any, name: str) -> bytes:
    """A sound file with a few pieces replaced, doubled, cut or put in."""
    content = bytearray(draw(st.sampled_from(EXAMPLES[name])))
    words = st.one_of(st.binary(max_size=4), st.sampled_from(INPUTS[name].words))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        stop = draw(st.integers(start, min(len(content), start + draw(st.sampled_from([0, 1, 8, 10**6])))))
        content[start:stop] = draw(words)
    return bytes(content)


@pytest.mark.parametrize("name", INPUTS)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_any_content_is_read_or_refused(name: str, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    kind = INPUTS[name]
    path = tmp_path_factory.getbasetemp() / f"inputs-{name.replace(',', '').replace(' ', '-')}" / kind.file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.draw(mutated(name)))
    with (
        warnings.catch_warnings(),
        nothing_is_run_or_written() if name != "LightGBM list lengths" else bounded_memory(),
    ):
        warnings.simplefilter("ignore", StimulusWarning)
        with suppress(StimulusError):
            kind.read(path)


@pytest.mark.parametrize("name", INPUTS)
def test_the_examples_are_sound(name: str, tmp_path: Path) -> None:
    (tmp_path / INPUTS[name].file).write_bytes(EXAMPLES[name][0])
    INPUTS[name].read(tmp_path / INPUTS[name].file)


# Claims that would fill the memory


def test_an_idx_header_of_a_trillion_rows_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.write_bytes(struct.pack(">BBBBIII", 0, 0, 14, 3, 1_000_000, 1_000_000, 1_000_000) + bytes(64))
    with (
        bounded_memory(64),
        pytest.raises(DataError, match=r"claims 1000000 x 1000000 x 1000000 .* can hold 80 at most"),
    ):
        read_idx(path)


def test_a_letor_index_of_a_trillion_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    for index in (10**12, 2**31, 2**63, 2**24 + 1):
        path.write_text(f"1 qid:1 {index}:1\n")
        with bounded_memory(), pytest.raises(StimulusError):
            load_letor(path)


def bomb(entries: dict[str, bytes], compression: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return made.getvalue()


def write_checkpoint(path: Path, archive: bytes) -> None:
    """Write an archive as a checkpoint with the right checksum."""
    path.write_bytes(archive)
    checkpoint.checksum_file(path).write_text(f"{hashlib.sha256(archive).hexdigest()}  {path.name}\n")


def test_a_checkpoint_that_unpacks_to_more_than_it_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-000000001.pt"
    packed = bomb({"archive/data.pkl": pickle.dumps({}), "archive/data/0": bytes(1 << 24)}, zipfile.ZIP_DEFLATED)
    write_checkpoint(path, packed)
    with bounded_memory(64), pytest.raises(StateMismatch, match="the archive is compressed, unlike those of torch"):
        checkpoint.read(path)
    whole = bomb({"archive/data.pkl": b"x" * 100}, zipfile.ZIP_STORED)
    at = whole.index(b"PK\x01\x02") + 24  # the size that the directory claims
    write_checkpoint(path, whole[:at] + struct.pack("<I", 0xF0000000) + whole[at + 4 :])
    with bounded_memory(64), pytest.raises(StateMismatch, match="claims to be larger than its file"):
        checkpoint.read(path)


def test_names_that_climb_out_of_an_archive_write_nothing(tmp_path: Path) -> None:
    """No archive is ever unpacked to the disk; its members are read by name, in memory."""
    folder = tmp_path / "in"
    folder.mkdir()
    hostile = bomb({"../../evil.npy": b"x", "/tmp/evil.npy": b"x", "a.npy": b"x"}, zipfile.ZIP_STORED)
    (folder / "cache.npz").write_bytes(hostile)
    (folder / "checkpoint-000000001.pt").write_bytes(hostile)
    with nothing_is_run_or_written(), pytest.raises(StateMismatch):
        checkpoint.read(folder / "checkpoint-000000001.pt")
    built = {"a": torch.zeros(2).numpy()}
    assert load_or_build(folder / "cache.npz", {"a": ("float32", (2,))}, lambda: built) is built
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cache.npz", "checkpoint-000000001.pt", "in"]


def test_a_hostile_checkpoint_with_the_right_checksum_runs_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "was-here"),)

    for content in (
        pickle.dumps(Bomb()),
        _torch_saved({"step": Bomb()}),
        _torch_saved([1]),
        _torch_saved({"step": "x"}),
    ):
        write_checkpoint(tmp_path / "checkpoint-000000001.pt", content)
        with pytest.raises(StateMismatch, match=r"cannot be read as a checkpoint|is not a checkpoint of stimulus-moo"):
            checkpoint.load(tmp_path)
        assert not (tmp_path / "was-here").exists()


def _torch_saved(value: Any) -> bytes:
    made = io.BytesIO()
    torch.save(value, made)
    return made.getvalue()
