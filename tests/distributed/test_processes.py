"""What takes several processes: runs killed while they write (``make faults`` kills fifty), downloads side by side."""

from __future__ import annotations

import hashlib
import random
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from reliability import victim
from reliability.kills import Toll, leftovers
from stimulus_moo.lab.cli import arguments as cli_arguments
from stimulus_moo.lab.data.download import Patience, download
from stimulus_moo.lab.data.registry import DataFile
from stimulus_moo.lab.runs.runner import run_one
from tests.distributed.launch import quick_starter
from tests.lab import fake_lab

ROUNDS = 6  # kills
CONTENT = bytes(range(256)) * 2000


def child(strike_at: int, arguments: list[str]) -> None:
    cli_arguments.catalogue = fake_lab.catalogue
    victim.main([str(strike_at), *arguments])


def test_runs_killed_while_they_write_lose_nothing(tmp_path: Path) -> None:
    method, whole = "stimulus-m+", tmp_path / "whole"
    run_one(fake_lab.TINY, method, fake_lab.TINY.settings, 0, whole)
    draw, toll, place = random.Random(1), Toll(), tmp_path / "run-0"
    while toll.kills < ROUNDS or (place / "settings.json").exists():
        strike_at = draw.randint(1, 80) if toll.kills < ROUNDS else 0
        arguments = ["run", "tiny", "--method", method, "--out", str(place), "--checkpoint-every", "3", "--resume"]
        process = quick_starter().Process(target=child, args=(strike_at, arguments))
        process.start()
        process.join(60)
        if process.exitcode == -signal.SIGKILL:
            toll.kills += 1
            toll.half_written += leftovers(place)
        else:
            assert process.exitcode == 0
            toll.add(place, whole)
            place = tmp_path / f"run-{toll.runs}"
    assert toll.kills == ROUNDS
    assert toll.half_written > 0  # some were killed in the middle of a file
    assert (toll.lines_lost, toll.lines_doubled, toll.bytes_lost, toll.unequal) == (0, 0, 0, [])


class Slow(BaseHTTPRequestHandler):
    """Sends half, waits until two are asking, then sends the rest."""

    both = threading.Barrier(2)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2])
        self.both.wait(30)
        self.wfile.write(CONTENT[len(CONTENT) // 2 :])

    def log_message(self, *_: object) -> None:
        pass


def fetch(url: str, folder: str) -> None:
    file = DataFile("file.bin", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), (url,))
    download(file, Path(folder), progress=False, patience=Patience(attempts=1, timeout=30, pause=0))


def test_two_processes_that_download_at_once_leave_one_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/file.bin"
        both = [quick_starter().Process(target=fetch, args=(url, str(tmp_path))) for _ in range(2)]
        for process in both:
            process.start()
        for process in both:
            process.join(60)
        assert [process.exitcode for process in both] == [0, 0]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
