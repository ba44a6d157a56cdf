"""MultiMNIST: two different digits on one canvas, one task each, from four IDX files named as MNIST's."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo.lab.data.cache import Arrays, cache_path, load_or_build
from stimulus_moo.lab.data.checksums import file_sha256, problem
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.folders import find, how_to_get, member
from stimulus_moo.lab.data.idx import read_idx
from stimulus_moo.lab.data.pairing import draw_pairs, overlay
from stimulus_moo.lab.data.registry import dataset
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.options import positive_integer, seed_number

CANVAS = 36
_DIGIT = 28
_VERSION = 1  # version of the cache; increase it when pairing or overlay change


def load_multimnist(
    *,
    n_train: int = 60_000,
    n_test: int = 10_000,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load MultiMNIST; the tasks are to classify the top-left and the bottom-right digit.

    Each sample combines two 28 x 28 images of different classes on a 36 x 36 canvas; where they overlap, the brighter
    pixel is kept. Training samples come from the ``train`` files, test samples from the ``t10k`` files. The result
    depends only on the content of the files, the seed and the two sizes, and is stored in the user's cache.

    Args:
        n_train: training samples.
        n_test: test samples.
        seed: seed of the pairs.
        folder: a directory with four IDX files named as MNIST's, with or without ``.gz``, e.g.
            Fashion-MNIST. Default: MNIST, with verified checksums.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: whether MNIST may be downloaded if it is not found.

    Returns:
        ``train`` and ``test`` hold images (float32 in [0, 1], n x 1 x 36 x 36), left labels and right labels
        (int64).

    Raises:
        DataError: a file is missing, damaged or not in MNIST's layout.
        InvalidOption: a size or the seed is out of range.
    """
    n_train, n_test = positive_integer("n_train", n_train), positive_integer("n_test", n_test)
    seed = seed_number(seed)
    place = find("mnist", data, download=download) if folder is None else Path(folder)
    files = _four_files(place)

    def build() -> Arrays:
        if folder is None:
            _check_registered(files)
        train = _compose(files[0], files[1], n_train, np.random.default_rng([seed, 0]))
        test = _compose(files[2], files[3], n_test, np.random.default_rng([seed, 1]))
        return _prefixed("train", train) | _prefixed("test", test)

    contents = [file_sha256(path) for path in files]
    path = cache_path("multimnist", _VERSION, folder is None, contents, seed, n_train, n_test)
    arrays = load_or_build(path, _layout("train", n_train) | _layout("test", n_test), build)
    train, test = (_tensors(arrays, split) for split in ("train", "test"))
    name = "multimnist" if folder is None else f"multimnist ({place.name})"
    return TaskData(name, train, test, ("left", "right"), False, f"IDX files in {place}, paired with seed {seed}")


def _four_files(folder: Path) -> list[Path]:
    entry = dataset("mnist")
    paths = [member(folder, file) for file in entry.files]
    for file, path in zip(entry.files, paths, strict=True):
        if path is None:
            raise DataError(
                f"{folder / file.name}: expected one of MNIST's four IDX files (with or without .gz), "
                f"found nothing; {how_to_get(entry)}"
            )
    return [path for path in paths if path is not None]


def _check_registered(files: list[Path]) -> None:
    entry = dataset("mnist")
    for file, path in zip(entry.files, files, strict=True):
        if found := problem(file, path):
            raise DataError(f"{found}; {how_to_get(entry)}; for other IDX files name their folder instead")


def _compose(images_file: Path, labels_file: Path, n: int, generator: np.random.Generator) -> dict[str, NDArray[Any]]:
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.dtype != np.uint8 or images.shape[1:] != (_DIGIT, _DIGIT):
        raise DataError(f"{images_file}: expected n x 28 x 28 unsigned bytes, found {images.shape} of {images.dtype}")
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{labels_file}: expected {len(images)} unsigned bytes, one label per image, "
            f"found {labels.shape} of {labels.dtype}"
        )
    try:
        first, second = draw_pairs(labels, n, generator)
    except DataError as error:
        raise DataError(f"{labels_file}: {error}") from error
    return {
        "images": overlay(images[first], images[second], CANVAS),
        "left": labels[first],
        "right": labels[second],
    }


def _prefixed(split: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {f"{split}_{name}": array for name, array in arrays.items()}


def _layout(split: str, n: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    shapes = {"images": (n, CANVAS, CANVAS), "left": (n,), "right": (n,)}
    return {f"{split}_{key}": ("uint8", shape) for key, shape in shapes.items()}


def _tensors(arrays: Arrays, split: str) -> tuple[Tensor, ...]:
    images = torch.from_numpy(arrays[f"{split}_images"]).unsqueeze(1).to(torch.float32).div_(255)
    return images, *(torch.from_numpy(arrays[f"{split}_{side}"]).long() for side in ("left", "right"))
