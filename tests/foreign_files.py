"""Files that are not ours and look like temporary files of ours, for tests of what may be removed."""

from __future__ import annotations

from pathlib import Path

OURS = f".stimulus-moo-{'0123456789abcdef' * 2}.tmp"
_RANDOM = "f" * 32

LOOK_ALIKES = (
    *(
        f".{name}.{end}"
        for name in ("settings.json", "metrics.jsonl", "summary.json")
        for end in ("swp", "bak", "orig")
    ),
    *(".progress.json.x1y2z3_8", ".cells.jsonl.swp", ".study.json.un~", ".settings.json.abcd1234"),
    *(".checkpoint-000000006.pt.half", ".checkpoint-000000006.pt.sha256.swp", "checkpoint-notes.pt.sha256"),
    *("checkpoint-12.pt.sha256", "checkpoint-000000099.pt.sha256.bak"),
    f".stimulus-moo-{_RANDOM[1:]}.tmp",
    f".stimulus-moo-{_RANDOM}0.tmp",
    f".stimulus-moo-{_RANDOM.upper()}.tmp",
    f".stimulus-moo-{_RANDOM}.tmp.bak",
    f".stimulus-moo-{_RANDOM}.tmp~",
    f".stimulus-moo-{_RANDOM}.tmp\n",
    f"stimulus-moo-{_RANDOM}.tmp",
    f"x.stimulus-moo-{_RANDOM}.tmp",
)
DIRECTORIES = (f".stimulus-moo-{'d' * 32}.tmp", ".settings.json.d", "checkpoint-000000098.pt.sha256")
LINKS = (f".stimulus-moo-{'e' * 32}.tmp", ".summary.json.link", "checkpoint-000000097.pt.sha256")


def plant(folder: Path, target: Path) -> None:
    """Fill a folder with look-alikes, with links to ``target``, and with one temporary file of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    target.write_text("not ours")
    for name in LOOK_ALIKES:
        (folder / name).write_text(name)
    for name in DIRECTORIES:
        (folder / name).mkdir()
        (folder / name / OURS).write_text("inside")
    for name in LINKS:
        (folder / name).symlink_to(target)
    (folder / OURS).write_text("ours")


def check_untouched(folder: Path, target: Path) -> None:
    """Assert that every look-alike is still there, with its content."""
    for name in LOOK_ALIKES:
        assert (folder / name).read_text() == name
    for name in DIRECTORIES:
        assert (folder / name / OURS).read_text() == "inside"
    for name in LINKS:
        assert (folder / name).readlink() == target
    assert target.read_text() == "not ours"
