"""``model.generate(..., custom_generate=specframe.assisted(draft))`` gives what ``model.generate(...)`` gives."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import generating
import pytest
import torch
import transformers
from generating import NEW, PROMPTS, padded
from specframe_std.drop_in import pipeline_cache
from specframe_std.kv.slab import Slab
from specframe_std.policies.fixed_length import FixedLength
from specframe_testing import fakes, zoo
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    WatermarkingConfig,
)

import specframe
from specframe.errors import OptionError, PromptError, SpecframeError
from specframe.models import loading as models

transformers.logging.set_verbosity_error()

MODEL = zoo.build("qwen3")
DRAFT = zoo.good_draft(MODEL)


def both(model=MODEL, draft=DRAFT, inputs=None, **asked):
    """Return what ``generate`` gives without an assistant and with the drop-in."""
    return generating.both(model, draft, inputs, **asked)


def assert_same(**asked):
    """Assert that both give the same tokens, and return them."""
    plain, drafted = both(**asked)
    assert torch.equal(plain, drafted), f"\n{plain}\n{drafted}"
    return plain


def common_tokens(count):
    """Return tokens that come up in the continuations of most rows, at places of their own."""
    plain = MODEL.generate(**padded(), max_new_tokens=NEW, do_sample=False)[:, -NEW:]
    found = Counter(token for row in plain[:, 2:].tolist() for token in set(row))
    return [token for token, _ in found.most_common(count)]


@pytest.mark.wide
@pytest.mark.parametrize("name", zoo.NAMES)
def test_tokens_are_those_without_an_assistant(name):
    """Left-padded batches of eight, with the pad id as eos id inside prompts, give the same tokens in every architecture."""
    model = zoo.build(name)
    draft = zoo.good_draft(model)
    plain = assert_same(model=model, draft=draft)
    ends = sorted({row[-NEW:][place] for place, row in zip((0, 3, 4, 9), plain.tolist(), strict=False)})
    ended = assert_same(model=model, draft=draft, eos_token_id=[zoo.EOS, *ends])
    assert (ended[:, -3:] == zoo.EOS).any(), "no row ended early"


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
    if processors not in ("renormalize_logits",):
        unprocessed = MODEL.generate(**padded(), max_new_tokens=NEW, do_sample=False)
        assert plain.shape != unprocessed.shape or not torch.equal(plain, unprocessed), "the processor does nothing"


class Sums(StoppingCriteria):
    """A user's criterion, which looks at the whole prefix, padding included."""

    def __call__(self, input_ids, scores, **options):
        return (input_ids.sum(-1) % 7 == 0) & (input_ids.shape[1] > 17)


TOKENIZER = models.load_tokenizer("tiny")
"""Knows the ids of the small models, if not what they mean by them."""


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
        inputs = padded([[token % 64 for token in prompt] for prompt in PROMPTS])
        plain = model.generate(**inputs, max_new_tokens=9, do_sample=False)
        drafted = model.generate(**inputs, max_new_tokens=9, do_sample=False, custom_generate=assisted)
        assert torch.equal(plain, drafted)


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
        model.generate(**padded(PROMPTS[:2]), max_new_tokens=4, do_sample=False, custom_generate=assisted)
        gone.append(weakref.ref(model))
    del model
    gc.collect()
    assert [reference() is None for reference in gone] == [True, True, False]


def test_a_closed_drop_in_keeps_nothing():
    """After ``close`` neither models nor caches of the latest call are held, and the next call has its tokens."""
    assisted, model, slab = None, copy.deepcopy(MODEL), Opened()
    assisted = specframe.assisted(DRAFT, 3, kv=slab, keep_cache=True)
    asked = {**padded(PROMPTS[:2]), "max_new_tokens": 4, "do_sample": False}
    model.generate(**asked, custom_generate=assisted)
    held = [weakref.ref(model), weakref.ref(slab.latest)]
    del model
    slab.latest = None
    assisted.close()
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    assisted.close()
    expected = MODEL.generate(**asked)
    assert torch.equal(MODEL.generate(**asked, custom_generate=assisted), expected)


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
        ids = model.generate(**padded(PROMPTS[:3]), max_new_tokens=new, do_sample=False, custom_generate=assisted)
        assert torch.equal(ids, model.generate(**padded(PROMPTS[:3]), max_new_tokens=new, do_sample=False))
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
    asked = {**padded(PROMPTS[:2]), "max_new_tokens": 6, "do_sample": False, "custom_generate": assisted}

    class Breaks:
        def put(self, value):
            raise RuntimeError("full")

        def end(self):
            pass

    with pytest.raises(RuntimeError, match="full"):
        MODEL.generate(
            **padded(PROMPTS[:1]), max_new_tokens=6, do_sample=False, custom_generate=assisted, streamer=Breaks()
        )
    before = slab.count
    plain = MODEL.generate(**padded(PROMPTS[:2]), max_new_tokens=6, do_sample=False)
    assert torch.equal(MODEL.generate(**asked), plain)
    assert slab.count == before + 2
    assert torch.equal(MODEL.generate(**asked), plain)
    assert slab.count == before + 2


@pytest.mark.wide
def test_threads_take_turns():
    """One drop-in serves calls from several threads on models that share a draft: each gets its own tokens."""
    assisted = specframe.assisted(DRAFT, 3)
    models_used = [copy.deepcopy(MODEL).train(), MODEL]
    asked = [(models_used[turn % 2], padded(PROMPTS[turn : turn + 3])) for turn in range(6)]

    def drafted(model, inputs):
        return model.generate(**inputs, max_new_tokens=9, do_sample=False, custom_generate=assisted)

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(drafted, *zip(*asked, strict=True)))
    for (_, inputs), got in zip(asked, found, strict=True):
        assert torch.equal(got, MODEL.generate(**inputs, max_new_tokens=9, do_sample=False))


@pytest.mark.wide
def test_sampling_follows_the_seed_of_torch():
    """``torch.manual_seed`` makes sampled tokens come again; without it they differ from call to call."""
    assisted = specframe.assisted(DRAFT, 4)

    def sampled():
        asked = {"do_sample": True, "temperature": 1.5, "top_p": 0.95, "num_return_sequences": 2}
        return MODEL.generate(**padded(), **asked, max_new_tokens=NEW, custom_generate=assisted)

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
    ids = padded(PROMPTS[:2])
    plain = MODEL.generate(**ids, max_new_tokens=6, do_sample=False)
    drafted = MODEL.generate(
        **ids, max_new_tokens=6, do_sample=False, custom_generate=specframe.assisted(DRAFT, policy)
    )
    assert torch.equal(plain, drafted)
    assert rounds
    with pytest.raises(SpecframeError, match=r"draft_length: expected .* got"):
        specframe.assisted(DRAFT, object())


@pytest.mark.wide
def test_ids_beyond_the_vocabulary_are_refused():
    """A prompt that holds no token's id is refused by a sentence."""
    with pytest.raises(PromptError, match="token id 97"):
        MODEL.generate(torch.tensor([[5, 97]]), max_new_tokens=2, custom_generate=specframe.assisted(DRAFT))
