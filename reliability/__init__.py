"""Trust, measured: kills, faults, hostile files and long runs; ``python -m reliability`` writes docs/reliability.md."""
