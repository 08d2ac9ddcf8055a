"""Acceptance rules, one module each."""
