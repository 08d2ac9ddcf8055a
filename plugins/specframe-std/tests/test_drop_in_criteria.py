"""Under the drop-in criteria are called as ``generate`` calls them, and streamers receive all tokens and the end."""

from __future__ import annotations

import threading

import pytest
import torch
from generating import DRAFT, MODEL, NEW, PROMPTS, TOKENIZER, Notes, both, greedy, padded
from specframe_std import drop_in
from specframe_testing import zoo
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

import specframe
from specframe.errors import OptionError

WIDTH = padded()["input_ids"].shape[1]


class Noting(StoppingCriteria):
    """A user's criterion that notes its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, input_ids, scores, **options):
        self.calls.append((input_ids.tolist(), scores if scores is None else [one.shape for one in scores]))
        return self.holds(input_ids, scores)


class Tracker(Noting):
    """A criterion made for a number of rows: it looks for a text in each that has not had it, and ends all when all have had it."""

    def __init__(self, texts="Rw9D", rows=8):
        super().__init__()
        self.texts, self.had = texts, [False] * rows

    def holds(self, input_ids, scores):
        texts = TOKENIZER.batch_decode(input_ids[:, WIDTH:][:, -4:])
        for row, had in enumerate(self.had):
            self.had[row] = had or any(one in texts[row] for one in self.texts)
        return all(self.had)


class EachRow(Tracker):
    """The same, but each row ends when it has had the text."""

    def holds(self, input_ids, scores):
        super().holds(input_ids, scores)
        return torch.tensor(self.had)


class Counting(Noting):
    """A criterion that ends everything at its fifth call."""

    def holds(self, input_ids, scores):
        return torch.full((len(input_ids),), len(self.calls) >= 5)


class FirstRow(Noting):
    """A criterion that ends everything when the first row has ended."""

    def holds(self, input_ids, scores):
        return (input_ids[0, -1] >= 50).expand(len(input_ids))


class Sums(Noting):
    """A criterion that looks at the whole prefix of each row."""

    def holds(self, input_ids, scores):
        return (input_ids.sum(-1) % 7 == 0) & (input_ids.shape[1] > 17)


class Sure(Noting):
    """A criterion that reads the scores of each step."""

    def holds(self, input_ids, scores):
        return (input_ids.shape[1] > 19) & (scores[-1].argmax(-1) % 3 == 0)


NO_EOS = {"eos_token_id": None, "pad_token_id": zoo.EOS}
EOS = {"eos_token_id": TOKENIZER.encode("y"), "pad_token_id": zoo.EOS}
SCORES = {"return_dict_in_generate": True, "output_scores": True}
CRITERIA = {
    "a tracker of rows": (Tracker, EOS),
    "a tracker of rows without an eos id": (Tracker, NO_EOS),
    "a tracker that ends rows": (EachRow, EOS),
    "calls that are counted": (Counting, EOS),
    "rows that are compared": (FirstRow, EOS),
    "each row's ids": (Sums, {}),
    "each row's ids without an eos id": (Sums, NO_EOS),
    "scores": (Sure, SCORES),
}


@pytest.fixture
def accepted(monkeypatch):
    """Return the accepted draft tokens of each row that is decoded with drafts."""
    counts = []

    def noting(call, results, kept, made=drop_in.output):
        counts.extend(result.metrics.num_accepted_draft_tokens for result in results)
        return made(call, results, kept)

    monkeypatch.setattr(drop_in, "output", noting)
    return counts


def generated(criteria, assisted=None, **asked):
    """Return what ``generate`` gives with criteria of one's own, with a drop-in or without."""
    custom = {} if assisted is None else {"custom_generate": assisted}
    return greedy(24, stopping_criteria=StoppingCriteriaList(criteria), **asked, **custom)


