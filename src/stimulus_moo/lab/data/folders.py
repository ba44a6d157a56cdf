"""Location of data: an explicit folder, STIMULUS_MOO_DATA, the user's cache, or a download, in this order."""

from __future__ import annotations

import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data.dependencies import optional
from stimulus_moo.lab.data.download import download as download_file
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.registry import DataFile, DataSet, dataset

DATA_VARIABLE = "STIMULUS_MOO_DATA"
CACHE_VARIABLE = "STIMULUS_MOO_CACHE"


def cache_folder() -> Path:
    """Return the folder for downloads and cached data: ``STIMULUS_MOO_CACHE``, or the platform's user cache.

    Raises:
        MissingDependency: the variable is not set and pooch is not installed.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(optional("pooch").os_cache("stimulus-moo"))


def data_folders(data: str | PathLike[str] | None = None) -> list[Path]:
    """Return the folders to search, in order: ``data`` or ``STIMULUS_MOO_DATA``, then the user's cache.

    Args:
        data: a folder that holds ``mnist/``, ``riverflow/``, ``ltr/`` and the like (``--data``).

    Raises:
        DataError: the folder named by ``data`` or the variable does not exist.
    """
    chosen, said_by = (data, "--data") if data is not None else (os.environ.get(DATA_VARIABLE), DATA_VARIABLE)
    if not chosen:
        return [cache_folder()]
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder}: expected the data folder that {said_by} names, found no such directory")
    return [folder, cache_folder()]


def member(folder: Path, file: DataFile) -> Path | None:
    """Return the path of ``file``, packed or unpacked, in a data set's folder, or None.

    >>> member(Path("/nowhere"), DataFile("train-labels-idx1-ubyte.gz")) is None
    True
    """
    for name in (file.name, file.name.removesuffix(".gz"), f"{file.name}.gz"):
        if (folder / name).exists():
            return folder / name
    return None


def find(name: str, data: str | PathLike[str] | None = None, *, download: bool = True, progress: bool = True) -> Path:
    """Return the folder with all files of a data set; missing files are downloaded to the user's cache.

    Args:
        name: a name in the registry.
        data: see ``data_folders``.
        download: whether missing files may be downloaded.
        progress: show a progress bar while downloading.

    Returns:
        A folder with every file of the data set. Checksums are not verified here, see ``checksums``.

    Raises:
        DataError: files are missing and cannot be downloaded, or an explicitly named folder is incomplete.
        InvalidOption: no data set has this name, or it is built in and has no files.
    """
    entry = dataset(name)
    if entry.built_in:
        raise InvalidOption(f"{name!r} is built in and has no files to find")
    places = [root / entry.folder for root in data_folders(data)]
    for place in places:
        missing = [file for file in entry.files if member(place, file) is None]
        if not missing:
            return place
        if len(missing) < len(entry.files) and place != places[-1]:
            raise DataError(
                f"{place / missing[0].name}: expected beside the others, found nothing; {how_to_get(entry)}"
            )
    if not download or not all(file.urls for file in entry.files):
        looked = " and ".join(str(place) for place in places)
        raise DataError(f"{entry.files[0].name}: expected in {looked}, found nothing; {how_to_get(entry)}")
    missing = [file for file in entry.files if member(places[-1], file) is None]
    return fetch_into(places[-1], entry, missing, progress=progress)


def fetch_into(folder: Path, entry: DataSet, files: Iterable[DataFile], *, progress: bool = True) -> Path:
    """Download some files of a data set into ``folder``, replacing existing ones, and return the folder.

    Raises:
        DataError: a download failed; the message explains how to obtain the files manually.
    """
    for file in files:
        try:
            download_file(file, folder, progress=progress)
        except DataError as error:
            raise DataError(f"{error}; {how_to_get(entry, folder)}") from error
    return folder


def how_to_get(entry: DataSet, folder: Path | None = None) -> str:
    """Return the instructions for obtaining a data set, the last sentence of errors about its files.

    >>> how_to_get(dataset("digits"))
    'digits: nothing to get'
    """
    if entry.built_in:
        return f"{entry.name}: {entry.by_hand}"
    fetch = f"run `stimulus-moo data fetch {entry.name}`, or " if all(file.urls for file in entry.files) else ""
    where = folder or Path(f"<{DATA_VARIABLE}>", entry.folder)
    return f"to get it, {fetch}{entry.by_hand}, and put it in {where}"
