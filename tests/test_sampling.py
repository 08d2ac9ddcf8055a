"""Sampling parameters: what they accept, what a sequence depends on, processors against one token at a time."""

import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, RepetitionPenaltyLogitsProcessor

from specframe import Pipeline
from specframe.compose import SAMPLING_RULE
from specframe.errors import OptionError, UnknownNameError
from specframe.noise import Stream, gumbel, uniform
from specframe.sampling import Sampling

VOCABULARY = 5


def small(seed: int) -> LlamaForCausalLM:
    """Return a model of one small layer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, initializer_range=0.7,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


TARGET, DRAFT = small(1), small(2)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_sequence_does_not_depend_on_its_neighbours(rule):
    """At a fixed draft length the same seed gives the same tokens whatever the batch size, scheduler and alignment."""
    sampling = Sampling(temperature=1.0)
    prompts = [[number % VOCABULARY] * (1 + number % 7) for number in range(12)]

    def ids(**options):
        pipe = Pipeline(TARGET, DRAFT, accept=rule, seed=5, draft_length=3, **options)
        return [result.token_ids for result in pipe.generate(prompts, max_new_tokens=4, sampling=sampling)]

    alone = ids(batch_size=1, schedule="fixed")
    assert ids(batch_size=5, schedule="fixed", align="eqspec") == alone
    assert ids(batch_size=12, align="exspec") == alone


@pytest.mark.parametrize("rule", ["rejection", "block", "gumbel"])
def test_temperature_zero_is_greedy(rule):
    """A rule that samples gives the greedy tokens at temperature 0."""
    prompts = [[1, 2], [3], [4, 4, 4]]
    greedy = [r.token_ids for r in Pipeline(TARGET, DRAFT, draft_length=3).generate(prompts, max_new_tokens=10)]
    ruled = Pipeline(TARGET, DRAFT, accept=rule, draft_length=3).generate(prompts, max_new_tokens=10)
    assert [result.token_ids for result in ruled] == greedy


def test_processors_that_look_at_the_prefix_see_what_one_token_at_a_time_sees():
    """A repetition penalty inside a block gives the tokens of plain decoding under the same penalty."""
    sampling = Sampling(
        repetition_penalty=1.8, presence_penalty=0.4, processors=(RepetitionPenaltyLogitsProcessor(1.1),)
    )
    prompts = [[1, 2], [3], [4, 4, 4, 0]]

    def ids(drafter, **options):
        found = Pipeline(TARGET, drafter, **options).generate(prompts, max_new_tokens=12, sampling=sampling)
        return [result.token_ids for result in found]

    plain = ids(None, batch_size=1)
    assert ids(DRAFT, draft_length=4) == plain
    unpenalised = Pipeline(TARGET, None).generate(prompts, max_new_tokens=12)
    assert [result.token_ids for result in unpenalised] != plain


def test_a_temperature_the_rule_ignores_is_refused():
    """Greedy acceptance with a temperature says which rules sample."""
    with pytest.raises(OptionError, match="gumbel, block or rejection"):
        Pipeline(TARGET, DRAFT, accept="greedy").generate([[1]], sampling=Sampling(temperature=0.7))


OUT_OF_RANGE = {
    "temperature": (-1, "a number of at least 0"),
    "top_p": (0, "a number above 0 and at most 1"),
    "top_k": (-2, "a whole number of at least 0"),
    "min_p": (1.5, "a number from 0 to 1"),
    "samples": (0, "a whole number of at least 1"),
    "max_new_tokens": (0, "a whole number of at least 1"),
    "min_new_tokens": (1.5, "a whole number of at least 0"),
    "logprobs": (True, "a whole number of at least 0"),
    "max_time": (-0.1, "a number of at least 0"),
    "stop": (("a", ""), "a text or several, none of them empty"),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_parameter_out_of_range_is_refused(name):
    """The message names the parameter and what it accepts, and what was got."""
    value, accepts = OUT_OF_RANGE[name]
    with pytest.raises(OptionError, match=re.escape(f"{name}: expected {accepts}, got {value!r}")):
        Sampling(**{name: value})


def test_parameters_of_one_prompt_take_the_place_of_those_of_all():
    """What is written down for one prompt, as in JSON, replaces what holds for all; unknown names are named."""
    usual = Sampling(temperature=0.5, stop="END")
    own = usual.with_parameters({"bad_words_ids": [[1, 2], [3]], "stop": ["a", "b"], "max_new_tokens": 7})
    assert own == Sampling(temperature=0.5, bad_words_ids=((1, 2), (3,)), stop=("a", "b"), max_new_tokens=7)
    assert usual.stop == ("END",)
    with pytest.raises(UnknownNameError, match=r"unknown sampling parameter 'stops'.*did you mean 'stop'"):
        usual.with_parameters({"stops": "x"})
    with pytest.raises(UnknownNameError, match="unknown sampling parameter 'criteria'"):
        usual.with_parameters({"criteria": []})


def test_auto_takes_the_rule_that_a_run_needs():
    """By default runs without a temperature are greedy, and those with one draw as the sampling rule does."""
    sampling, prompts = Sampling(temperature=1.2), [[1, 2], [3], [4, 4, 4]]

    def ids(pipe, sampling):
        return [result.token_ids for result in pipe.generate(prompts, max_new_tokens=10, sampling=sampling)]

    auto = Pipeline(TARGET, DRAFT, draft_length=3, seed=3)
    named = Pipeline(TARGET, DRAFT, draft_length=3, seed=3, accept=SAMPLING_RULE)
    greedy = ids(Pipeline(TARGET, DRAFT, draft_length=3, accept="greedy"), None)
    assert ids(auto, sampling) == ids(named, sampling) != greedy
    assert ids(auto, None) == greedy
    mixed = ids(auto, [Sampling(), sampling, Sampling()])
    assert mixed == [greedy[0], ids(named, sampling)[1], greedy[2]]


def test_random_numbers_are_keyed_by_use():
    """Numbers are uniform, streams differ, and a number does not depend on what it is drawn together with."""
    rows, places = torch.arange(50)[:, None], torch.arange(2000)[None]
    numbers = uniform(1, rows, places, Stream.ACCEPT)
    assert abs(float(numbers.mean()) - 0.5) < 4 * (1 / 12 / numbers.numel()) ** 0.5
    other = uniform(1, rows, places, Stream.DRAFT)
    assert abs(float(((numbers - 0.5) * (other - 0.5)).mean())) < 4 / 12 / numbers.numel() ** 0.5
    assert uniform(1, rows[7:8], places[:, 30:31], Stream.ACCEPT).item() == numbers[7, 30].item()
    noise = gumbel(1, rows, places, Stream.TARGET, 3)
    assert noise.shape == (50, 2000, 3)
    assert abs(float(noise.mean()) - 0.5772) < 4 * (1.645 / noise.numel()) ** 0.5
