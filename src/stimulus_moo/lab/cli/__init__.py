"""Command line of the lab, one module per command."""

from stimulus_moo.lab.cli.main import app

__all__ = ["app"]
