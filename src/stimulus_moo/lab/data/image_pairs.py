"""Two images on one canvas, one task each, from IDX files in MNIST's layout; results are cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stimulus_moo.lab.data.cache import Arrays, cache_path, load_or_build
from stimulus_moo.lab.data.checksums import file_sha256
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.idx import read_idx
from stimulus_moo.lab.data.pairing import draw_pairs, overlay
from stimulus_moo.lab.data.registered import named_files, verify
from stimulus_moo.options import natural_number, positive_integer, seed_number

CANVAS = 36
_SIDE = 28
_VERSION = 2  # version of the cache; increase it when pairing or overlay change
_STREAMS = {"train": 0, "test": 1, "validation": 2}  # each split has a random stream of its own


@dataclass(frozen=True)
class ImageFiles:
    """The four IDX files of a data set in MNIST's layout.

    Attributes:
        folder: where they are.
        train, test: the files of images and labels of each part.
        registered: name in the registry if their checksums must match, otherwise empty.
    """

    folder: Path
    train: tuple[Path, Path]
    test: tuple[Path, Path]
    registered: str

    def check(self) -> None:
        """Verify the checksums of registered files.

        Raises:
            DataError: the content of a file is not the registered one.
        """
        if self.registered:
            verify(self.registered, (*self.train, *self.test))


@dataclass(frozen=True)
class PairCounts:
    """Checked numbers of pairs per split, and the seed."""

    train: int
    validation: int
    test: int
    seed: int


def pair_counts(n_train: int, n_validation: int, n_test: int, seed: int) -> PairCounts:
    """Check the sizes and the seed of a data set of pairs.

    Raises:
        InvalidOption: one of them is out of range.
    """
    return PairCounts(
        positive_integer("n_train", n_train),
        natural_number("n_validation", n_validation),
        positive_integer("n_test", n_test),
        seed_number(seed),
    )


def image_files(
    name: str, folder: str | PathLike[str] | None, data: str | PathLike[str] | None, download: bool
) -> ImageFiles:
    """Return the files of a registered data set, or those of the same names in ``folder``.

    Raises:
        DataError: a file is missing.
    """
    images, labels, test_images, test_labels = named_files(name, data, folder=folder, download=download)
    registered = name if folder is None else ""
    return ImageFiles(images.parent, (images, labels), (test_images, test_labels), registered)


def load_pairs(
    name: str, left: ImageFiles, right: ImageFiles, counts: PairCounts
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Return the splits of a data set of pairs, from the user's cache if it has them.

    Args:
        name: prefix of the cache file.
        left, right: where the top-left and the bottom-right images come from. If it is the same place, the two images
            of a pair are of different classes; otherwise they are drawn independently.
        counts: sizes and seed.

    Returns:
        ``"train"``, ``"validation"`` and ``"test"``: images (float32 in [0, 1], n x 1 x 36 x 36), left labels and right
        labels (int64). Validation pairs come from the training files.

    Raises:
        DataError: a file is damaged, or not in MNIST's layout.
    """
    sizes = {split: getattr(counts, split) for split in _STREAMS}
    sources = (left,) if left == right else (left, right)

    def build() -> Arrays:
        for source in sources:
            source.check()
        arrays: dict[str, NDArray[Any]] = {}
        for split, n in sizes.items():
            generator = np.random.default_rng([counts.seed, _STREAMS[split]])
            files = [source.test if split == "test" else source.train for source in sources]
            arrays |= {f"{split}_{key}": array for key, array in _compose(files, n, generator).items()}
        return arrays

    contents = [file_sha256(path) for source in sources for path in (*source.train, *source.test)]
    checked = [bool(source.registered) for source in sources]
    path = cache_path(name, _VERSION, checked, contents, counts.seed, *sizes.values())
    arrays = load_or_build(path, _layout(sizes), build)
    return {split: _tensors(arrays, split) for split in _STREAMS}


def _compose(files: Sequence[tuple[Path, Path]], n: int, generator: np.random.Generator) -> dict[str, NDArray[Any]]:
    parts = [_read(*pair) for pair in files]
    (left_images, left_labels), (right_images, right_labels) = parts[0], parts[-1]
    if len(parts) == 1:
        try:
            first, second = draw_pairs(left_labels, n, generator)
        except DataError as error:
            raise DataError(f"{files[0][1]}: {error}") from error
    else:
        first, second = (generator.integers(len(labels), size=n) for labels in (left_labels, right_labels))
    return {
        "images": overlay(left_images[first], right_images[second], CANVAS),
        "left": left_labels[first],
        "right": right_labels[second],
    }


def _read(images_file: Path, labels_file: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.dtype != np.uint8 or images.shape[1:] != (_SIDE, _SIDE):
        raise DataError(f"{images_file}: expected n x 28 x 28 unsigned bytes, found {images.shape} of {images.dtype}")
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{labels_file}: expected {len(images)} unsigned bytes, one label per image, "
            f"found {labels.shape} of {labels.dtype}"
        )
    if not len(images):
        raise DataError(f"{images_file}: expected images, found none")
    return images, labels


def _layout(sizes: dict[str, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    shapes: dict[str, tuple[int, ...]] = {"images": (CANVAS, CANVAS), "left": (), "right": ()}
    return {f"{split}_{key}": ("uint8", (n, *shape)) for split, n in sizes.items() for key, shape in shapes.items()}


def _tensors(arrays: Arrays, split: str) -> tuple[Tensor, Tensor, Tensor]:
    images = torch.from_numpy(arrays[f"{split}_images"]).unsqueeze(1).to(torch.float32).div_(255)
    left, right = (torch.from_numpy(arrays[f"{split}_{side}"]).long() for side in ("left", "right"))
    return images, left, right