@pytest.mark.wide(but=["each row's ids without an eos id"])
@pytest.mark.filterwarnings("error::specframe.errors.SpecframeWarning")
@pytest.mark.parametrize("what", CRITERIA)
def test_criteria_are_called_as_in_generate(what, accepted):
    """Tokens are drafted, and a criterion is called once per step with what ``generate`` shows it."""
    kind, asked = CRITERIA[what]
    theirs, ours = kind(), kind()
    expected, got = generated([theirs], **asked), generated([ours], specframe.assisted(DRAFT, 4), **asked)
    if asked is SCORES:
        assert len(got.scores) == len(expected.scores)
        expected, got = expected.sequences, got.sequences
    assert torch.equal(got, expected), f"\n{expected}\n{got}"
    assert ours.calls == theirs.calls
    assert expected.shape[1] < WIDTH + 24 or (expected[:, -1] == zoo.EOS).any(), "no row ended early"
    assert min(accepted) > 0


@pytest.mark.wide
@pytest.mark.parametrize("asked", [EOS, NO_EOS], ids=["eos", "no eos"])
def test_streamers_get_no_token_beyond_the_end(asked):
    """The streamers of rows, and that of ``generate``, get the tokens that are returned, in order."""
    expected = generated([EachRow()], **asked)[:, WIDTH:]
    rows, steps = [Notes() for _ in PROMPTS], Notes()
    generated([EachRow()], specframe.assisted(DRAFT, 4, streamer=rows), **asked)
    for row, streamer in zip(expected.tolist(), rows, strict=True):
        told = [int(token) for token in streamer.puts[1:]]
        assert (told, streamer.ended) == (row[: len(told)], 1)
        assert set(row[len(told) :]) <= {zoo.EOS}
    generated([EachRow()], specframe.assisted(DRAFT, 4), streamer=steps, **asked)
    assert torch.equal(torch.stack(steps.puts[1:], dim=1), expected)


@pytest.mark.wide
def test_a_criterion_that_raises_raises_in_generate():
    """An error of a criterion is raised as it is."""
    with pytest.raises(IndexError):
        generated([Tracker(rows=len(PROMPTS) + 1)], specframe.assisted(DRAFT, 4))


def ending():
    """Return eos ids that end most rows, at places of their own."""
    return greedy()[:, -NEW:][[0, 3, 4, 6], [3, 9, 5, 12]].tolist()


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
    for streamer, custom in ((theirs, {}), (ours, {"custom_generate": specframe.assisted(DRAFT, 4)})):
        greedy(eos_token_id=ending(), **WAYS[way], streamer=streamer, **custom)
    assert (ours.ended, len(ours.puts)) == (1, len(theirs.puts))
    for got, expected in zip(ours.puts, theirs.puts, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.wide
def test_a_reader_of_the_streamer_of_generate():
    """Who reads text while another thread generates gets all of it, and then the end."""
    streamer = TextIteratorStreamer(TOKENIZER, skip_prompt=True, timeout=1200)
    asked = {"prompts": PROMPTS[:1], "streamer": streamer, "custom_generate": specframe.assisted(DRAFT)}
    thread = threading.Thread(target=greedy, kwargs=asked)
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == TOKENIZER.decode(greedy(prompts=PROMPTS[:1])[0, 3:])


@pytest.mark.wide
def test_a_reader_does_not_wait_for_what_is_refused():
    """A call that is refused ends the streamers that it was given, and so is one of another number than the rows."""
    rows, streamer = [Notes() for _ in range(2 * len(PROMPTS))], Notes()
    with pytest.raises(OptionError, match="beam_search"):
        MODEL.generate(**padded(), num_beams=2, custom_generate=specframe.assisted(DRAFT, streamer=rows))
    assert rows[0].ended == 1
    with pytest.raises(OptionError, match="expected one in generate or in assisted, got both"):
        greedy(streamer=streamer, custom_generate=specframe.assisted(DRAFT, streamer=[Notes() for _ in PROMPTS]))
    assert streamer.ended == 1
    for given, got in ((Notes(), 1), ([Notes(), Notes()], 2)):
        with pytest.raises(OptionError, match=f"streamer: expected one for each of 8 rows, got {got}"):
            both(options={"streamer": given})
