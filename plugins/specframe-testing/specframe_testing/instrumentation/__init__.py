"""Checks of the invariants of a run, token by token."""
