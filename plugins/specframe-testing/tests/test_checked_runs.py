"""A run with checks runs its models as it would without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from specframe_heads import head
from specframe_std.drafters import translated as drafters
from specframe_std.kv.ragged_layout import RaggedLayout
from specframe_testing import fakes, harness, zoo
from specframe_testing.heads import checkpoints as heads
from specframe_testing.instrumentation.invariant_error import InvariantError

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch

PROMPTS = harness.random_prompts([3, 19, 1, 7], zoo.VOCABULARY)


def translated(check: bool) -> Any:
    """Return a pipeline whose draft model has another tokenizer: its cache has a layout of its own, and rows of its own tokens."""
    target = fakes.fake_target()
    options = {"drafter": "translated", "batch_size": 2, "draft_length": 6, "check": check}
    pipe = harness.pipeline(target, fakes.fake_draft(target), **options)
    pipe.parts.tokenizer, pipe.parts.draft_tokenizer = fakes.spelled_tokenizer(3), fakes.spelled_tokenizer(1)
    return pipe


TEXTS = harness.requests(harness.random_prompts([4, 2], 61), 30)


def test_a_cache_of_another_vocabulary_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected tokens that stay in it change no token, and break an invariant."""
    harness.check(translated(check=True), TEXTS)
    monkeypatch.setattr(drafters, "common", lambda cached, ids: len(cached))
    harness.check(translated(check=False), TEXTS)
    with pytest.raises(InvariantError, match=r"cache.*in the draft, slot \d+ holds token \d+"):
        harness.decode(translated(check=True), TEXTS)


class Late(RaggedLayout):
    """Gives every token the position before its own."""

    def place(self, batch: Batch, block: Block) -> Placement:
        placement = super().place(batch, block)
        return attrs.evolve(placement, positions_BT=placement.positions_BT - 1)


@pytest.mark.wide
@pytest.mark.parametrize("shape", ["", ",tree=dynamic,nodes=8,top=2"], ids=["chain", "tree"])
def test_the_cache_of_a_head_is_checked(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head is fed rows without their first token, into a slab of its own; wrong positions there break an invariant."""
    target = zoo.build("qwen3")
    heads.eagle3(tmp_path, target, drafted=70, layers=2)
    options = {"drafter": f"eagle,checkpoint={tmp_path}{shape}", "batch_size": 3, "draft_length": 3, "check": True}
    asked = harness.requests(PROMPTS, [9, 14, 3, 12], {zoo.EOS})
    harness.check(harness.pipeline(target, None, **options), asked)
    monkeypatch.setattr(head, "RaggedLayout", Late)
    with pytest.raises(InvariantError, match=r"position.*in the draft"):
        harness.decode(harness.pipeline(target, None, align="eqspec", **options), asked)
