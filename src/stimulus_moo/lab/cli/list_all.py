"""``stimulus-moo list``: experiments, studies, methods and weightings."""

from __future__ import annotations

from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.cli.console import stdout
from stimulus_moo.lab.cli.error_handling import handle_errors
from stimulus_moo.lab.cli.tables import print_catalogue


@handle_errors
def list_all() -> None:
    """List experiments, studies, methods and weightings."""
    experiments, studies = arguments.catalogue()
    print_catalogue(stdout(), experiments.values(), studies.values())
