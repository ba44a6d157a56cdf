"""What stands between a command and the shell: errors in one clean line, warnings too, and exit codes.

0: done. 1: ``data check`` found damage. 2: what was asked for cannot be done. 3: ``run`` or ``rank fit`` diverged. 70:
something that should not happen, please report it. 130 and 143: stopped by Ctrl-C or SIGTERM; the message says how to
resume.
"""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stimulus_moo import InvalidOption, StimulusError, StimulusWarning
from stimulus_moo.lab.interrupt import Interrupted, at_once

PROGRAM = "stimulus-moo"


def stderr() -> Console:
    """Return where errors, warnings and progress go."""
    return Console(stderr=True)


def stdout() -> Console:
    """Return where results go; wide where nobody watches, so that a log keeps a table's rows in one line."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--debug``, and turn what goes wrong into a line on standard error and an exit code."""
    own = inspect.signature(function, eval_str=True)
    option = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)

    @functools.wraps(function)
    def command(*, debug: bool = False, **given: Any) -> Any:
        with warnings.catch_warnings(), at_once():
            warnings.simplefilter("default", StimulusWarning)
            _show_warnings_as_lines()
            try:
                return function(**given)
            except (StimulusError, OSError, MemoryError) as error:
                if debug:
                    raise
                _line("error", "red", f"{str(error) or type(error).__name__}; see {_page(function, error)}")
                raise typer.Exit(2) from None
            except (typer.Exit, typer.Abort):
                raise
            except Exception as error:
                if debug:
                    raise
                told = f"{type(error).__name__}: {error}; this should not happen, --debug shows where it comes from"
                _line("error", "red", told)
                raise typer.Exit(70) from None
            except KeyboardInterrupt as stopped:
                _say_how_to_resume()
                raise typer.Exit(stopped.code if isinstance(stopped, Interrupted) else 130) from None

    command.__signature__ = own.replace(parameters=[*own.parameters.values(), debug])  # type: ignore[attr-defined]
    return command


def _page(function: Callable[..., Any], error: Exception) -> str:
    """Return the page that says more: the command's own for its options, else that of the error."""
    if isinstance(error, InvalidOption):
        return "docs/ranking.md#command-line" if function.__module__.endswith("cli_rank") else "docs/lab.md"
    return error.page if isinstance(error, StimulusError) else "docs/reliability.md#what-is-promised"


def _say_how_to_resume() -> None:
    """Print the command under way as it must be typed to go on, where it keeps what it has done."""
    program, *arguments = sys.argv
    if arguments[:1] not in (["run"], ["compare"], ["demo"]):
        _line("stopped", "yellow", "nothing is left half-done")
        return
    name = f"{Path(sys.executable).name} -m stimulus_moo" if program.endswith("__main__.py") else PROGRAM
    if "--resume" not in arguments and arguments[0] != "demo":  # a demo goes on by itself
        arguments.append("--resume")
    _line("stopped", "yellow", "everything measured so far is kept; to go on:")
    stderr().print(f"  {name} {shlex.join(arguments)}", markup=False, highlight=False, soft_wrap=True)


def _show_warnings_as_lines() -> None:
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, StimulusWarning):
            _line("warning", "yellow", str(message))
        else:
            usual(message, category, *rest, **more)

    warnings.showwarning = show


def _line(word: str, colour: str, text: str) -> None:
    console = stderr()
    console.print(f"[bold {colour}]{word}:[/] ", end="")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
