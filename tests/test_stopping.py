"""What ends a sequence inside a block: strings, criteria, time; held against looking after every single token."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from specframe_testing import fakes, harness
from transformers import StoppingCriteria

from specframe import Sampling
from specframe.contracts.drafts import Acceptance, Draft, Transfer
from specframe.contracts.requests import Request
from specframe.engine.engine_clock import HandClock
from specframe.engine.pool import Pool
from specframe.errors import ModelError
from specframe.models.loading import load_tokenizer
from specframe.text.stopping import StopStrings, first_complete

VOCABULARY, NEW = 509, 24
ALIGNMENTS = [
    *["ragged", "eqspec", "exspec", "rollback", "masking,positions=content"],
    "padding,mask=content,positions=content,bonus=target",
]
TARGET = fakes.fake_target(VOCABULARY)
DRAFT = fakes.fake_draft(TARGET)
TOKENIZER = fakes.fake_tokenizer(VOCABULARY)
PROMPTS = harness.random_prompts([5, 1, 9, 4, 12, 2, 7, 3], VOCABULARY, seed=5)
TRUTH = [harness.continuation(TARGET, prompt, NEW + 8) for prompt in PROMPTS]


def pipeline(draft=DRAFT, **options):
    """Return a pipeline on the fakes, four rows and four draft tokens at a time."""
    return harness.pipeline(TARGET, draft, **{"batch_size": 4, "draft_length": 4, "tokenizer": TOKENIZER, **options})


def text(tokens):
    """Return the text of generated tokens."""
    return TOKENIZER.decode(tokens, skip_special_tokens=True)


def endings(told, strings):
    """Return where in a text any of some strings end."""
    return {end for one in strings for end in range(len(told) + 1) if told[:end].endswith(one)}


def looked_for(tokens, strings, after=0, decode=text):
    """Return the tokens up to the one that completes a string and the text before it, looking after each token."""
    unasked = endings(decode(tokens[:after]), strings)
    for count in range(1, len(tokens) + 1):
        told = decode(tokens[:count])
        if count > after and (ends := endings(told, strings) - unasked):
            longest = max(len(one) for one in strings if told[: min(ends)].endswith(one))
            return tokens[:count], told[: min(ends) - longest]
    return tokens, decode(tokens)


def some_strings(choose, told):
    """Return up to three strings, pieces of a text or of none."""
    strings = ["never", "99;99"]
    for _ in range(choose.randint(1, 3)):
        begin = choose.randrange(len(told))
        strings.append(told[begin : begin + choose.randint(1, 11)])
    return tuple(strings)


class Divides(StoppingCriteria):
    """A user's criterion, which looks at all tokens there are, and notes what it is called with."""

    def __init__(self, divisor):
        self.divisor, self.calls = divisor, []

    def __call__(self, input_ids, scores, **options):
        self.calls.append((input_ids[0].tolist(), scores))
        return input_ids.sum(-1) % self.divisor == 0


@pytest.mark.wide
@pytest.mark.parametrize("align", ALIGNMENTS)
def test_strings_end_where_looking_after_each_token_finds_them(align):
    """Pieces of the text, of several tokens or of part of one, end every row where a naive search does."""
    choose = random.Random(align)
    pipe = pipeline(align=align)
    for _ in range(3):
        asked = [some_strings(choose, text(tokens[:NEW])) for tokens in TRUTH]
        results = list(pipe.generate(PROMPTS, NEW, sampling=[Sampling(stop=strings) for strings in asked]))
        for result, strings, tokens in zip(results, asked, TRUTH, strict=True):
            assert (result.token_ids, result.text) == looked_for(tokens[:NEW], strings)
            assert result.finish_reason == "stop"


BYTES = "héllo 🎉 wörld→x 日本, and 🎉!"


