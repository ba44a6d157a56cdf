"""Every file is written by ``training/files.py``; a direct write elsewhere in the source fails this test.

A call that writes is allowed inside a function or lambda that is passed to ``write_whole``, which gives it the open
temporary file, or below a comment that begins with ``# direct write:`` and states the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stimulus_moo

SOURCE = Path(stimulus_moo.__file__).parent
WRITER = SOURCE / "training" / "files.py"
REASON = "# direct write:"

_METHODS = {
    *("write_text", "write_bytes", "savefig", "tofile", "to_csv", "to_json", "to_pickle", "to_parquet", "to_excel"),
    *("touch", "symlink_to", "hardlink_to", "write_image", "write_html", "imsave", "extractall", "urlretrieve"),
}
_FUNCTIONS = {
    "torch": {"save"},
    "json": {"dump"},
    "pickle": {"dump"},
    "shutil": {"copy", "copy2", "copyfile", "copyfileobj", "copytree", "move", "make_archive", "unpack_archive"},
    "np": {"save", "savez", "savez_compressed", "savetxt"},
    "numpy": {"save", "savez", "savez_compressed", "savetxt"},
    "os": {"replace", "rename", "renames", "link", "symlink", "truncate", "mkfifo"},
    "tempfile": {"mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory"},
}


def writes(call: ast.Call) -> bool:
    """Return whether a call writes a file, or may: a mode that is not a constant counts."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""
    if name == "open" and owner == "os":
        return any(flag in ast.unparse(call) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"))
    if name in ("open", "ZipFile", "TarFile", "GzipFile"):
        is_method = (
            name == "open" and isinstance(function, ast.Attribute) and owner not in ("gzip", "bz2", "lzma", "io")
        )
        given = [k.value for k in call.keywords if k.arg == "mode"]
        if not given:  # the argument of another object's method ``open`` need not be a mode
            given = [m for m in call.args[0 if is_method else 1 :][:1] if isinstance(m, ast.Constant) or not is_method]
        return any(not isinstance(m, ast.Constant) or bool(set(str(m.value)) & set("wax+")) for m in given)
    return (isinstance(function, ast.Attribute) and name in _METHODS) or name in _FUNCTIONS.get(owner, ())


def direct_writes(text: str) -> Iterator[int]:
    """Yield the lines of a module that write a file without the writer and without a reason."""
    lines, nodes = text.splitlines(), list(ast.walk(ast.parse(text)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    passed = [part for call in calls if getattr(call.func, "id", "") == "write_whole" for part in call.args[1:]]
    names = {part.id for part in passed if isinstance(part, ast.Name)}
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in names]
    inside = {id(node) for part in (*passed, *functions) for node in ast.walk(part)}
    for call in calls:
        reasons = (line.strip().startswith(REASON) for line in lines[max(call.lineno - 3, 0) : call.lineno])
        if writes(call) and id(call) not in inside and not any(reasons):
            yield call.lineno


def test_no_file_is_written_without_the_writer() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != WRITER
        for line in direct_writes(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'open(p, "w")',
        'open(p, mode="ab")',
        "open(p, mode)",
        'p.open("x")',
        'gzip.open(p, "wb")',
        "p.write_text(t)",
        "p.write_bytes(t)",
        "figure.savefig(p)",
        "torch.save(x, p)",
        "json.dump(x, f)",
        "np.savez(p, x)",
        "shutil.copy(a, b)",
        "os.open(p, os.O_WRONLY | os.O_CREAT)",
        "os.replace(a, b)",
        'zipfile.ZipFile(p, "w")',
        "frame.to_csv(p)",
        "tempfile.mkstemp()",
        "p.symlink_to(q)",
    ],
)
def test_direct_writes_are_found(line: str) -> None:
    assert list(direct_writes(line)) == [1]
    assert list(direct_writes(f"# direct write: a reason\n{line}")) == []


@pytest.mark.parametrize(
    "line",
    [
        'open(p, "rb")',
        "open(p)",
        'p.open(encoding="utf-8")',
        "os.open(p, os.O_RDONLY)",
        "zipfile.ZipFile(p)",
        "json.dumps(x)",
        "write_text(p, t)",
        "write_whole(p, lambda file: np.savez(file, x))",
        "def f(file):\n    torch.save(x, file)\nwrite_whole(p, f)",
        'text.replace("a", "b")',
    ],
)
def test_reading_and_the_writer_are_allowed(line: str) -> None:
    assert list(direct_writes(line)) == []
