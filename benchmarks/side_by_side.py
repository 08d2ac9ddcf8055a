"""Pipelines that decode the same prompts side by side, so that a change of the machine's pace meets all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from specframe import Pipeline, Sampling


class Decoding:
    """A pipeline that decodes prompts, chunk by chunk.

    Args:
        pipe: of a target without a tokenizer, so that no text is made of chunks.
        prompts: lists of token ids.
        new: new tokens per prompt.
        clock: returns the seconds.
        sampling: parameters of all prompts, or of each.
    """

    def __init__(
        self, pipe: Pipeline, prompts: list[list[int]], new: int, clock: Callable[[], float], sampling: Any = None
    ) -> None:
        self._clock, self._chunks = clock, pipe.stream(prompts, new, sampling=sampling)
        self.going, self.seconds, self.count = True, 0.0, 0
        self.tokens: list[list[int]] = [[] for _ in prompts]
        """The new tokens of each prompt."""

    def advance(self) -> None:
        """Take the next chunk: the first of a round decodes it, and reads prompts where rows have become free."""
        started = self._clock()
        chunk = next(self._chunks, None)
        self.seconds += self._clock() - started
        self.going = chunk is not None
        if chunk is not None:
            self.count += len(chunk.token_ids)
            self.tokens[chunk.index] += chunk.token_ids

    @property
    def rate(self) -> float:
        """New tokens per second."""
        return self.count / self.seconds


def side_by_side(
    pipes: Mapping[str, Pipeline],
    prompts: Any,
    new: int,
    clock: Callable[[], float] = time.perf_counter,
    alike: bool = True,
    sampling: Any = None,
) -> dict[str, Decoding]:
    """Decode prompts by all pipelines: whichever has the fewest tokens takes its next chunk.

    ``alike``: all are to have the same tokens, as in float32; in half precision two may part where logits tie. ``sampling``:
    parameters of all prompts, or of each.

    Raises:
        AssertionError: two have other tokens.
    """
    decoding = {name: Decoding(pipe, prompts, new, clock, sampling) for name, pipe in pipes.items()}
    while going := [one for one in decoding.values() if one.going]:
        min(going, key=lambda one: one.count).advance()
    first, *others = decoding
    for name in others if alike else ():
        assert decoding[name].tokens == decoding[first].tokens, f"{name} and {first} have other tokens"
    return decoding


def unequal_ends(count: int, new: int) -> list[Sampling]:
    """Return the parameters of ``count`` prompts, with new tokens from a fifth to nine fifths of ``new``, always the same."""
    choose = random.Random(0)
    return [Sampling(max_new_tokens=max(1, round(new * choose.uniform(0.2, 1.8)))) for _ in range(count)]
