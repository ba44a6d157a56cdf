import gzip
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stimulus_moo.lab.data import DataError, read_idx

from .conftest import IDX_CODES, idx_bytes

FUZZ = settings(max_examples=300, derandomize=True, deadline=None)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("idx") / "file"


def refused(file: Path, content: bytes) -> str:
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(file)
    assert str(file) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", IDX_CODES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reads_back_what_was_written(file, dtype, pack):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    file.write_bytes(pack(idx_bytes(array)))
    found = read_idx(file)
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, array)


def test_an_empty_dimension_is_an_empty_array(file):
    file.write_bytes(idx_bytes(np.zeros((0, 28, 28), np.uint8)))
    assert read_idx(file).shape == (0, 28, 28)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "missing"),
        (b"\0\0\x08", "00 00 08"),
        (b"\0\1\x08\1\0\0\0\0", "00 01 08 01"),
        (b"\0\0\x07\1\0\0\0\0", "expected IDX"),
        (b"\0\0\x08\0", "expected IDX"),
        (b"\0\0\x08\x09" + bytes(36), "expected IDX"),
        (b"\0\0\x08\2\0\0\0\1\0\0", "cut inside it"),
        (b"\0\0\x08\1\0\0\0\3ab", "3 bytes, found 2"),
        (b"\0\0\x08\1\0\0\0\2abc", "2 bytes, found more"),
        (b"<!DOCTYPE html>", "3c 21 44 4f"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_is_not_idx_is_refused_with_what_was_found(file, content, message, pack):
    assert message in refused(file, pack(content))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_absurd_header_is_refused_before_allocating(file, pack):
    content = pack(b"\0\0\x0e\3" + b"\xff" * 12 + bytes(100))
    tracemalloc.start()
    message = refused(file, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "can hold" in message
    assert peak < 1 << 20


def test_a_gzip_bomb_is_unpacked_no_further_than_its_header_claims(file):
    bomb = gzip.compress(b"\0\0\x08\1\0\0\0\x05" + bytes(64 << 20))
    tracemalloc.start()
    message = refused(file, bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "found more" in message
    assert peak < 4 << 20


def test_every_truncation_of_a_gzip_file_is_refused(file):
    packed = gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8)))
    for length in range(len(packed)):
        refused(file, packed[:length])


def test_bytes_after_the_gzip_stream_are_refused(file):
    packed = gzip.compress(idx_bytes(np.arange(5, dtype=np.uint8)))
    assert "damaged" in refused(file, packed + b"garbage")


def test_a_flipped_byte_in_a_gzip_stream_is_refused(file):
    packed = bytearray(gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8))))
    packed[-6] ^= 1  # in the checksum of the content
    refused(file, bytes(packed))


def test_missing_files_directories_and_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, found in (("none", "nothing"), (".", "no regular file"), ("pipe", "no regular file")):
        with pytest.raises(DataError, match=found):
            read_idx(tmp_path / name)


@FUZZ
@given(st.binary(max_size=200), st.booleans(), st.sampled_from([b"", b"\0\0", b"\0\0\x08\1", b"\x1f\x8b\x08\0"]))
def test_random_bytes_give_an_array_or_a_data_error(file, content, packed, start):
    file.write_bytes(gzip.compress(start + content) if packed else start + content)
    try:
        array = read_idx(file)
    except DataError:
        return
    assert array.nbytes <= len(content)


@FUZZ
@given(st.data())
def test_changing_one_byte_gives_an_array_of_the_same_size_or_a_data_error(file, data):
    content = bytearray(idx_bytes(np.arange(12, dtype=np.int16).reshape(3, 4)))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    file.write_bytes(bytes(content))
    try:
        assert read_idx(file).nbytes == 24
    except DataError:
        assert position < 12


def test_an_empty_dimension_beside_absurd_ones_is_refused(file):
    """Found by the fuzzer: nothing to allocate, and yet no array can have that shape."""
    file.write_bytes(bytes([0, 0, 13, 5]) + b"".join(n.to_bytes(4, "big") for n in (3 << 24, 13, 1 << 24, 1 << 19, 0)))
    with pytest.raises(DataError, match="with dimensions that no array can have"):
        read_idx(file)
