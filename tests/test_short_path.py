"""What a plain run passes through stays short: one with a draft model, the alignment ``ragged`` and the store ``slab``."""

from __future__ import annotations

import statistics
import traceback
from typing import Any

from specframe_testing import fakes, harness


def test_few_frames_lie_between_generate_and_a_model() -> None:
    """A round's verification calls the target within 10 frames of Python, most steps of drafts their model within 14.

    The frames of torch's own modules are not counted.
    """
    target, frames = fakes.fake_target(), list[int]()

    def count(*_: Any) -> None:
        found = [one for one in traceback.extract_stack() if not one.filename.endswith("torch/nn/modules/module.py")]
        own = [one.name for one in found[::-1]].index("test_few_frames_lie_between_generate_and_a_model")
        frames.append(own - 1)

    pipe = harness.pipeline(target, fakes.fake_draft(target), align="ragged", kv="slab", batch_size=2, draft_length=3)
    for model in (target, pipe.parts.draft):
        model.register_forward_pre_hook(count)
    list(pipe.generate([[5, 9, 3, 11], [7], [2, 4, 6]], 12))
    assert min(frames) <= 10
    assert statistics.mode(frames) <= 14
