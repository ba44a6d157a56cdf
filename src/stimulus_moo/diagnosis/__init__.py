"""Diagnosis: whether multi-objective training pays on a problem, and what is in its way."""

from stimulus_moo.diagnosis.diagnose import diagnose
from stimulus_moo.diagnosis.findings import Finding
from stimulus_moo.diagnosis.report import Diagnosis, TaskFigures

__all__ = ["Diagnosis", "Finding", "TaskFigures", "diagnose"]
