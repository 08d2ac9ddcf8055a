"""Tests of stops inside a block of several tokens, and of the other rows' tokens."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria

from specframe.contracts.requests import Request, Result, StopCheck
from specframe.text.stopping import Criteria, StopStrings
from specframe_testing import fakes, harness
from specframe_testing.conformance.role_suite import Suite

BLOCK = 4
"""Draft tokens of a round. Place 0 of a continuation is the token the prompt's round gives; then come blocks of 5."""

PLACES = {
    "prompt-round": 0,
    "first": 1,
    "second": 2,
    "middle": 3,
    "last-draft": 4,
    "bonus": 5,
    "first-of-next": 6,
    "middle-of-next": 8,
    "bonus-of-next": 10,
}
"""Places of stops in a continuation, named for a draft whose tokens are all right."""

RIGHT = {"all-right": None, "two-right": 2, "all-wrong": 0}
KINDS = {"eos": "eos", "length": "length", "string": "stop", "criterion": "stop"}
"""Ways to end, and the finish reason of each. The string begins inside a token and ends inside another."""

NEW = 12


@functools.cache
def stop_target() -> fakes.FakeModel:
    """Return a target with a vocabulary so large that tokens hardly repeat."""
    return fakes.fake_target(vocabulary=509, eos=0)


@functools.cache
def stop_tokenizer() -> PreTrainedTokenizerBase:
    """Return the target's tokenizer."""
    return fakes.fake_tokenizer(509)


@functools.cache
def stop_prompts(count: int) -> tuple[tuple[int, ...], ...]:
    """Return ragged prompts with continuations in which no token comes twice."""
    found: list[tuple[int, ...]] = []
    for seed in range(10 * count):
        prompt = harness.random_prompts([1 + 3 * len(found)], 509, seed)[0]
        tokens = harness.continuation(stop_target(), prompt, 16)
        if len({*tokens, *prompt}) == 16 + len(set(prompt)):
            found.append(tuple(prompt))
        if len(found) == count:
            return tuple(found)
    raise AssertionError("no prompts with distinct tokens")


def ending_at(prompt: tuple[int, ...], place: int | None, kind: str, index: int) -> Request:
    """Return a request whose continuation ends with the token at ``place``, in one of the ways of :data:`KINDS`."""
    if place is None:
        return Request(index, [*prompt], NEW)
    if kind == "length":
        return Request(index, [*prompt], place + 1)
    tokens = harness.continuation(stop_target(), prompt, NEW)
    if kind == "eos":
        return Request(index, [*prompt], NEW, frozenset({tokens[place]}))
    check: StopCheck = Criteria([EndsWith(tokens[place])])
    if kind == "string":
        text = "".join(map(fakes.word, tokens[: place + 1]))
        check = StopStrings(stop_tokenizer(), ["never", text[:-1][-6:]])
    return Request(index, [*prompt], NEW, stop_checks=(check,))


class EndsWith(StoppingCriteria):
    """A user's criterion: the sequence ends with a token."""

    def __init__(self, token: int) -> None:
        self._token = token

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        """Return whether each row ends, (B,)."""
        return input_ids[:, -1] == self._token


class Stopping(Suite):
    """Sequences that stop at every place of a block, many in one batch."""

    def stopping(self, places: list[int | None], kinds: list[str], right: fakes.Right = None) -> list[Result]:
        """Decode rows of one batch that end at these places and assert that each ends right there."""
        asked = [
            ending_at(prompt, place, kind, index)
            for index, (prompt, place, kind) in enumerate(zip(stop_prompts(len(places)), places, kinds, strict=True))
        ]
        target = stop_target()
        pipe = self.pipeline(target, self.scripted(target, asked, right), batch_size=len(places))
        results = self.verify(pipe, asked)
        for result in results:
            count = result.metrics
            assert count.num_accepted_draft_tokens <= min(count.num_draft_tokens, len(result.token_ids) - 1)
            assert (
                sum(n * rounds for n, rounds in count.acceptance_histogram.items()) == count.num_accepted_draft_tokens
            )
        return results

    @pytest.mark.parametrize("turn", range(len(KINDS)))
    def test_rows_stop_at_every_place(self, turn: int) -> None:
        """In one batch a row stops at each place of a block, and one at none: each is cut at its own; ways to end by turns."""
        places = [*PLACES.values(), None]
        kinds = [[*KINDS][(row + turn) % len(KINDS)] for row in range(len(places))]
        self.stopping(places, kinds, [*RIGHT.values()][turn % len(RIGHT)])

    @pytest.mark.parametrize("kinds", [("eos", "eos"), ("string", "length"), ("criterion", "eos")], ids="-".join)
    def test_two_rows_stop_in_one_round(self, kinds: tuple[str, str]) -> None:
        """Two rows that stop at different places of one block are each cut at their own."""
        self.stopping([2, 4, None], [*kinds, "eos"])

    def test_all_rows_stop_in_one_round(self) -> None:
        """A batch may end in one round, every row at its own place."""
        self.stopping([1, 3, 5, 4], ["eos", "length", "string", "criterion"])

    def test_rows_stop_in_every_round(self) -> None:
        """A batch that loses a row each round stays right to the last row."""
        self.stopping(
            [0, 2, 5, 7, None], ["string", "length", "eos", "criterion", "eos"], {0: 4, 1: 0, 2: 2, 3: 1, 4: 3}
        )

    def test_stop_id_in_the_prompt_does_not_stop(self) -> None:
        """Only generated tokens stop a sequence: the prompt may hold the stop id anywhere."""
        target, prompts = stop_target(), stop_prompts(3)
        asked = harness.requests(prompts, NEW, [{p[0]} | {p[-1]} for p in prompts])
        results = self.verify(self.pipeline(target, self.scripted(target, asked)), asked)
        if self.lossless:
            assert [len(result.token_ids) for result in results] == [NEW] * 3

    def test_one_token(self) -> None:
        """A sequence of one new token ends with the round that read its prompt."""
        results = self.stopping([0, 0, 0], ["length"] * 3)
        assert [result.metrics.num_spec_steps for result in results] == [0, 0, 0]


ALONE = [(place, kind, right) for place, (kind, right) in zip(itertools.cycle(PLACES), itertools.product(KINDS, RIGHT))]
"""The stops of :class:`StopSuite`: every way to end with drafts of every quality, at places of their own as long as there are."""


class StopSuite(Stopping):
    """One row of three stops: in each of the ways of :data:`KINDS`, for drafts of every quality.

    Every place with every way and quality is in :meth:`Stopping.test_rows_stop_at_every_place`, many in one batch.
    """

    @pytest.mark.parametrize(("place", "kind", "right"), ALONE, ids=["-".join(one) for one in ALONE])
    def test_row_stops(self, place: str, kind: str, right: str) -> None:
        """A row that stops is cut there; its neighbours get what they get without it."""
        self.require_lossless()
        results = self.stopping([None, PLACES[place], None], [kind] * 3, RIGHT[right])
        assert [len(result.token_ids) for result in results] == [NEW, PLACES[place] + 1, NEW]
        assert results[1].finish_reason == KINDS[kind]
