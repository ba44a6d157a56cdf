import contextlib
import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stimulus_moo.lab.data import DATASETS, DataError, check_data, fetch_data, find
from stimulus_moo.lab.data.download import Patience, download
from stimulus_moo.lab.data.registry import DataFile, DataSet

CONTENT = hashlib.shake_256(b"content").digest(300_000)
HALF = len(CONTENT) // 2
QUICK = Patience(attempts=3, timeout=0.3, pause=0.0, window=0.3)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        behaviour = self.path.split("/")[1]
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.server.requests.append((behaviour, start))
        getattr(self, behaviour)(start)

    def answer(self, status, body, length=None, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def good(self, start):
        self.answer(200, CONTENT)

    def missing(self, start):
        self.answer(404, b"no")

    def html(self, start):
        self.answer(200, b"<html>log in first</html>", Content_Type="text/html; charset=utf-8")

    def wrong(self, start):
        self.answer(200, bytes(len(CONTENT)))

    def longer(self, start):
        self.answer(200, CONTENT + b"more")

    def lies_short(self, start):
        """Claim a length and send more."""
        self.answer(200, CONTENT, length=HALF)

    def lies_long(self, start):
        """Claim a length that never comes."""
        self.answer(200, CONTENT[:HALF], length=10**12)

    def endless(self, start):
        """Claim no length and send on and on."""
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.released.is_set():
                self.wfile.write(CONTENT)

    def shorter(self, start):
        self.answer(200, CONTENT[:HALF])

    def cut(self, start):
        """Drop the connection half-way, then continue where asked to."""
        if start:
            place = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
            self.answer(206, CONTENT[start:], Content_Range=place)
        else:
            self.answer(200, CONTENT[:HALF], length=len(CONTENT))

    def cut_once(self, start):
        """Drop the first connection half-way, and know no ranges."""
        first = len(self.server.requests) == 1
        self.answer(200, CONTENT[:HALF] if first else CONTENT, length=len(CONTENT))

    def wrong_range(self, start):
        """Answer a request for the rest with another part."""
        body = CONTENT[:HALF]
        self.answer(206 if start else 200, body, length=len(CONTENT), Content_Range="bytes 7-99/100")

    def stall(self, start):
        self.answer(200, CONTENT[:HALF], length=len(CONTENT))
        self.server.released.wait(5)

    def drip(self, start):
        """Send one byte now and then, without end."""
        self._drip(0)

    def slows_down(self, start):
        """Send half of the content, then one byte now and then."""
        self._drip(HALF)

    def _drip(self, at_once):
        self.answer(200, CONTENT[:at_once], length=len(CONTENT))
        with contextlib.suppress(OSError):
            while not self.server.released.wait(0.02):
                self.wfile.write(b"x")

    def drip_chunks(self, start):
        """Send one byte now and then, and no length."""
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.released.wait(0.02):
                self.wfile.write(b"1\r\nx\r\n")

    def steady(self, start):
        """Send the content in pieces, for longer than a window."""
        self.answer(200, b"", length=len(CONTENT))
        for i in range(0, len(CONTENT), 20_000):
            self.wfile.write(CONTENT[i : i + 20_000])
            time.sleep(0.03)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.released = [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join(5)


def entry(server, *behaviours: str) -> DataFile:
    urls = tuple(f"http://127.0.0.1:{server.server_port}/{behaviour}/file.bin" for behaviour in behaviours)
    return DataFile("file.bin", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), urls)


def get(file: DataFile, folder):
    return download(file, folder, progress=False, patience=QUICK)


def test_a_good_mirror_gives_the_file(server, tmp_path):
    assert get(entry(server, "good"), tmp_path / "new").read_bytes() == CONTENT


def test_a_cut_connection_is_resumed_where_it_stopped(server, tmp_path):
    assert get(entry(server, "cut"), tmp_path).read_bytes() == CONTENT
    assert server.requests[0] == ("cut", 0)
    assert 0 < server.requests[1][1] <= HALF


def test_a_server_without_ranges_is_asked_again_from_the_start(server, tmp_path):
    assert get(entry(server, "cut_once"), tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("missing", "404"),
        ("html", "web page"),
        ("wrong", "hash"),
        ("longer", "the server sent more"),
        ("shorter", "the server closed after"),
        ("lies_short", "the server closed after"),
        ("lies_long", "file.bin"),
        ("endless", "the server sent more"),
        ("wrong_range", "file.bin"),
        ("stall", "timed out"),
        ("drip", "the server is too slow: it sent"),
        ("slows_down", "expected at least 1,000 bytes per second"),
        ("drip_chunks", "the server is too slow: it sent"),
    ],
)
def test_a_bad_mirror_is_refused_in_bounded_time_and_leaves_nothing(server, tmp_path, behaviour, message):
    started = time.monotonic()
    with pytest.raises(DataError) as caught:
        get(entry(server, behaviour), tmp_path)
    assert time.monotonic() - started < 5
    assert message in str(caught.value)
    assert str(tmp_path / "file.bin") in str(caught.value)
    assert f"expected to download {len(CONTENT):,} bytes" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_slow_mirror_is_given_up_and_the_next_one_tried(server, tmp_path):
    assert get(entry(server, "drip", "good"), tmp_path).read_bytes() == CONTENT
    assert [behaviour for behaviour, _ in server.requests] == ["drip", "good"]


