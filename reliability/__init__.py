"""Fault injection: kills, disks, malformed files, long runs; ``python -m reliability`` writes docs/reliability.md."""
