"""Figures on the pages are those of the results files."""

import pytest

from docs import figures, tables

SECTIONS = {
    "race": {
        "columns": ["runner", "kind", "time"],
        "rows": [["Ann, 30", "old", "10.0"], ["Ann, 30", "new", "8.0"], ["Bob", "new", "12.5"]],
        "commit": "1234567",
        "date": "2026-11-17 10:11 UTC",
    }
}
PAGE = """Ann needs <!--{race; Ann; new; time}-->8.0<!--{}--> s,
which is <!--{race; Ann; new; time ÷ race; Bob; time : .2f}-->0.64<!--{}--> of Bob."""


def test_a_page_with_the_figures_of_the_results_is_right() -> None:
    assert figures.wrong(PAGE, SECTIONS) == []
    assert figures.written(PAGE, SECTIONS) == PAGE


def test_another_figure_is_found_with_its_line_and_is_written() -> None:
    other = PAGE.replace("0.64", "0.60")
    assert figures.wrong(other, SECTIONS) == [
        "2: race; Ann; new; time ÷ race; Bob; time : .2f is '0.64', found '0.60'",
    ]
    assert figures.written(other, SECTIONS) == PAGE


def test_a_figure_must_not_begin_a_line() -> None:
    page = "A list:\n\n- Bob needs\n  <!--{race; Bob; time}-->12.5<!--{}--> s."
    assert figures.wrong(page, SECTIONS) == ["4: race; Bob; time begins a line, which Markdown takes as HTML"]


def test_a_section_tells_its_commit_and_date() -> None:
    assert figures.figure("race; commit", SECTIONS) == "1234567"
    assert figures.figure("race; date", SECTIONS) == "2026-11-17 10:11 UTC"
    assert "is '1234567', found 'abc'" in figures.wrong("at <!--{race; commit}-->abc<!--{}-->", SECTIONS)[0]


REPRODUCTION = """# Reproduction
## MultiMNIST, two tasks
### lr 0.3, published method unchanged, 3 seeds

| Method | Loss, mean over tasks |
|---|---:|
| STIMULUS | 1.573 ± 0.2 |

| Method | Samples |
|---|---:|
| STIMULUS | 56,640 |

### lr 0.3, with the safeguard (not in the paper)

| Method | Loss, mean over tasks |
|---|---:|
| STIMULUS | **0.3423 ± 0.1** |
"""


def test_tables_of_the_reproduction_are_found_by_their_headings() -> None:
    sections = figures.tables_of_page("reproduction", REPRODUCTION)
    assert next(iter(sections)) == "reproduction > MultiMNIST, two tasks > lr 0.3, published method unchanged, 3 seeds"
    assert tables.guarded(sections).splitlines()[-1] == "| STIMULUS | 1.57 | 0.342 |"


def test_a_table_without_its_section_is_an_error_of_the_page() -> None:
    page = "<!--{call guarded}-->1<!--{}-->\n<!--{call picture}-->1<!--{}-->"
    assert figures.wrong(page, {}) == [
        "1: call guarded, not found: docs/reproduction.md has 0 tables below MultiMNIST > lr 0.3, published",
        "2: call picture, not found: 'picture'",
    ]
    assert figures.written(page, {}) == page


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("walk; Ann; time", "there is no section 'walk'"),
        ("race; Ann; time", "2 rows of section race have cells that begin with Ann"),
        ("race; Eve; time", "0 rows of section race"),
        ("race; Bob; speed", "section race has no column 'speed'; it has runner, kind, time"),
        ("race; Bob; runner : .2f", "could not convert"),
    ],
)
def test_a_source_must_lead_to_one_figure(source: str, message: str) -> None:
    assert message in figures.wrong(f"It is <!--{{{source}}}-->1<!--{{}}-->", SECTIONS)[0]


def test_all_pages_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main([]) == 0, capsys.readouterr().out
