"""CelebA in its official file layout: one binary task per attribute, images loaded on access."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data.celeba_lists import read_attributes, read_partition
from stimulus_moo.lab.data.dependencies import optional
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.folders import find, how_to_get
from stimulus_moo.lab.data.registry import dataset
from stimulus_moo.options import positive_integer

SPLITS = {"train": 0, "valid": 1, "test": 2}
_MOST_PIXELS = 1 << 24  # aligned CelebA images have 178 x 218 pixels


class CelebA(Dataset[tuple[Tensor, Tensor]]):
    """Map-style data set of pairs (image, attributes) from ``img_align_celeba/`` and its two lists.

    An image is a float32 tensor 3 x size x size in [0, 1]: the largest centred square, resized. Attributes
    are 40 float32 numbers: 1 for ``1`` in the list, 0 for ``-1``.

    Args:
        folder: the directory with ``img_align_celeba/``, ``list_attr_celeba.txt`` and
            ``list_eval_partition.txt``. Default: ``celeba/`` in the data folder.
        data: data folder (``--data``), see ``folders.data_folders``.
        split: ``"train"``, ``"valid"`` or ``"test"``, as in the partition list.
        size: side of the images in pixels.
        limit: number of samples to use, from the start of the split.

    Attributes:
        tasks: the 40 attribute names.

    Raises:
        DataError: a file is missing or not in the official layout. Unreadable images raise it on access.
        InvalidOption: split, size or limit is out of range.
        MissingDependency: Pillow is not installed.
    """

    synthetic = False

    def __init__(
        self,
        folder: str | PathLike[str] | None = None,
        *,
        data: str | PathLike[str] | None = None,
        split: str = "train",
        size: int = 64,
        limit: int | None = None,
    ) -> None:
        if split not in SPLITS:
            raise InvalidOption(f"split must be one of {', '.join(SPLITS)}, found {split!r}")
        self.size = positive_integer("size", size)
        stop = None if limit is None else positive_integer("limit", limit)
        optional("PIL.Image")
        place = find("celeba", data, download=False) if folder is None else Path(folder)
        table = read_attributes(place / "list_attr_celeba.txt")
        partition = read_partition(place / "list_eval_partition.txt", table.files)
        rows = np.flatnonzero(partition == SPLITS[split])[:stop]
        if not len(rows):
            raise DataError(f"{place / 'list_eval_partition.txt'}: expected images of the split {split!r}, found none")
        self.tasks = table.names
        self.source = f"CelebA in {place}, split {split}"
        self._images = place / "img_align_celeba"
        self._files = [table.files[row] for row in rows]
        self._attributes = torch.from_numpy(table.values[rows]).to(torch.float32)
        self._check_images()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._read_image(self._images / self._files[index]), self._attributes[index]

    def _check_images(self) -> None:
        try:
            present = set(os.listdir(self._images))
        except OSError as error:
            hint = how_to_get(dataset("celeba"))
            raise DataError(f"{self._images}: expected the folder of aligned images, found: {error}; {hint}") from error
        missing = [name for name in self._files if name not in present]
        if missing:
            raise DataError(
                f"{self._images / missing[0]}: expected an image of list_attr_celeba.txt, found nothing; "
                f"{len(missing)} of {len(self._files)} images of this split are missing; "
                f"{how_to_get(dataset('celeba'))}"
            )

    def _read_image(self, path: Path) -> Tensor:
        if not path.is_file():
            raise DataError(f"{path}: expected an image, found no regular file")
        pillow = optional("PIL.Image")
        try:
            with pillow.open(path, formats=("JPEG", "PNG")) as image:
                width, height = image.size
                if width * height > _MOST_PIXELS:
                    raise DataError(f"{path}: expected an image of 178 x 218 pixels, found {width} x {height}")
                side = min(width, height)
                left, top = (width - side) // 2, (height - side) // 2
                square = (left, top, left + side, top + side)
                pixels = np.asarray(
                    image.convert("RGB").resize((self.size, self.size), pillow.Resampling.BILINEAR, box=square)
                )
        except DataError:
            raise
        except Exception as error:  # for a damaged image, Pillow raises OSError, SyntaxError, ValueError and others
            raise DataError(f"{path}: expected a readable JPEG image, found it damaged ({error!r})") from error
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).to(torch.float32).div_(255)
