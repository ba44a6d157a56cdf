"""Tables printed by the ranker's commands."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_rows(rows: Mapping[str, str]) -> None:
    """Print names and values."""
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    print_table(table)


def print_table(table: Table) -> None:
    """Print a table; if standard output is not a terminal, wide enough to keep each row on one line."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)
