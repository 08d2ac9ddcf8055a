"""Every kind of call of ``generate``, in several architectures, gives the same tokens and outputs with the drop-in."""

from __future__ import annotations

import pytest
import torch
from generating import PROMPTS, padded
from products import crossed
from specframe_testing import zoo
from transformers import DynamicCache, GenerationConfig

import specframe

MODELS = {name: zoo.build(name, attn_implementation="eager") for name in zoo.NAMES}
DRAFTS = {name: zoo.good_draft(MODELS[name]) for name in zoo.NAMES}
EQUAL = torch.tensor([PROMPTS[3][:6], PROMPTS[6][:6], PROMPTS[1][:6]])
"""Prompts of one length, without padding."""

GREEDY = {"do_sample": False, "max_new_tokens": 7}
EVERYTHING = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_hidden_states": True,
    "output_attentions": True,
}


def embedded(model):
    """Return the prompts as embeddings."""
    return {"inputs_embeds": model.get_input_embeddings()(EQUAL)}


def begun(model):
    """Return prompts of which all tokens but the last are in a cache."""
    cache = DynamicCache(config=model.config)
    model(EQUAL[:, :-1], past_key_values=cache)
    return {"input_ids": EQUAL, "past_key_values": cache}


def right_padded(model):
    """Return prompts that are padded on the right."""
    return {name: value.flip(1) for name, value in padded(PROMPTS[:3]).items()}


def with_holes(model):
    """Return prompts of which some tokens are masked, wherever they are."""
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1]])
    return {"input_ids": EQUAL, "attention_mask": mask}


def with_positions(model):
    """Return padded prompts and the place of each token in its row."""
    inputs = padded()
    return {**inputs, "position_ids": (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)}


def guided(model):
    """Return prompts, and others to be led away from."""
    return {"input_ids": EQUAL, "guidance_scale": 1.4, "negative_prompt_ids": EQUAL.flip(0)}


KINDS = {
    "greedy": lambda model: {"input_ids": EQUAL},
    "left padding": lambda model: padded(),
    "right padding": right_padded,
    "masked tokens": with_holes,
    "positions": with_positions,
    "a least number of tokens": lambda model: {**padded(), "eos_token_id": list(range(0, 97, 3)), "min_new_tokens": 3},
    "logits of all tokens": lambda model: {"input_ids": EQUAL, "logits_to_keep": 0},
    "one row": lambda model: padded(PROMPTS[4:5]),
    "from the first token on": lambda model: {"bos_token_id": 5},
    "a configuration": lambda model: {
        "input_ids": EQUAL,
        "generation_config": GenerationConfig(max_length=11, repetition_penalty=1.3, do_sample=False, **EVERYTHING),
        "max_new_tokens": None,
    },
    "the most likely of one, sampled": lambda model: {"input_ids": EQUAL, "do_sample": True, "top_k": 1},
    "several of each": lambda model: {**padded(), "do_sample": True, "top_k": 1, "num_return_sequences": 2},
    "no cache": lambda model: {**padded(), "use_cache": False},
    "a static cache": lambda model: {"input_ids": EQUAL, "cache_implementation": "static"},
    "a static cache and padding": lambda model: {**padded(), "cache_implementation": "static"},
    "embeddings": embedded,
    "embeddings and a static cache": lambda model: {**embedded(model), "cache_implementation": "static"},
    "a cache that was begun": begun,
    "prompt lookup": lambda model: {"input_ids": EQUAL.repeat(1, 3)[:1], "prompt_lookup_num_tokens": 2},
    "guidance": guided,
    "encoder penalties": lambda model: {
        **padded(),
        "encoder_repetition_penalty": 1.5,
        "encoder_no_repeat_ngram_size": 1,
    },
    "ends": lambda model: {**padded(), "eos_token_id": list(range(0, 97, 7))},
}


def assert_same(got, expected, live=None):
    """Assert that outputs have the same structure, shapes and, nearly, values; ``live``: in those rows."""
    if isinstance(expected, torch.Tensor):
        assert got.shape == expected.shape
        if expected.is_floating_point():
            torch.testing.assert_close(got[live], expected[live], atol=3e-4, rtol=1e-3)
        else:
            assert torch.equal(got, expected)
    elif isinstance(expected, tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other, live)
    else:
        assert got is expected is None


def layers_of(cache):
    """Return the keys and values of a cache; None where there is none."""
    return None if cache is None else tuple((layer.keys, layer.values) for layer in cache.layers)


NOT_DRAFTED = {
    "right padding": "padding that is not on the left",
    "masked tokens": "padding that is not on the left",
    "no cache": "use_cache=False",
    "a static cache": "output_attentions along with a static cache",
    "a static cache and padding": "output_attentions along with a static cache",
    "embeddings": "inputs_embeds",
    "embeddings and a static cache": "inputs_embeds",
    "a cache that was begun": "past_key_values that hold tokens",
    "guidance": "UnbatchedClassifierFreeGuidanceLogitsProcessor",
}
"""Kinds in which nothing is drafted, and why."""


@pytest.mark.wide
@pytest.mark.parametrize(("name", "kind"), crossed(zoo.NAMES, [*KINDS]))
def test_a_call_gives_what_it_gives_without_the_drop_in(name, kind, recwarn):
    """Tokens are equal; scores, hidden states, attention weights and the cache have the same shapes and nearly the same values."""
    model = MODELS[name]

    def generated(**custom):
        torch.manual_seed(0)
        return model.generate(**{**GREEDY, **EVERYTHING, **KINDS[kind](model), **custom})

    expected = generated(prompt_lookup_num_tokens=None)
    got = generated(custom_generate=specframe.assisted(DRAFTS[name], 3))
    told = [str(one.message) for one in recwarn if "nothing is drafted" in str(one.message)]
    assert [NOT_DRAFTED.get(kind, "no reason") in one for one in told] == [True] * (kind in NOT_DRAFTED)
    assert type(got) is type(expected)
    assert torch.equal(got.sequences, expected.sequences)
    width = got.sequences.shape[1] - len(expected.scores)
    ended = torch.zeros(len(got.sequences), dtype=torch.bool)
    ends = torch.tensor(KINDS[kind](model).get("eos_token_id", [zoo.EOS]))
    for step, outputs in enumerate(zip(got.scores, got.logits, expected.scores, expected.logits, strict=True)):
        assert_same(outputs[:2], outputs[2:], ~ended)
        ended |= torch.isin(got.sequences[:, width + step], ends)
    assert_same(got.hidden_states, expected.hidden_states, slice(None))
    assert_same(got.attentions, expected.attentions, slice(None))
    assert type(got.past_key_values) is type(expected.past_key_values)
    assert_same(layers_of(got.past_key_values), layers_of(expected.past_key_values), slice(None))
