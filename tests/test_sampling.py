"""Sampling parameters: what they accept, what a sequence depends on, processors against one token at a time."""

import re

import pytest
import torch
from specframe_testing import fakes
from transformers import LlamaConfig, LlamaForCausalLM, RepetitionPenaltyLogitsProcessor

from specframe import Pipeline
from specframe.errors import OptionError, UnknownNameError
from specframe.reference import reference_decode
from specframe.text.sampling import Sampling

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


@pytest.mark.wide(but=["stream"])
@pytest.mark.parametrize("method", ["generate", "as_completed", "stream"])
def test_parameters_may_be_keywords(method):
    """Parameters by their names are those of a ``Sampling``, win over one that is given, and are checked as its are."""
    pipe, prompts = Pipeline(TARGET, DRAFT, draft_length=2), [[1], [2, 3]]

    def ids(**asked):
        found = list(getattr(pipe, method)(prompts, 6, **asked))
        results = [one.result for one in found if one.result] if method == "stream" else found
        return {(one.index, one.sample): one.token_ids for one in results}

    warm = ids(sampling=Sampling(temperature=1.0, samples=2))
    assert ids(temperature=1.0, samples=2) == warm != ids(samples=2)
    assert ids(sampling=Sampling(temperature=1.0), samples=2) == warm
    assert ids(sampling=[Sampling(samples=2), Sampling(temperature=2.0)], temperature=1.0, samples=2) == warm
    with pytest.raises(OptionError, match="temperature: expected a number of at least 0, got 'hot'"):
        ids(temperature="hot")


@pytest.mark.wide(but=["rejection"])
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


@pytest.mark.wide(but=["gumbel"])
@pytest.mark.parametrize("rule", ["rejection", "block", "gumbel"])
def test_temperature_zero_is_greedy(rule):
    """A rule that samples gives the greedy tokens at temperature 0."""
    prompts = [[1, 2], [3], [4, 4, 4]]
    greedy = [r.token_ids for r in Pipeline(TARGET, DRAFT, draft_length=3).generate(prompts, max_new_tokens=10)]
    ruled = Pipeline(TARGET, DRAFT, accept=rule, draft_length=3).generate(prompts, max_new_tokens=10)
    assert [result.token_ids for result in ruled] == greedy


@pytest.mark.wide
def test_a_temperature_the_rule_ignores_is_refused():
    """Greedy acceptance with a temperature says which rules sample."""
    with pytest.raises(OptionError, match="choose a rule that samples, such as block or gumbel"):
        Pipeline(TARGET, DRAFT, accept="greedy").generate([[1]], sampling=Sampling(temperature=0.7))


@pytest.mark.wide
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


def test_counts_and_biases_against_the_reference():
    """Greedy tokens under a frequency penalty and biases are the reference's, to which the formulas are applied by hand."""

    def by_hand(ids_1L, scores_1V):
        counts_V = torch.bincount(ids_1L[0, 2:], minlength=VOCABULARY)
        scores_1V = scores_1V - 0.3 * counts_V
        scores_1V[0, 2] += 0.5
        if ids_1L[0, -1] == 2:
            scores_1V[0, 3] -= 4.0
        return scores_1V

    how = Sampling(frequency_penalty=0.3, sequence_bias=[[[2], 0.5], [[2, 3], -4.0]])
    (found,) = Pipeline(TARGET, DRAFT, draft_length=3).generate([[1, 1]], 20, sampling=how)
    assert found.token_ids == reference_decode(TARGET, [1, 1], 20, processors=[by_hand])
    assert found.token_ids != reference_decode(TARGET, [1, 1], 20)
    with pytest.raises(OptionError, match="sequence_bias: expected ids from 0 to 4, got 5"):
        Pipeline(TARGET, DRAFT, draft_length=3).generate([[1]], 4, sequence_bias=[[[5], 1.0]])