@pytest.mark.wide
@pytest.mark.parametrize("string", ["é", "🎉", "🎉!", "o 🎉 w", "→", "ld→x ", "日", "本", "本,", "nd 🎉!", "h"])
@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_strings_of_characters_of_several_tokens(string, block):
    """A string whose characters are made of several byte tokens is complete with the last byte of the last."""
    tokenizer = load_tokenizer("tiny")
    tokens = tokenizer(BYTES).input_ids
    check, prompt = StopStrings(tokenizer, [string]), tokenizer(string).input_ids
    for start in range(0, len(tokens), block):
        upto = tokens[: start + block]
        place = check.first(np.array(prompt + upto), len(prompt), len(upto) - start)
        if place is not None:
            break
    stopped, before = looked_for(tokens, [string], decode=tokenizer.decode)
    assert tokens[: start + place + 1] == stopped
    assert tokenizer.decode(stopped)[: check.place(stopped)] == before


@pytest.mark.wide(but=["6"])
@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5, 6, 12, NEW])
def test_no_string_counts_before_the_least_number_of_new_tokens(after):
    """A string that ends among the first ``min_new_tokens`` does not stop, nor is it cut off; one that begins there may."""
    strings = (text(TRUTH[0][2:4])[1:-1], text(TRUTH[0][8:9]), ";")
    for asked in (strings, strings[:2]):
        (result,) = pipeline().generate(PROMPTS[:1], NEW, sampling=Sampling(stop=asked, min_new_tokens=after))
        assert (result.token_ids, result.text) == looked_for(TRUTH[0][:NEW], asked, after)
        assert result.finish_reason == ("stop" if after < 9 or (asked == strings and after < NEW) else "length")


def test_the_string_that_is_complete_first_counts():
    """Of several strings it is the one that ends first, and of those that end together the longest."""
    assert first_complete("abcdef", ["cdef", "bcd"]) == 1
    assert first_complete("abcdef", ["cd", "bcd", "d"]) == 1
    assert first_complete("ababab", ["ab"], start=2) == 2
    assert first_complete("ababab", ["ab"], start=1) == 0
    assert first_complete("ababab", ["ab"], start=6) is None


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:.*Divides, which changes from call to call")
@pytest.mark.parametrize("align", ALIGNMENTS)
def test_a_criterion_ends_where_it_would_one_token_at_a_time(align):
    """A user's criterion is asked after every token, in order, with the exact prefix; it ends the row where it holds."""
    criteria = [Divides(divisor) for divisor in (2, 3, 5, 7, 11, 13, 17, 19)]
    samplings = [Sampling(criteria=(criterion,)) for criterion in criteria]
    results = list(pipeline(align=align).generate(PROMPTS, NEW, sampling=samplings))
    assert [result.index for result in results] == list(range(len(PROMPTS)))
    for result in results:
        prompt, tokens, criterion = PROMPTS[result.index], TRUTH[result.index][:NEW], criteria[result.index]
        prefixes = [prompt + tokens[: count + 1] for count in range(NEW)]
        ends = next((n for n, ids in enumerate(prefixes) if sum(ids) % criterion.divisor == 0), NEW - 1)
        assert result.token_ids == tokens[: ends + 1]
        assert result.finish_reason == ("stop" if sum(prefixes[ends]) % criterion.divisor == 0 else "length")
        assert criterion.calls == [(ids, None) for ids in prefixes[: ends + 1]]


PLACE = 3
"""Where in their continuations rows end: in the middle of the first block."""


def ends_at(kind, place=PLACE, row=0):
    """Return how a row is asked to end with the token at a place, by one reason."""
    token = TRUTH[row][place]
    if kind == "length":
        return Sampling(max_new_tokens=place + 1)
    if kind == "string":
        return Sampling(stop=text(TRUTH[row][: place + 1])[-6:-1])
    return Sampling(criteria=(EndsWith(token),))


class EndsWith(StoppingCriteria):
    """A user's criterion: the sequence ends with a token."""

    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **options):
        return input_ids[:, -1] == self.token


