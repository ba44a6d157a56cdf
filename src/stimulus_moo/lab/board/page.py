"""The interactive page of the scoreboard: heat table, rank plot, Delta m against seconds. Self-contained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from stimulus_moo import MissingDependency
from stimulus_moo.lab.runs.storage import plain


def page(board: Mapping[str, Any]) -> str:
    """Return the page as one HTML text.

    Raises:
        MissingDependency: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingDependency("the scoreboard's page needs plotly: pip install 'stimulus-moo[lab]'") from None
    data = json.dumps(plain(board)).replace("</", "<\\/")
    template = files("stimulus_moo.lab.board").joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("/*PLOTLY*/", get_plotlyjs()).replace("/*BOARD*/", f"const board = {data};")
