"""Functions behind ``stimulus-moo data list``, ``fetch`` and ``check``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from stimulus_moo.lab.data.checksums import problem, quick_problem
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.folders import cache_folder, data_folders, fetch_into, how_to_get, member
from stimulus_moo.lab.data.registry import DATASETS, DataFile, DataSet, dataset

PRESENT, MISSING, DAMAGED, BUILT_IN = "present", "missing", "damaged", "built in"


@dataclass(frozen=True)
class DataStatus:
    """Status of a data set.

    Attributes:
        name: name in the registry.
        title: description in one line.
        state: ``"present"``, ``"missing"``, ``"damaged"`` (also: some files missing) or ``"built in"``.
        folder: folder of the files, if found.
        problems: one line per problem: the file, what was expected, what was found.
        how_to_get: instructions for obtaining it.
        origin: authors.
        licence: licence.
    """

    name: str
    title: str
    state: str
    folder: Path | None
    problems: tuple[str, ...]
    how_to_get: str
    origin: str
    licence: str


def list_data(data: str | PathLike[str] | None = None) -> list[DataStatus]:
    """Return the status of every data set, checking only that files exist and have the right size.

    Args:
        data: data folder (``--data``), see ``folders.data_folders``.

    Raises:
        DataError: the data folder does not exist.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     {status.name: status.state for status in list_data(folder)}["digits"]
    'built in'
    """
    return [_status(entry, data, quick_problem) for entry in DATASETS.values()]


def check_data(name: str, data: str | PathLike[str] | None = None) -> DataStatus:
    """Return the status of one data set, verifying the SHA-256 of each file.

    Args:
        name: a name in the registry.
        data: data folder (``--data``), see ``folders.data_folders``.

    Raises:
        DataError: the data folder does not exist.
        InvalidOption: no data set has this name.

    >>> check_data("attributes").state
    'built in'
    """
    return _status(dataset(name), data, problem)


def fetch_data(name: str, into: str | PathLike[str] | None = None, *, progress: bool = True) -> DataStatus:
    """Download the missing and damaged files of one data set, and return its status.

    A damaged file is replaced only after its download is complete and verified.

    Args:
        name: a name in the registry.
        into: data folder to write to. Default: the user's cache.
        progress: show a progress bar.

    Raises:
        DataError: a download failed, or the data set must be obtained manually; the message gives instructions.
        InvalidOption: no data set has this name.

    >>> fetch_data("digits").state
    'built in'
    """
    entry = dataset(name)
    root = cache_folder() if into is None else Path(into).expanduser()
    folder = root / entry.folder
    if not all(file.urls for file in entry.files):
        status = _status_in(entry, folder, problem)
        if status.state == PRESENT:
            return status
        raise DataError(f"{entry.name} cannot be downloaded: {how_to_get(entry, folder)}")
    wanted = [file for file in entry.files if (path := member(folder, file)) is None or problem(file, path)]
    fetch_into(folder, entry, wanted, progress=progress)
    return _status_in(entry, folder, problem)


def _status(
    entry: DataSet, data: str | PathLike[str] | None, compare: Callable[[DataFile, Path], str | None]
) -> DataStatus:
    """Return the status in the first folder that has any of the files."""
    if entry.built_in:
        return _status_in(entry, None, compare)
    places = [root / entry.folder for root in data_folders(data)]
    used = [place for place in places if any(member(place, file) for file in entry.files)]
    return _status_in(entry, used[0] if used else None, compare)


def _status_in(entry: DataSet, folder: Path | None, compare: Callable[[DataFile, Path], str | None]) -> DataStatus:
    problems = []
    if folder is not None:
        for file in entry.files:
            path = member(folder, file)
            found = compare(file, path) if path else f"{folder / file.name}: expected a file, found nothing"
            problems += [found] if found else []
    if entry.built_in:
        state = BUILT_IN
    elif folder is None or not any(member(folder, file) for file in entry.files):
        state = MISSING
    else:
        state = DAMAGED if problems else PRESENT
    return DataStatus(
        name=entry.name,
        title=entry.title,
        state=state,
        folder=folder if state in (PRESENT, DAMAGED) else None,
        problems=tuple(problems),
        how_to_get=how_to_get(entry),
        origin=entry.origin,
        licence=entry.licence,
    )
