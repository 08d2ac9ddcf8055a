"""Under the drop-in, criteria of one's own are called as ``generate`` calls them, while tokens are drafted."""

from __future__ import annotations

import pytest
import torch
from generating import PROMPTS, Notes, padded
from specframe_std import drop_in
from specframe_testing import zoo
from transformers import StoppingCriteria, StoppingCriteriaList

import specframe
from specframe.models import loading as models

MODEL = zoo.build("qwen3")
DRAFT = zoo.good_draft(MODEL)
WIDTH = padded()["input_ids"].shape[1]
TOKENIZER = models.load_tokenizer("tiny")
"""Knows the ids of the small models, if not what they mean by them."""


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
    asked = {**padded(), "max_new_tokens": 24, "do_sample": False, **asked, **custom}
    return MODEL.generate(**asked, stopping_criteria=StoppingCriteriaList(criteria))


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
