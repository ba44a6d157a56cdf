"""The core stands without scikit-learn and without ranking, and ranking says what it needs."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
sys.modules["sklearn"] = sys.modules["typer"] = sys.modules["rich"] = None  # as if not installed
import stimulus_moo
print([name for name in sys.modules if "ranking" in name])
try:
    import stimulus_moo.ranking
except stimulus_moo.MissingDependency as error:
    print(isinstance(error, ImportError), error)
del sys.modules["sklearn"]
import stimulus_moo.ranking
del sys.modules["typer"], sys.modules["rich"]
import stimulus_moo.ranking.commands
print([name for name in sys.modules if name.startswith("stimulus_moo.lab")])
"""


def test_ranking_says_that_it_needs_scikit_learn_and_needs_neither_the_lab_nor_its_command_line() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [
        "[]",
        "True stimulus_moo.ranking needs scikit-learn: pip install 'stimulus-moo[ranking]'",
        "[]",
    ], run.stderr