def test_a_mirror_that_is_fast_enough_may_take_longer_than_a_window(server, tmp_path):
    assert get(entry(server, "steady"), tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_the_next_mirror_is_tried(server, tmp_path):
    assert get(entry(server, "missing", "html", "good"), tmp_path).read_bytes() == CONTENT


def test_nobody_listening_is_one_reason_per_mirror(server, tmp_path):
    server.server_close()
    with pytest.raises(DataError, match=r"/good/file\.bin: .*; .*/cut/file\.bin: "):
        get(entry(server, "good", "cut"), tmp_path)


def test_a_folder_that_cannot_be_made_is_named(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="expected a folder to download into"):
        get(entry(server, "good"), tmp_path / "file" / "below")
    assert server.requests == []


def test_two_downloads_at_once_leave_one_good_file(server, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: get(entry(server, "cut"), tmp_path), range(2)))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


@pytest.fixture
def tiny(server, monkeypatch):
    def register(*behaviours: str) -> DataSet:
        made = DataSet("tiny", "a test", "tiny", (entry(server, *behaviours),), "here", "none", "copy file.bin")
        monkeypatch.setitem(DATASETS, "tiny", made)
        monkeypatch.setattr("stimulus_moo.lab.data.download.Patience", lambda: QUICK)
        return made

    return register


def test_find_downloads_into_the_cache_once(tiny, server, own_cache):
    tiny("good")
    assert find("tiny", progress=False) == find("tiny", progress=False) == own_cache / "tiny"
    assert len(server.requests) == 1


def test_find_does_not_download_when_told_not_to(tiny, server):
    tiny("good")
    with pytest.raises(DataError, match=r"file\.bin: expected in .*tiny, found nothing; to get it, run"):
        find("tiny", download=False)
    assert server.requests == []


def test_a_failed_download_says_how_to_get_the_file_by_hand(tiny, own_cache):
    tiny("html")
    with pytest.raises(DataError, match=r"or copy file\.bin, and put it in") as caught:
        find("tiny", progress=False)
    assert str(own_cache / "tiny") in str(caught.value)


def test_fetch_replaces_a_damaged_file(tiny, own_cache):
    tiny("good")
    (own_cache / "tiny").mkdir()
    (own_cache / "tiny" / "file.bin").write_bytes(b"damaged")
    assert check_data("tiny").state == "damaged"
    assert fetch_data("tiny", progress=False).state == "present"
    assert check_data("tiny").state == "present"


def test_a_fetch_that_fails_keeps_what_was_there(tiny, own_cache):
    tiny("html")
    (own_cache / "tiny").mkdir()
    (own_cache / "tiny" / "file.bin").write_bytes(b"something else")
    with pytest.raises(DataError, match="web page"):
        fetch_data("tiny", progress=False)
    assert (own_cache / "tiny" / "file.bin").read_bytes() == b"something else"


def test_fetch_writes_into_the_folder_asked_for(tiny, tmp_path):
    tiny("good")
    status = fetch_data("tiny", tmp_path, progress=False)
    assert (status.state, status.folder) == ("present", tmp_path / "tiny")


def test_a_progress_bar_is_shown(server, tmp_path, capsys):
    download(entry(server, "good"), tmp_path, patience=QUICK)
    assert "file.bin: 100%" in capsys.readouterr().err
