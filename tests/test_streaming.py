"""What rounds add to continuations, as tokens and as text that will not change."""

from __future__ import annotations

from collections import defaultdict

import pytest
import tokenizers
import torch
from specframe_testing import fakes, harness
from transformers import PreTrainedTokenizerFast

from specframe import Sampling
from specframe.engine.stream_chunks import TextStream
from specframe.errors import OptionError
from specframe.models.loading import load_tokenizer
from specframe.text.stopping import UNFINISHED, StopStrings

TOKENIZER = load_tokenizer("tiny")
TARGET = fakes.fake_target(len(TOKENIZER))
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts([5, 1, 9, 4, 7], len(TOKENIZER), seed=3)
TEXTS = ["naïve 🎉🎉 café →", "日本語 and 🙂", "plain", "e\u0301 \U0001f469\u200d\U0001f680!", "çàéèù"]


def pipeline(draft=DRAFT, **options):
    """Return a pipeline on the fakes with a tokenizer of bytes, three rows at a time."""
    return harness.pipeline(TARGET, draft, **{"batch_size": 3, "draft_length": 3, "tokenizer": TOKENIZER, **options})


def gathered(chunks):
    """Return the pieces, the tokens and the results of chunks, by continuation; a result comes with the last chunk."""
    pieces, tokens, results = defaultdict(list), defaultdict(list), {}
    for chunk in chunks:
        key = chunk.index, chunk.sample
        assert key not in results, "a chunk after the last"
        pieces[key].append(chunk.text)
        tokens[key] += chunk.token_ids
        if chunk.result is not None:
            assert (chunk.result.index, chunk.result.sample) == key
            results[key] = chunk.result
    return pieces, tokens, results


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_chunks_add_up_to_the_result(align):
    """Tokens and pieces of text, put together, are those of the result, which is that of ``generate``."""
    feeds = harness.Feeds()
    pipe = pipeline(align=align, observers=[feeds])
    sampling = Sampling(temperature=0.7, samples=2)
    pieces, tokens, results = gathered(pipe.stream(PROMPTS, 12, sampling=sampling))
    took_part = [one.request.key for round in feeds.rounds for one in round.report.sequences]
    assert {key: len(told) for key, told in pieces.items()} == {key: took_part.count(key) for key in pieces}
    whole = list(pipe.generate(PROMPTS, 12, sampling=sampling))
    assert sorted(results) == [(one.index, one.sample) for one in whole]
    for one in whole:
        key = one.index, one.sample
        assert results[key].token_ids == one.token_ids == tokens[key]
        assert results[key].text == one.text == "".join(pieces[key])


STOPPED = {
    "ab STO STOP cd": (["STOP"], "ab STO "),
    "ab STO STO cd": (["STOP", "x"], "ab STO STO cd"),
    "aabaabaac": (["aabaac", "baabaa"], "aa"),
    "naïve 🎉🎉": (["🎉🎉"], "naïve "),
    "one\n\ntwo": (["\n\n"], "one"),
    "ends with STO": (["STOP"], "ends with STO"),
}
"""Texts, the strings that stop them, and what comes before those."""


@pytest.mark.wide(but=["3-aabaabaac", "3-na\\xefve \\U0001f389\\U0001f389"])
@pytest.mark.parametrize("text", [*TEXTS, *STOPPED])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_all_that_is_certain_is_told(text, step):
    """What is streamed is the text so far but for parts of a character and for what may begin a stop string: no more, no less."""
    strings = STOPPED.get(text, (["🎉!", "and 🙂 so", "zz"], ""))[0]
    ids = TOKENIZER(text).input_ids
    stream, told = TextStream(TOKENIZER, StopStrings(TOKENIZER, strings)), ""
    for start in range(0, len(ids), step):
        told += stream.put(ids[start : start + step], last=False)
        known = TOKENIZER.decode(ids[: start + step]).rstrip(UNFINISHED)
        if any(one in known for one in strings):
            break
        begun = {
            count for count in range(len(known) + 1) for one in strings if one.startswith(known[len(known) - count :])
        }
        assert told == known[: len(known) - max(begun)]


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self):
        self.decoded = 0

    def decode(self, ids, **options):
        self.decoded += len(ids)
        return TOKENIZER.decode(ids, **options)


@pytest.mark.wide
def test_a_long_text_is_not_decoded_anew_with_every_piece():
    """A piece costs what it has, however long the text before it; the whole is decoded once more, at its end."""
    tokenizer = Counting()
    stream, ids = TextStream(tokenizer), TOKENIZER(" ".join(TEXTS) * 200).input_ids
    told = "".join(stream.put(ids[place : place + 3], last=False) for place in range(0, len(ids), 3))
    assert told == " ".join(TEXTS) * 200
    assert tokenizer.decoded < 15 * len(ids)


def words(decoder):
    """Return a tokenizer of a few words, with a decoder that treats the first of a text, or those next to each other, specially."""
    vocabulary = ["<s>", "\u2581the", "\u2581", "cat", "\u2581sat", "##ting", ",", "n't", "."]
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(vocabulary)}, "<s>"))
    core.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>")


@pytest.mark.wide
@pytest.mark.parametrize(
    "decoder",
    [
        tokenizers.decoders.Metaspace(),
        tokenizers.decoders.Sequence(
            [tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.Strip(" ", 1, 0)]
        ),
        tokenizers.decoders.WordPiece(cleanup=False),
    ],
    ids=["metaspace", "strip", "wordpiece"],
)
@pytest.mark.parametrize("step", [1, 3])
def test_decoders_that_look_at_a_text_s_beginning(decoder, step):
    """Spaces that a decoder takes from a text's first word are not taken from later pieces, special tokens before them or not."""
    tokenizer = words(decoder)
    drawn = torch.randint(0, 9, (120,), generator=torch.Generator().manual_seed(5)).tolist()
    for ids in (drawn, [1] + [0] * 30 + [1, 4, 0, 2, 3]):
        stream = TextStream(tokenizer)
        told = "".join(stream.put(ids[place : place + step], last=False) for place in range(0, len(ids), step))
        assert told == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.wide
def test_prompts_that_cannot_be_decoded_are_chunks_too():
    """A prompt's error comes as a chunk with a result, and does not keep the others from coming."""
    chunks = list(pipeline().stream([PROMPTS[0], [], [-1], PROMPTS[1]], 4))
    errors = [chunk for chunk in chunks if chunk.result and chunk.result.finish_reason == "error"]
    assert [(chunk.index, chunk.text, chunk.token_ids) for chunk in errors] == [(1, "", []), (2, "", [])]
    assert "the prompt is empty" in errors[0].result.error
    assert sorted(gathered(chunks)[2]) == [(0, 0), (1, 0), (2, 0), (3, 0)]


@pytest.mark.wide
def test_chunks_come_while_others_are_still_decoded():
    """A stream yields after every round; one that is given up leaves the pipeline free for others."""
    pipe = pipeline()
    stream = pipe.stream(PROMPTS, 12)
    first = next(stream)
    assert first.result is None
    assert len(first.token_ids) == 1
    with pytest.raises(OptionError, match="still decoding"):
        next(pipe.stream(PROMPTS))
    stream.close()
    assert len(list(pipe.generate(PROMPTS, 2))) == len(PROMPTS)
