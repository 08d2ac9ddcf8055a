"""Observers of a run: seconds per stage, counts, log-probabilities, environment."""
