import gzip
import hashlib
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DataError, load_multimnist, read_idx

from .conftest import idx_bytes, write_mnist_layout

SIZES = {"n_train": 40, "n_test": 20}


@pytest.fixture
def folder(tmp_path):
    return write_mnist_layout(tmp_path / "fashion")


def cached(cache: Path) -> list[Path]:
    return sorted((cache / "derived").iterdir())


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip((*a.train, *a.test), (*b.train, *b.test), strict=True))


def test_shapes_types_range_and_names(folder):
    data = load_multimnist(folder=folder, **SIZES)
    images, left, right = data.train
    assert images.shape == (40, 1, 36, 36)
    assert data.test[0].shape == (20, 1, 36, 36)
    assert images.dtype == torch.float32
    assert left.dtype == right.dtype == torch.int64
    assert images.min() >= 0
    assert images.max() == 1
    assert (data.tasks, data.synthetic, data.name) == (("left", "right"), False, "multimnist (fashion)")


def test_each_canvas_holds_two_source_images_of_the_labelled_classes(folder):
    data = load_multimnist(folder=folder, **SIZES)
    for part, (images, left, right) in (("train", data.train), ("t10k", data.test)):
        source = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
        corners = {row[:8].tobytes(): label for row, label in zip(source.reshape(len(source), -1), labels, strict=True)}
        ends = {row[-8:].tobytes(): label for row, label in zip(source.reshape(len(source), -1), labels, strict=True)}
        pixels = (images[:, 0] * 255).round().to(torch.uint8).numpy()
        assert [corners[canvas[0, :8].tobytes()] for canvas in pixels] == left.tolist()
        assert [ends[canvas[35, 28:].tobytes()] for canvas in pixels] == right.tolist()
        assert (left != right).all()


def test_the_seed_and_the_content_decide_the_result(folder, tmp_path):
    data = load_multimnist(folder=folder, **SIZES)
    assert same(data, load_multimnist(folder=folder, **SIZES))
    assert not same(data, load_multimnist(folder=folder, seed=1, **SIZES))
    other = write_mnist_layout(tmp_path / "other", seed=9)
    assert not same(data, load_multimnist(folder=other, **SIZES))


def test_validation_pairs_come_from_the_training_files_and_change_nothing_else(folder):
    plain = load_multimnist(folder=folder, **SIZES)
    data = load_multimnist(folder=folder, n_validation=15, **SIZES)
    assert same(plain, data)
    assert (plain.validation, data.n_validation) == ((), 15)
    source = read_idx(folder / "train-images-idx3-ubyte.gz")
    corners = {image[0, :8].tobytes() for image in source}
    pixels = (data.validation[0][:, 0] * 255).round().to(torch.uint8).numpy()
    assert {canvas[0, :8].tobytes() for canvas in pixels} <= corners


def test_plain_files_give_the_same_as_gzipped_ones(folder, tmp_path):
    plain = write_mnist_layout(tmp_path / "plain", packed=False)
    assert same(load_multimnist(folder=folder, **SIZES), load_multimnist(folder=plain, **SIZES))


def test_the_second_call_reads_the_cache(folder, own_cache, monkeypatch):
    data = load_multimnist(folder=folder, **SIZES)
    assert [path.suffix for path in cached(own_cache)] == [".npz"]
    monkeypatch.setattr("stimulus_moo.lab.data.image_pairs.read_idx", None)
    assert same(data, load_multimnist(folder=folder, **SIZES))


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "pickle", "foreign"])
def test_a_damaged_cache_is_rebuilt(folder, own_cache, damage, caplog):
    data = load_multimnist(folder=folder, **SIZES)
    (path,) = cached(own_cache)
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 3] ^= 255
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "pickle":
        np.savez(path, train_images=np.array([object()], dtype=object))
    else:
        np.savez(path, **dict.fromkeys(np.load(path).files, np.zeros(3)))
    with caplog.at_level(logging.WARNING):
        assert same(data, load_multimnist(folder=folder, **SIZES))
    assert "computing it again" in caplog.text
    caplog.clear()
    assert same(data, load_multimnist(folder=folder, **SIZES))
    assert caplog.text == ""


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(folder, tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("STIMULUS_MOO_CACHE", str(blocked))
    assert load_multimnist(folder=folder, **SIZES).n_train == 40
    assert "not cached" in caplog.text


def test_a_full_disk_leaves_no_half_file(folder, own_cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert load_multimnist(folder=folder, **SIZES).n_train == 40
    assert cached(own_cache) == []


def test_the_data_folder_is_not_written_to(folder):
    before = sorted(folder.iterdir())
    load_multimnist(folder=folder, **SIZES)
    assert sorted(folder.iterdir()) == before


def test_a_missing_file_is_named_with_the_way_to_get_it(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: .*found nothing; to get it.*data fetch mnist"):
        load_multimnist(folder=folder, **SIZES)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-images-idx3-ubyte.gz", np.zeros((30, 8, 8), np.uint8), r"28 x 28 unsigned bytes, found \(30, 8, 8\)"),
        ("train-images-idx3-ubyte.gz", np.zeros((30, 28, 28), np.int16), "of int16"),
        ("train-images-idx3-ubyte.gz", np.zeros((29, 28, 28), np.uint8), "expected 29 unsigned bytes"),
        ("t10k-labels-idx1-ubyte.gz", np.zeros((30, 1), np.uint8), "one label per image"),
        ("t10k-labels-idx1-ubyte.gz", np.zeros(30, np.uint8), "t10k-labels.*at least two classes"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(folder, name, array, message):
    (folder / name).write_bytes(gzip.compress(idx_bytes(array)))
    with pytest.raises(DataError, match=message):
        load_multimnist(folder=folder, **SIZES)


def test_other_files_in_place_of_mnist_are_refused(tmp_path):
    write_mnist_layout(tmp_path / "mnist")
    with pytest.raises(DataError, match=r"expected 47,040,016 bytes of content, found 23,536;.*data fetch mnist"):
        load_multimnist(data=tmp_path)


@pytest.mark.parametrize("wrong", [{"n_train": 0}, {"n_test": 2.5}, {"seed": -1}, {"n_train": "many"}])
def test_wrong_numbers_are_refused_before_any_file_is_read(wrong):
    with pytest.raises(InvalidOption, match=f"{next(iter(wrong))} must be (an integer|a positive integer)"):
        load_multimnist(folder="/nowhere", **wrong)


def test_mnist_itself(shared):
    shared("mnist")
    data = load_multimnist(n_train=1024, n_test=256)
    assert data.name == "multimnist"
    assert data.train[0].shape == (1024, 1, 36, 36)
    assert 0.08 < data.train[0].mean() < 0.2  # a digit covers a fifth of its square, two squares fill the canvas
    counts = torch.bincount(data.train[1], minlength=10)
    assert counts.min() > 60  # five standard deviations below a tenth of 1024 is 55
    digest = hashlib.sha256(data.train[0].numpy().tobytes()).hexdigest()
    again = load_multimnist(n_train=1024, n_test=256)
    assert hashlib.sha256(again.train[0].numpy().tobytes()).hexdigest() == digest
