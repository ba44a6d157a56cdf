"""Figures on the pages are those of the results files."""

import pytest

from docs import figures

SECTIONS = {
    "race": {
        "columns": ["runner", "kind", "time"],
        "rows": [["Ann, 30", "old", "10.0"], ["Ann, 30", "new", "8.0"], ["Bob", "new", "12.5"]],
    }
}
PAGE = """Ann needs <!--{race; Ann; new; time}-->8.0<!--{}--> s,
<!--{race; Ann; new; time ÷ race; Bob; time : .2f}-->0.64<!--{}--> of Bob."""


def test_a_page_with_the_figures_of_the_results_is_right() -> None:
    assert figures.wrong(PAGE, SECTIONS) == []
    assert figures.written(PAGE, SECTIONS) == PAGE


def test_another_figure_is_found_with_its_line_and_is_written() -> None:
    other = PAGE.replace("0.64", "0.60")
    assert figures.wrong(other, SECTIONS) == [
        "2: race; Ann; new; time ÷ race; Bob; time : .2f is '0.64', found '0.60'",
    ]
    assert figures.written(other, SECTIONS) == PAGE


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
    assert message in figures.wrong(f"<!--{{{source}}}-->1<!--{{}}-->", SECTIONS)[0]


def test_all_pages_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main([]) == 0, capsys.readouterr().out
