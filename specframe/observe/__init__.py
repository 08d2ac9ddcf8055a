"""Observers of a run: stages, seconds, counts."""
