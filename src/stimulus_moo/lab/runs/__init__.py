"""Runs of experiments and studies: training, their directories, and reading them back."""

from stimulus_moo.lab.runs.directory import run_folder
from stimulus_moo.lab.runs.reading import RecordedRun, load_runs, load_studies
from stimulus_moo.lab.runs.storage import RunError

__all__ = ["RecordedRun", "RunError", "load_runs", "load_studies", "run_folder"]
