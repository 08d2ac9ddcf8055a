"""Drafters, one module each."""
