"""Kept runs depend on the library's code, not on how it is written down."""

from __future__ import annotations

from stimulus_moo.lab.runs.core_checksum import _code, core_checksum

SOURCE = '''"""A module."""
LIMIT = 2


def twice(x):
    """Return 2 x."""
    return LIMIT * x
'''


def test_comments_docstrings_and_format_do_not_count() -> None:
    other = SOURCE.replace("A module", "Text").replace("\n\n\n", "\n").replace("Return 2 x.", "Twice.")
    assert _code(other + "# a comment\n") == _code(SOURCE)


def test_a_changed_constant_counts() -> None:
    assert _code(SOURCE.replace("LIMIT = 2", "LIMIT = 3")) != _code(SOURCE)


def test_a_text_that_is_no_docstring_counts() -> None:
    assert _code(SOURCE.replace("return LIMIT * x", "return 'a'")) != _code(
        SOURCE.replace("return LIMIT * x", "return 'b'")
    )


def test_it_is_the_same_in_every_call() -> None:
    assert core_checksum() == core_checksum.__wrapped__()
