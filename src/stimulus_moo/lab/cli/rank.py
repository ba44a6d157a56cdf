"""``stimulus-moo rank``: the commands of ``stimulus_moo.ranking``, with the lab's error handling."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import typer
from typer.core import TyperGroup

from stimulus_moo.errors import DOCS
from stimulus_moo.lab.cli.error_handling import handle_errors

_PAGE = DOCS + "ranking.html#command-line"


class RankCommands(TyperGroup):
    """Group that imports its commands when they are needed: scikit-learn takes more than a second to load."""

    @cached_property
    def _loaded(self) -> TyperGroup:
        from stimulus_moo.ranking.commands import COMMANDS

        group = typer.Typer()
        for command in COMMANDS:
            group.command()(handle_errors(command, page=_PAGE))
        return cast(TyperGroup, typer.main.get_command(group))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return self._loaded.list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name, or None."""
        return self._loaded.get_command(ctx, cmd_name)


app = typer.Typer(
    cls=RankCommands,
    no_args_is_help=True,
    help="Rank documents by several labels at once: fit, predict, evaluate.",
)


@app.callback()
def rank() -> None:
    """Rank documents by several labels at once: fit, predict, evaluate."""
