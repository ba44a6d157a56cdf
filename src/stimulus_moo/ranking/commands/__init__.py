"""Commands of the ranker: train on files, score documents, evaluate. Needs typer and rich.

The functions carry typer's annotations and raise the library's errors; ``stimulus-moo rank`` adds the error handling.
"""

from stimulus_moo.ranking.commands.apply import evaluate, predict
from stimulus_moo.ranking.commands.fit import fit

#: The commands, in the order of the help.
COMMANDS = (fit, predict, evaluate)

__all__ = ["COMMANDS", "evaluate", "fit", "predict"]
