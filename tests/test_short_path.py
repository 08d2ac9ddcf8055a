"""What a plain run passes through stays short."""

from __future__ import annotations

import statistics

import short_path


def test_few_frames_lie_between_generate_and_a_model() -> None:
    """A round's verification calls the target within 12 frames of Python, most steps of drafts their model within 16."""
    frames = short_path.decode_plainly()
    assert min(frames) <= 12
    assert statistics.mode(frames) <= 16


def test_what_counts_as_a_line_of_a_body() -> None:
    """Statements inside of functions count, each once; docstrings, heads of functions and a module at its import do not."""
    source = (
        'A = 1\n\n\ndef one() -> int:\n    """Return."""\n    if A:\n        return 2\n    return (\n        3\n    )\n'
    )
    assert short_path.bodies(source) == {6, 7, 8}
