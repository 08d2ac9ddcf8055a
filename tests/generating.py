"""Calls of transformers' ``generate``, made without and with the drop-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

from specframe.drop_in import assisted
from specframe.models.loading import load_tokenizer

MODEL = zoo.build("qwen3")
DRAFT = zoo.good_draft(MODEL)
TOKENIZER = load_tokenizer("tiny")
"""Knows the ids of the small models, if not what they mean by them."""
NEW = 16
PROMPTS = harness.random_prompts([3, 9, 1, 14, 6, 2, 11, 5], zoo.VOCABULARY, seed=3)
"""Eight prompts of up to 14 tokens, some of which hold the eos id, that is the pad id, first or in the middle."""
for _prompt in PROMPTS[1::2]:
    _prompt[len(_prompt) // 2] = zoo.EOS
PROMPTS[3][0] = PROMPTS[2][0] = zoo.EOS


class Notes:
    """A streamer that keeps what it is given."""

    def __init__(self):
        self.puts, self.ended = [], 0

    def put(self, value):
        assert not self.ended
        self.puts.append(value)

    def end(self):
        self.ended += 1


def padded(prompts: Sequence[Sequence[int]] = PROMPTS) -> dict[str, torch.Tensor]:
    """Return ids padded on the left with the eos id, and their mask."""
    width = max(map(len, prompts))
    ids = [[zoo.EOS] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def greedy(
    new: int = NEW, prompts: Sequence[Sequence[int]] = PROMPTS, model: PreTrainedModel = MODEL, **asked: Any
) -> Any:
    """Return what ``generate`` gives for padded prompts."""
    asked = {**padded(prompts), "max_new_tokens": new, "do_sample": False, **asked}
    return model.generate(**asked)  # type: ignore[operator]


def both(
    model: PreTrainedModel = MODEL,
    draft: Any = DRAFT,
    inputs: dict[str, Any] | None = None,
    draft_length: Any = 4,
    options: dict[str, Any] | None = None,
    **asked: Any,
) -> tuple[Any, Any]:
    """Return the outputs of ``generate`` without an assistant and with the drop-in.

    Args:
        model, draft: the target and what drafts for it.
        inputs: of ``generate``, or None for :func:`padded`.
        draft_length, options: of the drop-in.
        asked: what else ``generate`` is asked.
    """
    inputs, asked = inputs or dict(padded()), {"max_new_tokens": NEW, "do_sample": False, **asked}
    custom = assisted(draft, draft_length, **(options or {}))
    return model.generate(**inputs, **asked), model.generate(**inputs, **asked, custom_generate=custom)  # type: ignore[operator]
