"""Fuzz the file readers with atheris, a coverage-guided fuzzer: ``python -m reliability fuzz``.

Each kind of file of ``reliability.inputs`` is fuzzed in its own process, with a limit on memory and on the time for a
single file. A file that is neither read nor refused with a typed error ends that process and is shown.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

TITLE = "Files"
TEXT = """
[atheris](https://github.com/google/atheris) generates files from valid examples, guided by the branches that the
readers take. A file must be read or refused with a `StimulusError`. A file that takes more than 10 seconds or 2 GB of
memory is a failure. The tests fuzz the same readers with hypothesis.
"""
COLUMNS = ("kind of file", "files", "branches seen", "failures")
RUNS = 4_000
SECONDS = 120  # maximum for one kind of file
_MEMORY = 2048


def rows(*, quick: bool = False, runs: int = RUNS) -> list[list[object]]:
    """Return the number of files of each kind that were tried."""
    from reliability.inputs import INPUTS

    if importlib.util.find_spec("atheris") is None:
        raise SystemExit("atheris is not installed: pip install 'stimulus-moo[fuzz]' (it needs Linux)")
    return [_row(name, 200 if quick else runs) for name in INPUTS]


def _row(name: str, runs: int) -> list[object]:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "reliability.fuzz", name, str(runs)]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, errors="replace", check=False)
    done = [int(number) for number in re.findall(r"^#(\d+)\s", found.stderr, re.MULTILINE)]
    seen = [int(number) for number in re.findall(r"\bcov: (\d+)", found.stderr)]
    tail = " ".join(line for line in found.stderr.splitlines() if "Error" in line or "ERROR" in line)[-500:]
    failures: object = 0 if found.returncode == 0 else f"1, exit code {found.returncode}: {tail}"
    return [name, max(done, default=0), max(seen, default=0), failures]


def main(name: str, runs: int) -> None:
    """Fuzz one kind of file in this process."""
    import atheris

    with atheris.instrument_imports(include=["stimulus_moo"]):
        from reliability.inputs import INPUTS
        from stimulus_moo import StimulusError, StimulusWarning

    kind = INPUTS[name]
    warnings.simplefilter("ignore", StimulusWarning)
    with tempfile.TemporaryDirectory() as folder:
        path, corpus = Path(folder, "in", kind.file), Path(folder, "corpus")
        path.parent.mkdir()
        corpus.mkdir()
        for i, example in enumerate(kind.examples()):
            (corpus / str(i)).write_bytes(example)
        words = Path(folder, "words")
        quoted = ("".join(f"\\x{byte:02x}" for byte in word) for word in kind.words)
        words.write_text("".join(f'"{word}"\n' for word in quoted))

        def one(content: bytes) -> None:
            path.write_bytes(content)
            with contextlib.suppress(StimulusError):
                kind.read(path)

        limits = [
            f"-runs={runs}",
            f"-max_total_time={SECONDS}",
            "-timeout=10",
            f"-rss_limit_mb={_MEMORY}",
            "-max_len=4096",
        ]
        places = [f"-dict={words}", f"-artifact_prefix={folder}/", str(corpus)]
        atheris.Setup([sys.argv[0], *limits, "-seed=1", *places], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