@pytest.mark.wide(but=["ragged"])
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_rows_that_end_in_one_round_each_end_by_their_own_reason(align):
    """Rows of one round that end by length, string, criterion and eos are each cut at their own place."""
    kinds = ["string", "length", "criterion"]
    feeds, places = harness.Feeds(), [1, 3, 4]
    samplings = [ends_at(kind, place, row) for row, (kind, place) in enumerate(zip(kinds, places, strict=True))]
    asked = pipeline().requests.make(PROMPTS[:3], NEW, sampling=samplings)[0]
    asked.append(Request(3, PROMPTS[3], NEW, frozenset({TRUTH[3][2]})))
    drafter = fakes.always_right(TRUTH)
    results = harness.decode(pipeline(drafter, align=align, observers=[feeds]), asked)
    assert [result.finish_reason for result in results] == ["stop", "length", "stop", "eos"]
    expected = [tokens[: place + 1] for tokens, place in zip(TRUTH[:4], [*places, 2], strict=True)]
    assert [result.token_ids for result in results] == expected
    assert [len(round.report.finished) for round in feeds.rounds] == [0, 4]


FIRST = {
    "eos before the string": ("eos", 2, 3, "eos"),
    "the string before eos": ("eos", 4, 3, "stop"),
    "eos and criterion together": ("eos", 3, 3, "eos"),
    "the limit and the string together": ("length", 3, 3, "stop"),
    "the limit before the string": ("length", 2, 3, "length"),
}


@pytest.mark.wide
@pytest.mark.parametrize("case", FIRST)
def test_the_first_of_several_reasons_counts(case):
    """A row ends by what comes first; of what comes together eos goes first, and length last."""
    other, at, checked, reason = FIRST[case]
    for kind in ("criterion", "string"):
        ids = frozenset({TRUTH[0][at]}) if other == "eos" else frozenset()
        limit = at + 1 if other == "length" else NEW
        (request,), _ = pipeline().requests.make(PROMPTS[:1], limit, sampling=ends_at(kind, checked))
        request = Request(0, PROMPTS[0], limit, ids, stop_checks=request.stop_checks)
        (result,) = harness.decode(pipeline(fakes.always_right(TRUTH)), [request])
        assert (result.finish_reason, result.token_ids) == (reason, TRUTH[0][: min(at, checked) + 1])


def rounds(pool, clock, gains, seconds):
    """Let every live row of a pool gain tokens, some seconds per round, and return what finished in each."""
    finished = []
    while pool.live:
        batch = pool.batch(pool.live)
        count = 0 if batch.prefill else gains
        tokens_BT = torch.arange(5, 6 + count).repeat(len(batch), 1)
        clock.now += seconds
        acceptance = Acceptance(torch.full((len(batch),), count), tokens_BT)
        pool.append(batch, acceptance)
        report = pool.advance(batch, Transfer(Draft(tokens_BT[:, :-1]), acceptance))
        finished.append([(one.request.index, one.finish_reason, len(one.token_ids)) for one in report.finished])
    return finished


def test_time_is_counted_from_when_a_prompt_is_taken_up():
    """A row ends with the round in which its time is up, with all that round gave it; its neighbours go on."""
    clock = HandClock()
    asked = [Request(0, [1], 20, max_time=3.0), Request(1, [1, 2], 12), Request(2, [1], 20, max_time=0.0)]
    pool = Pool(asked, 3, 64, 64, clock=clock)
    clock.now = 100.0
    pool.admit(3)
    assert rounds(pool, clock, 2, 1.0) == [[(2, "length", 1)], [], [(0, "length", 7)], [], [(1, "length", 12)]]


@pytest.mark.wide
def test_strings_need_a_tokenizer():
    """Without a tokenizer there is no text to look in, and the message says what to pass."""
    with pytest.raises(ModelError, match="stop: expected a target with a tokenizer"):
        list(pipeline(tokenizer=None).generate(PROMPTS[:1], sampling=Sampling(stop="x")))
