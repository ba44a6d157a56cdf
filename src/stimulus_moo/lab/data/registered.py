"""Files of a registered data set: found, verified by checksum, or taken from a folder of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from stimulus_moo.lab.data.checksums import problem
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.folders import find, how_to_get, member
from stimulus_moo.lab.data.registry import dataset


def verified_files(
    name: str,
    data: str | PathLike[str] | None = None,
    *,
    folder: str | PathLike[str] | None = None,
    download: bool = True,
) -> list[Path]:
    """Return the paths of a data set's files, in the order of the registry.

    Args:
        name: a name in the registry.
        data: data folder (``--data``), see ``folders.data_folders``.
        folder: a folder with files of the same names, which may have other content. Default: the registered files,
            with verified checksums.
        download: whether missing files may be downloaded.

    Raises:
        DataError: a file is missing, or its content is not the registered one.
        InvalidOption: no data set has this name, or it is built in.
    """
    paths = named_files(name, data, folder=folder, download=download)
    if folder is None:
        verify(name, paths)
    return paths


def named_files(
    name: str,
    data: str | PathLike[str] | None = None,
    *,
    folder: str | PathLike[str] | None = None,
    download: bool = True,
) -> list[Path]:
    """Return the same paths without looking into the files."""
    entry = dataset(name)
    place = find(name, data, download=download) if folder is None else Path(folder)
    paths = [member(place, file) for file in entry.files]
    for file, path in zip(entry.files, paths, strict=True):
        if path is None:
            raise DataError(f"{place / file.name}: expected a file of {name}, found nothing; {how_to_get(entry)}")
    return [path for path in paths if path is not None]


def verify(name: str, paths: Sequence[Path]) -> None:
    """Raise DataError unless the files of a data set have the registered content."""
    entry = dataset(name)
    for file, path in zip(entry.files, paths, strict=True):
        if found := problem(file, path):
            raise DataError(f"{found}; {how_to_get(entry)}; for files of your own pass their folder")
