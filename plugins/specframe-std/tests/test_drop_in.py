"""``model.generate(..., custom_generate=specframe.assisted(draft))`` gives what ``model.generate(...)`` gives."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import transformers
from generating import DRAFT, MODEL, NEW, PROMPTS, TOKENIZER, Notes, both, greedy, padded
from specframe_std.drop_in import pipeline_cache
from specframe_std.kv.slab import Slab
from specframe_std.policies.fixed_length import FixedLength
from specframe_testing import fakes, harness, zoo
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
    WatermarkingConfig,
)

import specframe
from specframe.errors import OptionError, PromptError, SpecframeError, SpecframeWarning

transformers.logging.set_verbosity_error()


def assert_same(**asked):
    """Assert that both give the same tokens, and return them."""
    plain, drafted = both(**asked)
    assert torch.equal(plain, drafted), f"\n{plain}\n{drafted}"
    return plain


def common_tokens(count):
    """Return tokens that come up in the continuations of most rows, at places of their own."""
    plain = greedy()[:, -NEW:]
    found = Counter(token for row in plain[:, 2:].tolist() for token in set(row))
    return [token for token, _ in found.most_common(count)]


class Own(LogitsProcessor):
    """A user's processor, which looks at the whole prefix."""

    def __call__(self, input_ids, scores):
        places_BV = torch.arange(scores.shape[1]) + input_ids.sum(-1, keepdim=True)
        return scores - 3.0 * (places_BV % 3)


PROCESSORS = {
    "repetition_penalty": {"repetition_penalty": 1.5},
    "bad_words_ids": {"bad_words_ids": [[5], [7, 9], [1, 2, 3], *[[token] for token in range(40, 60)]]},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": list(range(0, 97, 3))},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(row, 90, 2 + len(ids) % 3))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(1, 97, 2))},
    "sequence_bias": {"sequence_bias": [[[5], 4.0], [[7, 9], -6.0], [[11], 3.0]]},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (4, 1.3), "eos_token_id": 7},
    "watermarking_config": {"watermarking_config": WatermarkingConfig(bias=4.0)},
    "one's own": {"logits_processor": LogitsProcessorList([Own()])},
    "several": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "suppress_tokens": [5, 6],
        "logits_processor": LogitsProcessorList([Own()]),
        "eos_token_id": [0, 31, 32, 33, 34, 35],
    },
}


@pytest.mark.wide(but=["several"])
@pytest.mark.parametrize("processors", PROCESSORS)
def test_processors_see_what_they_see_in_generate(processors):
    """Every processor that ``generate`` makes, and one's own, is applied at each place to the prefix it would see there."""
    plain = assert_same(**PROCESSORS[processors])
    unprocessed = greedy()
    assert plain.shape != unprocessed.shape or not torch.equal(plain, unprocessed), "the processor does nothing"


class Sums(StoppingCriteria):
    """A user's criterion, which looks at the whole prefix, padding included."""

    def __call__(self, input_ids, scores, **options):
        return (input_ids.sum(-1) % 7 == 0) & (input_ids.shape[1] > 17)


def texts_of(tokens):
    """Return what each token says."""
    return [TOKENIZER.decode([token]) for token in tokens]


CRITERIA = {
    "strings": lambda: [StopStringCriteria(TOKENIZER, texts_of(common_tokens(3)))],
    "one's own": lambda: [Sums()],
    "lengths": lambda: [MaxLengthCriteria(19)],
    "several": lambda: [Sums(), StopStringCriteria(TOKENIZER, texts_of(common_tokens(1))), MaxLengthCriteria(26)],
}


@pytest.mark.wide
@pytest.mark.parametrize("criteria", CRITERIA)
def test_criteria_end_rows_where_they_end_in_generate(criteria):
    """Criteria are asked after every token with the ids that ``generate`` would show them, and each row ends on its own."""
    plain = assert_same(stopping_criteria=StoppingCriteriaList(CRITERIA[criteria]()))
    assert (plain[:, -1] == zoo.EOS).any() or plain.shape[1] < 14 + NEW, "no row ended early"


@pytest.mark.wide
def test_what_is_not_asked_for_is_not_returned():
    """Without ``output_scores`` there are none, and without ``return_dict_in_generate`` there is a tensor."""
    _, drafted = both(return_dict_in_generate=True, output_logits=True)
    assert (drafted.scores, drafted.hidden_states, drafted.attentions, len(drafted.logits)) == (None, None, None, NEW)
    assert isinstance(both(output_scores=True, output_hidden_states=True)[1], torch.Tensor)


