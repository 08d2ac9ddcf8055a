"""What drafts do not go with is decoded by transformers' own loop, and a warning says why."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from generating import NEW, Notes, padded
from specframe_testing import harness, zoo
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
)

import specframe
from specframe.errors import OptionError, SpecframeWarning

MODEL = zoo.build("qwen3")
DRAFT = zoo.good_draft(MODEL)


def generated(model, draft, asked, custom=True):
    """Return what ``generate`` gives, with the drop-in or without, from the same random numbers."""
    torch.manual_seed(0)
    asked = {"max_new_tokens": NEW, "do_sample": False, **asked()}
    return model.generate(**asked, **({"custom_generate": specframe.assisted(draft, 3)} if custom else {}))


def assert_plain(asked, why, model=MODEL, draft=DRAFT):
    """Assert that the drop-in gives what ``generate`` gives, and says why nothing is drafted; return the tokens."""
    with pytest.warns(SpecframeWarning, match=f"nothing is drafted, for drafts do not go with .*{why}"):
        got = generated(model, draft, asked)
    expected = generated(model, draft, asked, custom=False)
    assert torch.equal(got, expected)
    return got


PLAIN = {
    "positions other than a token's place": lambda: {**padded(), "position_ids": torch.arange(14).expand(8, -1)},
    "SynthIDTextWatermarkLogitsProcessor": lambda: {
        **padded(),
        "watermarking_config": SynthIDTextWatermarkingConfig(keys=[3, 5], ngram_len=2),
        "do_sample": True,
    },
    "more tokens than the model's context holds": lambda: {**padded(), "max_new_tokens": 147},
}


@pytest.mark.wide(but=["positions other than a token's place"])
@pytest.mark.parametrize("why", PLAIN)
def test_what_drafts_do_not_go_with_is_decoded_plainly(why):
    """Each call gives the tokens of ``generate``, and one sentence says why nothing is drafted."""
    assert_plain(PLAIN[why], why)


@pytest.mark.wide
def test_embeddings_and_ids():
    """Prompts given as embeddings give their continuation alone, and with ids beside them the ids, too."""
    model = zoo.build("gemma3")
    draft = zoo.good_draft(model)
    ids, mask = padded()["input_ids"], padded()["attention_mask"]
    given = {"inputs_embeds": model.get_input_embeddings()(ids), "attention_mask": mask}
    alone = assert_plain(lambda: dict(given), "inputs_embeds", model, draft)
    beside = assert_plain(lambda: {**given, "input_ids": ids}, "inputs_embeds", model, draft)
    assert torch.equal(beside, torch.cat([ids, alone], dim=1))


BOUNDARY = 24
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [4.0, 9.0, 2.0, 16.0],
    "original_max_position_embeddings": BOUNDARY,
    "factor": 4.0,
}
LENGTHS = {"short and long rows": ((5, 30), 6, True), "short rows": ((5, 16), 6, False)}


@pytest.mark.wide
@pytest.mark.parametrize("case", LENGTHS)
def test_rotary_factors_are_those_of_generate(case, recwarn):
    """Where factors change with a batch's longest row, rows get those of ``generate``; where they do not, tokens are drafted."""
    lengths, new, plain = LENGTHS[case]
    model = zoo.build("phi3", rope_parameters=LONG_ROPE, original_max_position_embeddings=BOUNDARY)
    prompts = padded(harness.random_prompts(lengths, zoo.VOCABULARY, seed=5))
    got = generated(model, zoo.good_draft(zoo.build("phi3")), lambda: {**prompts, "max_new_tokens": new})
    assert any("rotary factors that change" in str(one.message) for one in recwarn) == plain
    assert torch.equal(got, generated(model, None, lambda: {**prompts, "max_new_tokens": new}, custom=False))


class PerRow(LogitsProcessor):
    """A user's processor made for a number of rows: a strength and an own list of tokens for each."""

    def __init__(self, rows=8):
        self.strengths, self.tokens = torch.linspace(1, 30, rows)[:, None], [[3 * row, 50 + row] for row in range(rows)]

    def __call__(self, input_ids, scores):
        scores = scores - self.strengths * (torch.arange(scores.shape[1]) % 3 == input_ids.sum(-1, keepdim=True) % 3)
        for row, tokens in enumerate(self.tokens):
            scores[row, tokens] = -9.0
        return scores


class Lazy(LogitsProcessor):
    """A user's processor that makes what it needs when it is first called, and holds a model."""

    def __init__(self):
        self.bias, self.model, self.stop = None, MODEL, threading.Event()

    def __call__(self, input_ids, scores):
        if self.bias is None:
            self.bias = torch.arange(scores.shape[1]) % 3
        return scores - self.bias * (input_ids.sum(-1, keepdim=True) % 2)