WRONG_TYPES = {
    "temperature": ("warm", [1], True, float("inf"), float("nan")),
    "top_p": ("x", float("nan")),
    "repetition_penalty": (0, -1, float("inf"), "x"),
    "presence_penalty": (float("inf"), "x"),
    "frequency_penalty": (float("inf"), "x"),
    "sequence_bias": (5, [[1, 2.0]], [[[], 1.0]], [[[1], "x"]], [[[-1], 1.0]]),
    "bad_words_ids": ([1, 2], 5, "ab", [[1.5]], [[]], [[-1]]),
    "suppress_tokens": (5, [[1]], ["a"], [True], [-1]),
    "forced_eos": (1, "yes"),
    "processors": (5, len, [5], [RepetitionPenaltyLogitsProcessor]),
    "criteria": (5, len, ["x"]),
    "stop": (5, [5], [""], ""),
    "max_time": (0, float("inf"), "x"),
    "samples": (None, 0, 1.5),
    "min_new_tokens": (-1, "3"),
    "max_new_tokens": (0, 2.5),
    "logprobs": (-1, 1.5),
    "top_k": (-1, 2.5),
    "min_p": (2, "x"),
    "typical_p": (0, "x"),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", [*Sampling.parameters(), "processors", "criteria"])
def test_every_parameter_checks_its_type(name):
    """A value of another type, or outside of the range, is one sentence that names the parameter, and what it expects and got."""
    for value in WRONG_TYPES[name]:
        with pytest.raises(OptionError, match=rf"^{name}: expected .*, got ") as raised:
            Sampling(**{name: value})
        assert "\n" not in str(raised.value)


NO_EFFECT = [
    (Sampling(top_k=5), "top_k: expected a temperature above 0 with it, got 5 where no token is drawn"),
    (Sampling(top_p=0.9, temperature=0), "top_p: expected a temperature above 0 with it, got 0.9 where"),
    (Sampling(min_p=0.1), "min_p: expected a temperature above 0 with it"),
    (Sampling(typical_p=0.2), "typical_p: expected a temperature above 0 with it"),
    (Sampling(min_new_tokens=5), "min_new_tokens: expected at most the 4 of max_new_tokens, got 5"),
    (Sampling(min_new_tokens=3, max_new_tokens=2), "min_new_tokens: expected at most the 2 of max_new_tokens, got 3"),
    (Sampling(bad_words_ids=[[1], [VOCABULARY]]), "bad_words_ids: expected ids from 0 to 4, got 5"),
    # numbers that have more digits than Python prints
    (Sampling(top_k=10**5000), "top_k: expected "),
    (Sampling(min_new_tokens=10**5000), "min_new_tokens: expected "),
    (Sampling(suppress_tokens=[10**5000]), "suppress_tokens: expected "),
    (Sampling(suppress_tokens=[9]), "suppress_tokens: expected ids from 0 to 4, got 9"),
]


@pytest.mark.wide
@pytest.mark.parametrize(("sampling", "why"), NO_EFFECT, ids=range(len(NO_EFFECT)))
def test_a_value_without_effect_is_refused(sampling, why):
    """For all prompts it is an error on the call; for one of several prompts it is that prompt's, and the others go on."""
    pipe = Pipeline(TARGET, DRAFT, draft_length=3)
    with pytest.raises(OptionError, match=re.escape(why)):
        pipe.generate([[1, 2], [3]], 4, sampling=sampling)
    alone = [result.token_ids for result in pipe.generate([[1, 2], [3]], 4)]
    first, failed, last = pipe.generate([[1, 2], [2], [3]], 4, sampling=[Sampling(), sampling, Sampling()])
    assert [first.token_ids, last.token_ids] == alone
    assert why in str(failed.error)


@pytest.mark.wide
@pytest.mark.parametrize(
    "value",
    [{"temperature": 5e-324}, {"temperature": 1e-30}, {"presence_penalty": 1e308}, {"presence_penalty": 10**30}],
)
def test_values_at_the_end_of_a_range_overflow_nothing(value: dict[str, float]) -> None:
    """The coldest temperature decodes greedily; the strongest penalty takes every token once, as a strong one does."""
    target = fakes.fake_target()
    pipe = Pipeline(target, fakes.fake_draft(target), draft_length=3)
    (found,) = pipe.generate([[1, 2]], 8, sampling=Sampling(**value))
    (expected,) = pipe.generate(
        [[1, 2]], 8, sampling=Sampling(presence_penalty=1e6) if "presence_penalty" in value else None
    )
    assert found.token_ids == expected.token_ids
