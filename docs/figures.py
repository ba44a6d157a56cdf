"""Figures on our pages come from results files: this program checks them (part of ``make lint``) or writes them.

    python -m docs.figures            # fails, with a list, if a figure is not the one in its results file
    python -m docs.figures --write    # writes the figures of the results files into the pages, then checks them

A figure stands between two comments, which a reader does not see. The first one says where it comes from:

    <!--{hands_free; Census; auto; loss}-->0.04562<!--{}-->
    <!--{hands_free; Census; auto; loss ÷ hands_free; Census; Adam, mean; loss : .2f}-->1.24<!--{}-->
    <!--{hands_free; commit}-->ce75a96<!--{}-->
    <!--{call auto_and_adam}--> ... a table ... <!--{}-->

The words are the section of a results file, texts with which cells of exactly one row begin, and the column. ``÷``
divides, `` : `` gives a format. A section and ``commit`` or ``date`` say when it was measured. ``call`` is followed by
a function of ``docs.tables``. A figure within a sentence must not begin a line, which Markdown would take as HTML.
Results files are benchmarks/results.json and docs/results/*.json, all with the same layout: sections with columns and
rows. The tables of docs/reproduction.md, which ``make reproduce`` writes, are sections too, by the names "reproduction
> heading > subheading".
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from docs import tables

ROOT = Path(__file__).parent.parent
_FIGURE = re.compile(r"<!--\{(?P<source>[^}]+)\}-->(?P<text>.*?)<!--\{\}-->", re.DOTALL)
_ORIGIN = ("commit", "date")  # of a section

Sections = Mapping[str, Mapping[str, Any]]


class FigureError(ValueError):
    """A source that does not lead to one figure."""


@cache
def all_sections(root: Path = ROOT) -> Sections:
    """Return the sections of all results files by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in (root / "benchmarks" / "results.json", *sorted((root / "docs" / "results").glob("*.json"))):
        if path.exists():
            found |= json.loads(path.read_text(encoding="utf-8"))["sections"]
    return found | tables_of_page("reproduction", (root / "docs" / "reproduction.md").read_text(encoding="utf-8"))


def tables_of_page(name: str, page: str) -> Sections:
    """Return the first table below each heading of a page as a section, without bold type.

    >>> tables_of_page("runs", "## Race\\n### Juniors\\n| runner | time |\\n|---|---:|\\n| Ann | **10.0** |")
    {'runs > Race > Juniors': {'columns': ['runner', 'time'], 'rows': [['Ann', '10.0']]}}
    """
    found: dict[str, Mapping[str, Any]] = {}
    for chapter in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        for part in re.split(r"^### ", chapter, flags=re.MULTILINE):
            heading = part.partition("\n")[0]
            title = " > ".join(dict.fromkeys([name, chapter.partition("\n")[0], heading]))
            if lines := re.search(r"(?:^\|.*\n?)+", part, re.MULTILINE):
                cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines[0].splitlines()]
                found[title] = {"columns": cells[0], "rows": cells[2:]}
    return found


def figure(source: str, sections: Sections) -> str:
    """Return the text of a figure.

    >>> sections = {"race": {"columns": ["runner", "time"], "rows": [["Ann, 30", "10.0"], ["Bob", "12.5"]]}}
    >>> figure("race; Ann; time", sections), figure("race; Bob; time ÷ race; Ann; time : .2f", sections)
    ('10.0', '1.25')
    """
    if source.startswith("call "):
        made: str = getattr(tables, source.removeprefix("call ").strip())(sections)
        return f"\n{made.strip()}\n\n"
    formula, colon, form = source.rpartition(" : ") if " : " in source else (source, "", "")
    cells = [_cell([word.strip() for word in term.split(";")], sections) for term in formula.split("÷")]
    if len(cells) == 1 and not colon:
        return cells[0]
    try:
        value = float(cells[0])
        for cell in cells[1:]:
            value /= float(cell)
        return format(value, form.strip())
    except (ValueError, ZeroDivisionError) as error:
        raise FigureError(f"{source}: {error}") from None


def _section(name: str, sections: Sections) -> Mapping[str, Any]:
    if name not in sections:
        raise FigureError(f"there is no section {name!r} in the results files")
    return sections[name]


def _cell(words: Sequence[str], sections: Sections) -> str:
    section = _section(words[0], sections)
    columns, begins = section["columns"], words[1:-1]
    if len(words) == 2 and words[1] in _ORIGIN:
        return str(section[words[1]])
    if words[-1] not in columns:
        raise FigureError(f"section {words[0]} has no column {words[-1]!r}; it has {', '.join(columns)}")
    rows = [row for row in section["rows"] if all(any(cell.startswith(b) for cell in row) for b in begins)]
    if len(rows) != 1:
        raise FigureError(f"{len(rows)} rows of section {words[0]} have cells that begin with {', '.join(begins)}")
    return str(rows[0][columns.index(words[-1])])


def written(page: str, sections: Sections) -> str:
    """Return a page with the figures of the results; those that the results do not have stay as they are."""

    def put(match: re.Match[str]) -> str:
        try:
            return f"<!--{{{match['source']}}}-->{figure(match['source'].strip(), sections)}<!--{{}}-->"
        except (FigureError, LookupError):
            return match[0]

    return _FIGURE.sub(put, page)


def wrong(page: str, sections: Sections) -> list[str]:
    """Return one line for each figure of a page that is not the one in its results file."""
    found = []
    for match in _FIGURE.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        before = page[page.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not before.strip() and not match["source"].startswith("call "):
            found.append(f"{line}: {match['source']} begins a line, which Markdown takes as HTML")
        try:
            right = figure(match["source"].strip(), sections)
        except FigureError as error:
            found.append(f"{line}: {error}")
            continue
        except LookupError as error:  # a table whose section, row or column is missing
            found.append(f"{line}: {match['source']}, not found: {error}")
            continue
        if match["text"] != right:
            found.append(f"{line}: {match['source']} is {right.strip()[:60]!r}, found {match['text'].strip()[:60]!r}")
    return found


def main(arguments: Sequence[str]) -> int:
    """Check or write all pages; return the exit code."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("guides/*.md"))]
    sections, failed, count = all_sections(), 0, 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if "--write" in arguments:
            text = written(text, sections)
            page.write_text(text, encoding="utf-8")
        count += len(_FIGURE.findall(text))
        for line in wrong(text, sections):
            print(f"{page.relative_to(ROOT)}:{line}")
            failed += 1
    print(f"figures: {count} checked, {failed} wrong (`python -m docs.figures --write` corrects them)")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