@pytest.mark.wide
def test_prompt_lookup_is_what_drafts_where_it_is_asked_for(monkeypatch):
    """``prompt_lookup_num_tokens`` drafts from the prompt, as many tokens, and the model given to the drop-in is not asked."""
    monkeypatch.setattr(DRAFT, "forward", None)
    inputs, assisted = padded(), specframe.assisted(DRAFT)
    inputs["input_ids"][:, 7:] = inputs["input_ids"][:, :7]
    plain = MODEL.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    for options in ({}, {"max_matching_ngram_size": 2}):
        asked = {"max_new_tokens": NEW, "do_sample": False, "prompt_lookup_num_tokens": 3, **options}
        assert torch.equal(plain, MODEL.generate(**inputs, **asked, custom_generate=assisted))


@pytest.mark.wide
def test_a_model_may_change_between_two_calls():
    """Embeddings that grew or shrank between two calls of one drop-in count: those of the target, and those of the draft."""
    torch.manual_seed(0)
    model, draft = copy.deepcopy(MODEL), copy.deepcopy(DRAFT)
    assisted = specframe.assisted(draft, 3)
    for changed, size in ((None, 0), (model, 120), (draft, 120), (model, 64), (draft, 64)):
        if changed is not None:
            changed.resize_token_embeddings(size, mean_resizing=False)
            with torch.no_grad():
                changed.get_input_embeddings().weight[97:].normal_()  # the new tokens are the likely ones
        prompts = [[token % 64 for token in prompt] for prompt in PROMPTS]
        assert torch.equal(greedy(9, prompts, model), greedy(9, prompts, model, custom_generate=assisted))


def test_a_models_state_is_all_that_a_pipeline_depends_on():
    """Another dtype, device, attention or configuration is another state, whatever the configuration says of the dtype."""
    model, states = fakes.fake_target(), []
    for change in (
        lambda: None,
        lambda: model.half(),
        lambda: model.to("meta"),
        lambda: setattr(model.config, "max_position_embeddings", 7),
        lambda: model.set_attn_implementation("eager"),
    ):
        change()
        states.append(pipeline_cache.state_of(model))
        assert pipeline_cache.state_of(model) == states[-1]
    assert all(one != other for place, one in enumerate(states) for other in states[:place])


@pytest.mark.wide
def test_a_model_no_longer_used_is_let_go_of():
    """A drop-in keeps hold of the model of its latest call, and of no other."""
    assisted, gone = specframe.assisted(DRAFT, 3), []
    for _ in range(3):
        model = copy.deepcopy(MODEL)
        greedy(4, PROMPTS[:2], model, custom_generate=assisted)
        gone.append(weakref.ref(model))
    del model
    gc.collect()
    assert [reference() is None for reference in gone] == [True, True, False]


def test_a_closed_drop_in_keeps_nothing():
    """After ``close`` neither models nor caches of the latest call are held, and the next call has its tokens."""
    model, slab = copy.deepcopy(MODEL), Opened()
    assisted = specframe.assisted(DRAFT, 3, kv=slab, keep_cache=True)
    greedy(4, PROMPTS[:2], model, custom_generate=assisted)
    held = [weakref.ref(model), weakref.ref(slab.latest)]
    del model
    slab.latest = None
    assisted.close()
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    assisted.close()
    assert torch.equal(greedy(4, PROMPTS[:2], custom_generate=assisted), greedy(4, PROMPTS[:2]))


class Opened(Slab):
    """Counts the stores that it opens."""

    count, latest = 0, None

    def open(self, shapes, rows, capacity, device):
        """Open a store."""
        self.count += 1
        self.latest = super().open(shapes, rows, capacity, device)
        return self.latest


@pytest.mark.wide(but=["False"])
@pytest.mark.parametrize("keep", [False, True])
def test_caches_are_kept_where_it_is_asked_for(keep):
    """Calls of as many tokens then open none, after a change of weights neither; longer ones do, and all have their tokens."""
    model, slab = copy.deepcopy(MODEL), Opened()
    assisted = specframe.assisted(DRAFT, 3, kv=slab, keep_cache=keep)

    def opened(new):
        before = slab.count
        ids = greedy(new, PROMPTS[:3], model, custom_generate=assisted)
        assert torch.equal(ids, greedy(new, PROMPTS[:3], model))
        return slab.count - before

    assert opened(9) == 2
    assert opened(9) == (0 if keep else 2)
    assert opened(5) == (0 if keep else 2)
    assert opened(40) == 2
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1.5)
    assert opened(40) == (0 if keep else 2)


@pytest.mark.wide
def test_a_call_that_fails_keeps_no_cache():
    """The next call begins with a pipeline of its own."""
    slab = Opened()
    assisted = specframe.assisted(DRAFT, 3, kv=slab, keep_cache=True)
    breaks = SimpleNamespace(put=lambda value: 1 / 0, end=lambda: None)
    with pytest.raises(ZeroDivisionError):
        greedy(6, PROMPTS[:1], custom_generate=assisted, streamer=breaks)
    before, plain = slab.count, greedy(6, PROMPTS[:2])
    for _ in range(2):
        assert torch.equal(greedy(6, PROMPTS[:2], custom_generate=assisted), plain)
        assert slab.count == before + 2


