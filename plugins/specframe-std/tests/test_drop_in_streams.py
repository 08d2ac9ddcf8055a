"""Streamers under the drop-in, given to it or to ``generate``, receive all tokens and the end."""

from __future__ import annotations

import threading

import generating
import pytest
import torch
from generating import NEW, PROMPTS, Notes, padded
from specframe_testing import zoo
from transformers import TextIteratorStreamer

import specframe
from specframe.errors import OptionError
from specframe.models import loading as models

MODEL = zoo.build("qwen3")
DRAFT = zoo.good_draft(MODEL)
TOKENIZER = models.load_tokenizer("tiny")
"""Knows the ids of the small models, if not what they mean by them."""


def both(**asked):
    """Return what ``generate`` gives without an assistant and with the drop-in."""
    return generating.both(MODEL, DRAFT, **asked)


def ending():
    """Return eos ids that end most rows, at places of their own."""
    plain = MODEL.generate(**padded(), max_new_tokens=NEW, do_sample=False)[:, -NEW:]
    return plain[[0, 3, 4, 6], [3, 9, 5, 12]].tolist()


WAYS = {"drafted": {}, "not drafted": {"use_cache": False}}
"""What is asked so that tokens are drafted, or not."""


@pytest.mark.wide(but=["not drafted"])
@pytest.mark.filterwarnings("ignore:nothing is drafted")
@pytest.mark.parametrize("way", WAYS)
def test_every_row_has_a_streamer(way):
    """Each streamer gets its row's prompt, as ``generate`` gives it, and then its tokens, and the end."""
    streamers = [Notes() for _ in PROMPTS]
    ends = ending()
    plain, _ = both(options={"streamer": streamers}, eos_token_id=ends, **WAYS[way])
    lengths = set()
    for row, (streamer, prompt) in enumerate(zip(streamers, padded()["input_ids"], strict=True)):
        assert streamer.ended == 1
        assert torch.equal(streamer.puts[0], prompt[None])
        told = [int(value) for value in streamer.puts[1:]]
        new = plain[row, 14:].tolist()
        assert told == new[: len(told)]
        assert told[-1] in ends or len(told) == len(new)
        lengths.add(len(told))
    assert len(lengths) > 2


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:nothing is drafted")
@pytest.mark.parametrize("way", WAYS)
def test_the_streamer_of_generate(way):
    """The streamer that ``generate`` is given receives the same as without the drop-in: steps of all rows, and the end."""
    theirs, ours = Notes(), Notes()
    asked = {**padded(), "max_new_tokens": NEW, "do_sample": False, "eos_token_id": ending(), **WAYS[way]}
    MODEL.generate(**asked, streamer=theirs)
    MODEL.generate(**asked, streamer=ours, custom_generate=specframe.assisted(DRAFT, 4))
    assert (ours.ended, len(ours.puts)) == (1, len(theirs.puts))
    for got, expected in zip(ours.puts, theirs.puts, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.wide
def test_a_reader_of_the_streamer_of_generate():
    """Who reads text while another thread generates gets all of it, and then the end."""
    streamer = TextIteratorStreamer(TOKENIZER, skip_prompt=True, timeout=1200)
    asked = {**padded(PROMPTS[:1]), "max_new_tokens": NEW, "do_sample": False}
    custom = {"streamer": streamer, "custom_generate": specframe.assisted(DRAFT)}
    thread = threading.Thread(target=MODEL.generate, kwargs={**asked, **custom})
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == TOKENIZER.decode(MODEL.generate(**asked)[0, 3:])


@pytest.mark.wide
def test_a_reader_does_not_wait_for_what_is_refused():
    """A call that is refused ends the streamers that it was given."""
    streamer = Notes()
    with pytest.raises(OptionError, match="beam_search"):
        MODEL.generate(**padded(), num_beams=2, custom_generate=refusing(streamer, 2 * len(PROMPTS)))
    assert streamer.ended == 1
    streamer = Notes()
    with pytest.raises(OptionError, match="expected one in generate or in assisted, got both"):
        MODEL.generate(**padded(), streamer=streamer, custom_generate=refusing(Notes(), len(PROMPTS)))
    assert streamer.ended == 1


def refusing(streamer, rows):
    """Return a drop-in with a streamer for each row, the first of which is given."""
    return specframe.assisted(DRAFT, streamer=[streamer, *(Notes() for _ in range(rows - 1))])


@pytest.mark.wide
def test_one_streamer_serves_one_row():
    """One streamer for several rows, or too few of them, is refused."""
    with pytest.raises(OptionError, match="streamer: expected one for each of 8 rows, got 1"):
        both(options={"streamer": Notes()})
    with pytest.raises(OptionError, match="streamer: expected one for each of 8 rows, got 2"):
        both(options={"streamer": [Notes(), Notes()]})
