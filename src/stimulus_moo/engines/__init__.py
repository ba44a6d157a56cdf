"""How rows are differentiated."""

from stimulus_moo.engines.reach import reached
from stimulus_moo.engines.rowwise import Row, rowwise

#: engine names a user may ask for; "auto" is resolved to one of the others
ENGINES = ("auto", "rowwise")

__all__ = ["ENGINES", "Row", "reached", "rowwise"]
