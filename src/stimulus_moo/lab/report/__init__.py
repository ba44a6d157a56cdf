"""Report of a directory of runs: figures, tables, verdicts, and one self-contained HTML page."""

from stimulus_moo.lab.report.figures import write_figures
from stimulus_moo.lab.report.write import write_report

__all__ = ["write_figures", "write_report"]
