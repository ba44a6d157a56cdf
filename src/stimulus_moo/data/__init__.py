"""Batches, data sources and how they are divided among processes."""
