"""Built-in prompts, for a run without prompts."""

from __future__ import annotations

from pathlib import Path

BUILT_IN = tuple(
    text.rstrip("\n") for text in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("=====\n")
)
"""Starts of Python code, short and long, for a run that was given no prompts."""
