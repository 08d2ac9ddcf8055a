"""What a plain run passes through stays short: one with a draft model, the alignment ``ragged`` and the store ``slab``."""

from __future__ import annotations

import statistics

from short_path import decode_plainly


def test_few_frames_lie_between_generate_and_a_model() -> None:
    """A round's verification calls the target within 10 frames of Python, most steps of drafts their model within 14."""
    frames = decode_plainly("auto")
    assert min(frames) <= 10
    assert statistics.mode(frames) <= 14
