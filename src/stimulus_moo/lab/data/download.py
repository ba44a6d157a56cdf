"""Verified downloads of registered files with pooch; interrupted downloads are resumed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stimulus_moo.lab.data.dependencies import optional
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.registry import DataFile

_CHUNK = 1 << 16
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """Limits of a download.

    Attributes:
        attempts: connections per mirror.
        timeout: seconds without data.
        pause: seconds between attempts.
        window, slowest: a mirror that sends less than ``slowest`` bytes per second, averaged over ``window`` seconds,
            is given up. So a download ends within its size divided by ``slowest``, plus one window per attempt.
    """

    attempts: int = 4
    timeout: float = 30.0
    pause: float = 1.0
    window: float = 30.0
    slowest: float = 1000.0


def download(file: DataFile, folder: Path, *, progress: bool = True, patience: Patience | None = None) -> Path:
    """Download one registered file into ``folder``, trying its mirrors in order.

    The file gets its final name only after it is complete and verified, even if several processes download it at once.
    An interrupted connection is resumed where it stopped.

    Args:
        file: entry of the registry.
        folder: target folder; created if necessary.
        progress: show a progress bar on standard error.
        patience: limits for each mirror.

    Returns:
        The file's path.

    Raises:
        DataError: no mirror delivered the expected file; the message has one reason per mirror.
        MissingDependency: pooch or tqdm is not installed.
    """
    pooch = optional("pooch")
    target = folder / file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{target}: expected a folder to download into, found: {error}") from error
    reasons = []
    for url in file.urls:
        fetch = _ResumingDownloader(file.download_size, progress, patience or Patience())
        known_hash = f"sha256:{file.download_sha256}"
        try:
            return Path(pooch.retrieve(url, known_hash, fname=file.name, path=folder, downloader=fetch))
        except (DataError, OSError, ValueError) as error:  # requests raises OSError, a wrong hash raises ValueError
            _logger.info("%s: %s", url, error)
            reasons.append(f"{url}: {error}")
    raise DataError(
        f"{target}: expected to download {file.download_size:,} bytes with sha256 {file.download_sha256}; "
        + ("; ".join(reasons) or "no mirror is known")
    )


class _ResumingDownloader:
    """Downloader for pooch that resumes after interruptions and never stores more bytes than expected."""

    def __init__(self, expected: int, progress: bool, patience: Patience) -> None:
        self.expected = expected
        self.progress = progress
        self.patience = patience

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        bar = optional("tqdm").tqdm(
            total=self.expected, unit="B", unit_scale=True, desc=url.rpartition("/")[2], disable=not self.progress
        )
        transient = optional("requests").exceptions
        # direct write: pooch created this temporary file, and moves it to its name once its checksum is right
        with bar, open(output_file, "w+b") as output:
            for attempt in range(self.patience.attempts):
                try:
                    self._continue(url, output, bar.update)
                except (transient.ConnectionError, transient.Timeout, transient.ChunkedEncodingError) as error:
                    if attempt + 1 == self.patience.attempts:
                        raise
                    _logger.info("%s: interrupted at byte %d (%s), trying again", url, output.tell(), error)
                if output.tell() == self.expected:
                    return
                time.sleep(self.patience.pause)
            raise DataError(f"expected {self.expected:,} bytes, the server closed after {output.tell():,}")

    def _continue(self, url: str, output: Any, advance: Callable[[int], object]) -> None:
        """Append the missing bytes to ``output``, or start again if the server cannot resume."""
        position = output.tell()
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={position}-"} if position else {})
        get = optional("requests").get
        with get(url, headers=headers, stream=True, timeout=self.patience.timeout) as response:
            response.raise_for_status()
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise DataError("expected a data file, the server sent a web page (text/html)")
            resumed = response.headers.get("Content-Range", "").startswith(f"bytes {position}-")
            if position and not (response.status_code == 206 and resumed):
                advance(-position)
                output.seek(0)
                output.truncate()
            for chunk in self._chunks(response):
                if output.tell() + len(chunk) > self.expected:
                    raise DataError(f"expected {self.expected:,} bytes, the server sent more")
                output.write(chunk)
                advance(len(chunk))

    def _chunks(self, response: Any) -> Iterator[bytes]:
        """Yield the body as it arrives, and raise DataError if it arrives too slowly."""
        read = getattr(response.raw, "read1", response.raw.read)  # ``read`` would wait for a whole chunk
        started, received = time.monotonic(), 0
        while chunk := _translated(read):
            yield chunk
            received += len(chunk)
            seconds = time.monotonic() - started
            if seconds >= self.patience.window:
                if received < self.patience.slowest * seconds:
                    raise DataError(
                        f"the server is too slow: it sent {received:,} bytes in {seconds:.3g} s, expected at least "
                        f"{self.patience.slowest:,.0f} bytes per second; try again later"
                    )
                started, received = time.monotonic(), 0


def _translated(read: Callable[[int], bytes]) -> bytes:
    """Read some bytes; errors of urllib3 become those of requests, as in ``iter_content``."""
    try:
        return read(_CHUNK)
    except optional("urllib3").exceptions.HTTPError as error:
        raise optional("requests").exceptions.ConnectionError(error) from error
