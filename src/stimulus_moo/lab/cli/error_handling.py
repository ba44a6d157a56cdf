"""Error handling of the commands: one line on standard error per error or warning, and an exit code.

Exit codes: 0, done. 1, ``data check`` found damage. 2, the request cannot be carried out. 3, ``run`` or ``rank fit``
diverged. 70, an unexpected error; please report it. 130 and 143, stopped by Ctrl-C or SIGTERM; the message shows the
command that resumes the work.
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

from stimulus_moo import InvalidOption, StimulusError, StimulusWarning
from stimulus_moo.errors import DOCS
from stimulus_moo.lab.cli.console import stderr
from stimulus_moo.lab.runs.interrupts import Interrupted, raise_at_once

PROGRAM = "stimulus-moo"


def handle_errors(function: Callable[..., Any], *, page: str = DOCS + "lab.html") -> Callable[..., Any]:
    """Decorate a command: add ``--debug``, and turn exceptions into a line on standard error and an exit code.

    Args:
        function: the command, with typer's annotations.
        page: documentation of the command's options, named in the message of an invalid one.
    """
    own = inspect.signature(function, eval_str=True)
    option = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)

    @functools.wraps(function)
    def command(*, debug: bool = False, **given: Any) -> Any:
        with warnings.catch_warnings(), raise_at_once():
            warnings.simplefilter("default", StimulusWarning)
            _print_warnings_as_lines()
            try:
                return function(**given)
            except (StimulusError, OSError, MemoryError) as error:
                if debug:
                    raise
                _print_line("error", "red", f"{str(error) or type(error).__name__}; see {_page_for(error, page)}")
                raise typer.Exit(2) from None
            except (typer.Exit, typer.Abort):
                raise
            except Exception as error:
                if debug:
                    raise
                text = f"{type(error).__name__}: {error}; this is a bug, --debug shows the traceback"
                _print_line("error", "red", text)
                raise typer.Exit(70) from None
            except KeyboardInterrupt as stopped:
                _print_how_to_resume()
                raise typer.Exit(stopped.code if isinstance(stopped, Interrupted) else 130) from None

    command.__signature__ = own.replace(parameters=[*own.parameters.values(), debug])  # type: ignore[attr-defined]
    return command


def _page_for(error: Exception, page: str) -> str:
    """Return the command's page for an invalid option, otherwise the page of the error."""
    if isinstance(error, InvalidOption):
        return page
    return error.page if isinstance(error, StimulusError) else DOCS + "reliability.html#what-is-promised"


def _print_how_to_resume() -> None:
    """Print the command that resumes the work, for commands that keep what they have done."""
    program, *arguments = sys.argv
    command = next(
        (word for word in arguments if word in ("run", "compare", "demo", "board")), None
    )  # --plugin may precede it
    if command is None:
        _print_line("stopped", "yellow", "no partial output was left behind")
        return
    name = f"{Path(sys.executable).name} -m stimulus_moo" if program.endswith("__main__.py") else PROGRAM
    if "--resume" not in arguments and command not in ("demo", "board"):  # these always resume
        arguments.append("--resume")
    _print_line("stopped", "yellow", "all results so far are saved; to resume:")
    stderr().print(f"  {name} {shlex.join(arguments)}", markup=False, highlight=False, soft_wrap=True)


def _print_warnings_as_lines() -> None:
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, StimulusWarning):
            _print_line("warning", "yellow", str(message))
        else:
            usual(message, category, *rest, **more)

    warnings.showwarning = show


def _print_line(word: str, colour: str, text: str) -> None:
    console = stderr()
    console.print(f"[bold {colour}]{word}:[/] ", end="")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