FREE = {
    "a processor that remembers nothing but constants": lambda: {"logits_processor": LogitsProcessorList([Lazy()])},
    "a processor made for a number of rows": lambda: {"logits_processor": LogitsProcessorList([PerRow()])},
    "an older criterion": lambda: {
        "input_ids": padded()["input_ids"][4:5],
        "attention_mask": None,
        "stopping_criteria": StoppingCriteriaList([lambda ids, scores, **options: ids.sum() % 7 == 0]),
    },
}


@pytest.mark.wide(but=["a processor made for a number of rows"])
@pytest.mark.parametrize("what", FREE)
def test_what_goes_by_a_rows_ids_is_drafted_along(what, recwarn):
    """Processors and criteria that depend on the ids of a row alone see each prefix, and nothing is said."""
    asked = lambda: {**padded(), **FREE[what]()}  # noqa: E731
    got = generated(MODEL, DRAFT, asked)
    assert not [warning for warning in recwarn if issubclass(warning.category, SpecframeWarning)]
    assert torch.equal(got, generated(MODEL, DRAFT, asked, custom=False))
    assert not torch.equal(got, generated(MODEL, DRAFT, padded))


def tuned(model, change):
    """Return a model whose inputs are prepared by somebody else, as prompt tuning does: ``change`` is given them."""
    model = copy.deepcopy(model)
    own = model.prepare_inputs_for_generation

    def prepare(*args, **kwargs):
        return change(model, own(*args, **kwargs), kwargs.get("is_first_iteration"))

    model.prepare_inputs_for_generation = prepare
    return model


def behind_virtual_tokens(model, fed):
    """Make room for four tokens before the prompt."""
    rows = len(fed["input_ids"])
    mask = fed.get("attention_mask")
    mask = (
        torch.ones(rows, fed["past_key_values"].get_seq_length() + fed["input_ids"].shape[1]) if mask is None else mask
    )
    fed["attention_mask"] = torch.cat([torch.ones(rows, 4, dtype=mask.dtype), mask], dim=1)
    fed.pop("position_ids", None)
    return rows


def prompt_tuning(model, fed, first):
    """Put the embeddings of four tokens before the prompt."""
    rows = behind_virtual_tokens(model, fed)
    if first:
        embed = model.get_input_embeddings()
        virtual = embed(torch.tensor([[5, 6, 7, 8]])).expand(rows, -1, -1)
        fed["inputs_embeds"] = torch.cat([virtual, embed(fed.pop("input_ids"))], dim=1)
        fed["input_ids"] = None
    return fed


def prefix_tuning(model, fed, first):
    """Put the keys and values of four tokens before the prompt."""
    rows = behind_virtual_tokens(model, fed)
    if first:
        fed["past_key_values"] = DynamicCache(config=model.config)
        model(torch.tensor([[5, 6, 7, 8]]).expand(rows, -1), past_key_values=fed["past_key_values"])
    return fed


@pytest.mark.wide
@pytest.mark.parametrize("change", [prompt_tuning, prefix_tuning])
def test_models_that_prepare_their_inputs_in_another_way(change):
    """A model tuned by a prompt or a prefix gives the tokens that it gives in ``generate``, and not those of its base."""
    model = tuned(MODEL, change)
    tokens = assert_plain(lambda: padded([[1, 2, 3], [4, 5, 6]]), "inputs that the model prepares", model)
    assert not torch.equal(tokens, generated(MODEL, DRAFT, lambda: padded([[1, 2, 3], [4, 5, 6]])))


ENCODER_DECODER = T5Config(
    vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
)


@pytest.mark.parametrize("what", ["beams", "an encoder-decoder model"])
def test_other_searches_are_those_of_generate(what):
    """Beams, and a model with an encoder, give what they give without the drop-in, and a sentence says so."""
    torch.manual_seed(0)
    beams = what == "beams"
    model = MODEL if beams else T5ForConditionalGeneration(ENCODER_DECODER).eval()
    asked = {
        **(padded() if beams else {"input_ids": torch.tensor([[1, 2]])}),
        "max_new_tokens": 3,
        "num_beams": 1 + beams,
    }
    plain = model.generate(**asked)
    with pytest.warns(SpecframeWarning, match=r"go with beam_search \(num_beams=2\)" if beams else what):
        drafted = model.generate(**asked, custom_generate=specframe.assisted(DRAFT))
    assert torch.equal(plain, drafted)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"num_beams": 2, "streamer": Notes()}, "a streamer with beam_search"),
        ({"assistant_early_exit": 1, "prompt_lookup_num_tokens": 2}, "assistant_early_exit"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(monkeypatch, asked, named):
    """What no loop here decodes is named before the model is asked anything."""
    monkeypatch.setattr(MODEL, "forward", unasked)
    with pytest.raises(OptionError, match=named):
        MODEL.generate(**padded(), max_new_tokens=NEW, **asked, custom_generate=specframe.assisted(DRAFT))


def unasked(input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, logits_to_keep=0, **_):
    """Stand in for a model's forward, which must not be called."""
    raise AssertionError("the model was asked")
