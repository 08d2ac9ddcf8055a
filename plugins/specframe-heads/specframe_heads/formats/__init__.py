"""Formats of published checkpoints."""
