"""Later turns of chats in a comparison: every cell decodes the same prompts, with the target's own answers in their history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specframe.engine.encoding import Prompt
from specframe.errors import PromptError
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling


def with_answers(
    pipe: Pipeline, prompts: Sequence[Prompt], turns: Iterable[int], new: int, sampling: Sampling
) -> list[Any]:
    """Return prompts in which each later turn has the messages and answers of the turns before it.

    Args:
        pipe: plain decoding, which answers.
        prompts: of a later turn the messages of that turn alone.
        turns: which turn each prompt is; a chat's turns are one after the other.
        new: tokens of an answer.
        sampling: how answers are drawn.

    Raises:
        PromptError: a turn that has a later one cannot be decoded.
    """
    found: list[Any] = [*prompts]
    places = {place: turn for place, turn in enumerate(turns) if turn > 1}
    for turn in sorted({*places.values()}):
        before = [place - 1 for place in places if places[place] == turn]
        answers = pipe.generate([found[place] for place in before], new, sampling=sampling)
        for place, answer in zip(before, answers, strict=True):
            if answer.error:
                raise PromptError(f"prompt {place}: {answer.error}")
            history = [*found[place], {"role": "assistant", "content": answer.text}]
            found[place + 1] = [*history, *prompts[place + 1]]
    return found