@pytest.mark.wide
def test_threads_take_turns():
    """One drop-in serves calls from several threads on models that share a draft: each gets its own tokens."""
    assisted = specframe.assisted(DRAFT, 3)
    models_used = [copy.deepcopy(MODEL).train(), MODEL]

    def drafted(turn):
        return greedy(9, PROMPTS[turn : turn + 3], models_used[turn % 2], custom_generate=assisted)

    with ThreadPoolExecutor(6) as threads:
        for turn, got in enumerate(threads.map(drafted, range(6))):
            assert torch.equal(got, greedy(9, PROMPTS[turn : turn + 3]))


@pytest.mark.wide
def test_sampling_follows_the_seed_of_torch():
    """``torch.manual_seed`` makes sampled tokens come again; without it they differ from call to call."""
    assisted = specframe.assisted(DRAFT, 4)

    def sampled():
        asked = {"do_sample": True, "temperature": 1.5, "top_p": 0.95, "num_return_sequences": 2}
        return greedy(**asked, custom_generate=assisted)

    torch.manual_seed(5)
    first, second = sampled(), sampled()
    torch.manual_seed(5)
    assert torch.equal(first, sampled())
    assert not torch.equal(first, second)
    assert first.shape[0] == 16
    assert not torch.equal(first[0], first[1])


@pytest.mark.wide
def test_a_greedy_rule_does_not_sample():
    """``do_sample=True`` with a rule that always takes the most likely token is refused, as a pipeline refuses it."""
    with pytest.raises(OptionError, match="do_sample=True has no effect on an acceptance rule that always takes"):
        both(do_sample=True, options={"accept": "greedy"})


UNUSABLE = {
    "a number as draft": ((5,), "draft: expected a loaded model, .* got 5"),
    "any draft": (("auto",), "draft: expected a loaded model, .* got 'auto'"),
    "a fraction as draft length": ((DRAFT, 1.5), "draft_length: expected a whole number of at least 1, .* got 1.5"),
    "a list as draft length": ((DRAFT, [1, 2]), "draft_length: expected a whole number of at least 1, .*, 2"),
    "no draft length": ((DRAFT, None), "draft_length: .* got None"),
    "a draft length of 0": ((DRAFT, 0), "expected at least 1, got 0"),
    "an unknown policy": ((DRAFT, "goodputt"), "did you mean 'goodput'"),
}


@pytest.mark.wide
@pytest.mark.parametrize("what", UNUSABLE)
def test_what_no_pipeline_can_be_made_of_is_refused_at_once(what):
    """A draft or a draft length that cannot be had is refused where it is given, by a sentence that names it."""
    given, message = UNUSABLE[what]
    with pytest.raises(SpecframeError, match=message):
        specframe.assisted(*given)


def test_a_policy_object_decides_how_much_is_drafted():
    """A draft-length policy is taken as an object, as a pipeline takes it; an object that is none is refused by its role."""
    policy = FixedLength(3)
    asked = policy.budget
    policy.budget = lambda batch: rounds.append(len(batch)) or asked(batch)
    rounds = []
    assert torch.equal(*both(draft_length=policy, inputs=padded(PROMPTS[:2])))
    assert rounds
    with pytest.raises(SpecframeError, match=r"draft_length: expected .* got"):
        specframe.assisted(DRAFT, object())


@pytest.mark.wide
def test_ids_beyond_the_vocabulary_are_refused():
    """A prompt that holds no token's id is refused by a sentence."""
    with pytest.raises(PromptError, match="token id 97"):
        MODEL.generate(torch.tensor([[5, 97]]), max_new_tokens=2, custom_generate=specframe.assisted(DRAFT))


# ---- what drafts do not go with: transformers' own loop decodes, and a warning says why


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
    rows, mask = len(fed["input_ids"]), fed.get("attention_mask")
    if mask is None:
        mask = torch.ones(rows, fed["past_key_values"].get_seq_length() + fed["input_ids"].shape[1])
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


T5 = T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)


@pytest.mark.parametrize("what", ["beams", "an encoder-decoder model"])
def test_other_searches_are_those_of_generate(what):
    """Beams, and a model with an encoder, give what they give without the drop-in, and a sentence says so."""
    torch.manual_seed(0)
    beams = what == "beams"
    model = MODEL if beams else T5ForConditionalGeneration(T5).eval()
    asked = padded() if beams else {"input_ids": torch.tensor([[1, 2]])}
    asked |= {"max_new_tokens": 3, "num_beams": 1 + beams}
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
