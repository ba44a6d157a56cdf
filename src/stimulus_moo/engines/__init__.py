"""How rows are differentiated."""

from stimulus_moo.engines.engine import ENGINES, Engine, choose
from stimulus_moo.engines.reach import reached

__all__ = ["ENGINES", "Engine", "choose", "reached"]
