"""Batches, data sources and their partition among processes."""
