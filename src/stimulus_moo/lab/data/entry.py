"""Entries of the registry: a data set and its files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataFile:
    """One file of a data set.

    A gzipped file is identified by its unpacked content, because mirrors compress it differently.

    Attributes:
        name: path below the data set's folder.
        sha256: checksum of the content (unpacked, if the name ends in ``.gz``); None if none is known.
        size: bytes of the content.
        urls: where it can be downloaded, in order of preference.
        packed_sha256: checksum of the file the mirrors serve; empty if that is the content itself.
        packed_size: bytes of the file the mirrors serve; 0 if that is the content itself.
    """

    name: str
    sha256: str | None = None
    size: int = 0
    urls: tuple[str, ...] = ()
    packed_sha256: str = ""
    packed_size: int = 0

    @property
    def download_sha256(self) -> str | None:
        """Checksum of the file as downloaded."""
        return self.packed_sha256 or self.sha256

    @property
    def download_size(self) -> int:
        """Bytes of the file as downloaded."""
        return self.packed_size or self.size


@dataclass(frozen=True)
class DataSet:
    """A data set: ``folder`` and ``files`` below a data folder, or none if it is built in."""

    name: str
    title: str
    folder: str
    files: tuple[DataFile, ...]
    origin: str
    licence: str
    by_hand: str

    @property
    def built_in(self) -> bool:
        """Whether the data set needs no files."""
        return not self.files
