"""``specframe.accelerate``: a model whose ``generate`` decodes with drafts, for callers who know nothing of it."""

from __future__ import annotations

import copy
import io
import pickle
import types
import warnings

import pytest
import torch
import transformers
from generating import NEW, PROMPTS, TOKENIZER, Notes, greedy, padded
from specframe_std.generated_stop_strings import GeneratedStopStrings
from specframe_testing import zoo
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

import specframe
from specframe.errors import SpecframeError, SpecframeWarning
from specframe.models import loading as models

transformers.logging.set_verbosity_error()

ASKED = {"max_new_tokens": NEW, "do_sample": False}


def made():
    """Return a model of its own, and a draft for it."""
    model = zoo.build("qwen3")
    return model, zoo.good_draft(model)


def drafted(model, call, draft=None, **options):
    """Return whether a call drafts; assert that it gives twice what it gives before and after."""
    before = call(model)
    with specframe.accelerate(model, draft or zoo.good_draft(model), **{"draft_length": 4, **options}) as handle:
        assert torch.equal(call(model), before)
        assert torch.equal(call(model), before)
        report = handle.report
    assert torch.equal(call(model), before)
    assert "generate" not in vars(model)
    return report is not None and report.num_draft_tokens > 0


class Inner(LogitsProcessor):
    """A processor that generates with the model it is called for."""

    def __init__(self, model):
        self.model = model

    def __call__(self, input_ids, scores):
        inner = self.model.generate(input_ids[:, -3:], max_new_tokens=1, do_sample=False)
        return scores.scatter(1, inner[:, -1:], -10.0)


def inside_a_call(model):
    """Generate with a processor that generates, too."""
    return greedy(4, PROMPTS[:2], model, logits_processor=LogitsProcessorList([Inner(model)]))


def with_a_mode(mode):
    """Return a call inside of a mode of torch."""

    def call(model):
        with mode():
            return model.generate(**padded(), **ASKED)

    return call


def own_config(model):
    """Generate with settings that the model has."""
    own = {"eos_token_id": [5, 7], "repetition_penalty": 1.3}
    model.generation_config = GenerationConfig(max_new_tokens=9, do_sample=False, pad_token_id=0, **own)
    return model.generate(**padded())


def given_config(model):
    """Generate with settings given as the second argument, and the ids as the first."""
    return model.generate(padded()["input_ids"], GenerationConfig(max_new_tokens=9, do_sample=False, pad_token_id=0))


CALLERS = {
    "no_grad": with_a_mode(torch.no_grad),
    "inference_mode": with_a_mode(torch.inference_mode),
    "the model's generation config": own_config,
    "a generation config": given_config,
    "a call within a call": inside_a_call,
    "prompt lookup": lambda model: greedy(prompts=PROMPTS[1:2], model=model, prompt_lookup_num_tokens=3),
    "an assistant": lambda model: greedy(prompts=PROMPTS[1:2], model=model, assistant_model=zoo.good_draft(model)),
    "stop strings": lambda model: greedy(model=model, stop_strings=["e", "t"], tokenizer=TOKENIZER),
    "stop strings after a config": lambda model: model.generate(
        padded()["input_ids"],
        GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0),
        stop_strings=["e"],
        tokenizer=TOKENIZER,
    ),
    "stop strings in a config": lambda model: model.generate(
        **padded(),
        generation_config=GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0, stop_strings=["e"]),
        tokenizer=TOKENIZER,
    ),
}


@pytest.mark.wide(but=["a call within a call", "stop strings after a config", "stop strings in a config"])
@pytest.mark.parametrize("caller", CALLERS)
def test_callers_get_the_tokens_of_generate(caller):
    """Each way to call ``generate`` gives the same tokens, drafts, and leaves the model as it was."""
    assert drafted(made()[0], CALLERS[caller])


def test_what_drafts_do_not_go_with_is_decoded_plainly():
    """Such a call gives the tokens of ``generate``; the warning names the reason, and the line of the call."""
    (model, draft), call = made(), with_a_mode(lambda: torch.autocast("cpu", torch.bfloat16))
    plain = call(model)
    with specframe.accelerate(model, draft) as handle, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        greedy(model=model)
        assert torch.equal(call(model), plain)
    assert handle.report is None
    (warning,) = [one for one in told if issubclass(one.category, SpecframeWarning)]
    assert "torch.autocast in another precision" in str(warning.message)
    assert warning.filename == __file__


def test_weights_that_are_split_over_processes(monkeypatch):
    """Where each forward takes all processes, transformers' loop decodes, and goes on until the last process has ended."""
    model, draft = made()
    plain = greedy(model=model)
    model.gathered_elsewhere = torch.nn.Parameter(torch.empty(0))
    model.gathered_elsewhere.ds_id = 3
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        asked = []
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda *given, **_: asked.append(given))
        with specframe.accelerate(model, draft), pytest.warns(SpecframeWarning, match="weights that are split over"):
            assert torch.equal(greedy(model=model), plain)
        assert asked, "the other processes were not asked"
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_a_model_in_training():
    """A model in training mode, with checkpoints of activations, decodes as in evaluation, fills its cache, and stays as it is."""
    model, draft = made()
    expected = greedy(model=model)
    model.train()
    model.model.embed_tokens.eval()
    model.gradient_checkpointing_enable()
    with specframe.accelerate(model, draft) as handle:
        told = model.generate(**padded(), **ASKED, return_dict_in_generate=True, output_logits=True)
        assert handle.report.num_accepted_draft_tokens
    assert torch.equal(told.sequences, expected)
    assert told.past_key_values.get_seq_length() == expected.shape[1] - 1
    assert model.training
    assert model.model.layers[0].gradient_checkpointing
    assert not model.model.embed_tokens.training
    model(input_ids=expected, labels=expected).loss.backward()


@pytest.mark.wide
def test_log_probabilities_are_those_of_a_forward():
    """The log-probability of each sampled token is the one that a forward of the whole sequence gives, up to rounding."""
    model, draft = made()
    torch.manual_seed(0)
    with specframe.accelerate(model, draft):
        asked = {"do_sample": True, "eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
        told = greedy(model=model, **asked)
    drawn_BN1 = told.sequences[:, -NEW:, None]
    mask_BS = torch.cat([padded()["attention_mask"], torch.ones(len(PROMPTS), NEW, dtype=torch.long)], dim=1)
    places_BS = (mask_BS.cumsum(-1) - 1).clamp(min=0)
    logits_BSV = model(told.sequences, attention_mask=mask_BS, position_ids=places_BS).logits
    forward_BN1 = logits_BSV[:, -NEW - 1 : -1].log_softmax(-1).gather(-1, drawn_BN1)
    drawn = torch.stack(told.logits, dim=1).log_softmax(-1).gather(-1, drawn_BN1)
    torch.testing.assert_close(drawn, forward_BN1, rtol=0, atol=1e-5)


@pytest.mark.wide
def test_the_draft_does_not_choose_samples():
    """Under ``gumbel`` sampled rows, several of each prompt, are those that the same seed gives without a draft."""
    model, draft = made()
    rows = []
    for one in (draft, None):
        with specframe.accelerate(model, one, accept="gumbel"):
            torch.manual_seed(3)
            rows.append(model.generate(**padded(), max_new_tokens=8, do_sample=True, num_return_sequences=3))
    assert torch.equal(*rows)


@pytest.mark.wide
def test_weights_written_between_calls_are_followed():
    """Weights written in place between calls, through ``data`` as well, count in the next one; prompts are kept between."""
    model, draft = made()
    with specframe.accelerate(model, draft, kv="paged,block=2,share=on") as handle:
        for step in range(3):
            for weight in model.parameters():
                weight.data.mul_(1 + 0.1 * step)
            assert torch.equal(greedy(model=model), type(model).generate(model, **padded(), **ASKED)), step
            greedy(model=model)
            assert handle.report.prefix_hit_tokens, "no prompt was kept"


def test_a_forward_with_autocast_inside():
    """A model whose forward a trainer computes in mixed precision drafts; each token is a likeliest one up to that precision."""
    model, draft = made()
    cast = torch.autocast("cpu", torch.bfloat16)(model.forward.__func__)
    model.forward = types.MethodType(cast, model)
    ids = torch.tensor([PROMPTS[4]])
    for kv in (None, "paged,block=2"):
        with specframe.accelerate(model, draft, kv=kv) as handle:
            drawn = model.generate(ids, **ASKED, eos_token_id=None)
            assert handle.report.num_draft_tokens
        logits_NV = model(drawn).logits[0, ids.shape[1] - 1 : -1].float()
        chosen_N = logits_NV.gather(1, drawn[0, ids.shape[1] :, None])[:, 0]
        assert (logits_NV.amax(1) - chosen_N).max() < 0.1 * logits_NV.std()


@pytest.mark.wide
def test_a_pipeline_of_transformers_and_a_streamer():
    """A text-generation ``pipeline()`` writes the same texts in batches, and a streamer of ``generate`` gets the same tokens."""
    names, tokenizer = ("tiny", "tiny-draft"), models.load_tokenizer("tiny")
    model, draft = (models.load_model(name, name, torch.device("cpu"), torch.float32) for name in names)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    write = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts, asked = ["import os\n", "def f(x):\n    return"], {"max_new_tokens": 9, "do_sample": False, "batch_size": 2}

    def call():
        notes = Notes()
        model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=6, do_sample=False, streamer=notes)
        return write(texts, **asked), [value.tolist() for value in notes.puts], notes.ended

    plain = call()
    with specframe.accelerate(model, draft) as handle:
        assert call() == plain
        assert handle.report.num_draft_tokens


class Shorter(type(zoo.build("qwen3"))):
    """A model with a ``generate`` of its own, and inputs that it prepares itself."""

    def generate(self, *given, **asked):
        return super().generate(*given, **{**asked, "max_new_tokens": 5})

    def prepare_inputs_for_generation(self, input_ids, **given):
        return super().prepare_inputs_for_generation(input_ids, **given)


@pytest.mark.wide
def test_a_subclass():
    """A ``generate`` that a model's class overrides is the one that is called."""
    model, _ = made()
    model.__class__ = Shorter
    assert drafted(model, lambda model: model.generate(padded()["input_ids"], **ASKED))


@pytest.mark.wide
def test_a_compiled_model():
    """A model that ``torch.compile`` has wrapped drafts, and gets its own ``generate`` back."""
    model, draft = made()
    plain = greedy(model=model)
    compiled = torch.compile(model, backend="eager")
    with specframe.accelerate(compiled, draft) as handle:
        assert torch.equal(greedy(model=compiled), plain)
        assert handle.report.num_accepted_draft_tokens
    assert "generate" not in vars(model)


@pytest.mark.wide
def test_copies_and_pickles():
    """A copy drafts for its own weights, a pickle is the model as it was, and after ``remove`` the copy decodes plainly."""
    model, draft = made()
    plain = greedy(model=model)
    with specframe.accelerate(model, draft) as handle:
        other = copy.deepcopy(model)
        for weight in other.parameters():
            weight.data.mul_(1.2)
        expected = type(other).generate(other, **padded(), **ASKED)
        assert torch.equal(greedy(model=other), expected)
        assert handle.report is not None
        assert torch.equal(greedy(model=model), plain)
        assert pickle.loads(pickle.dumps(model)).generate.__func__ is type(model).generate
        torch.save(model, io.BytesIO())
    assert handle.report is not None
    handle._drafted.report = None
    assert torch.equal(greedy(model=other), expected)
    assert handle.report is None


def test_two_handles():
    """The latest handle drafts; each is removed by itself, in any order, and twice does no harm."""
    model, draft = made()
    plain = greedy(model=model)
    first, second = specframe.accelerate(model, draft), specframe.accelerate(model, "prompt-lookup")
    assert torch.equal(greedy(model=model), plain)
    assert (first.report, second.report is None) == (None, False)
    first.remove()
    assert torch.equal(greedy(model=model), plain)
    second.remove()
    second.remove()
    assert torch.equal(greedy(model=model), plain)
    assert vars(model).get("generate") is None or model.generate.__func__.drafted is None


def test_a_decoding_loop_of_the_callers():
    """A call with a ``custom_generate`` of its own is left alone."""
    model, draft = made()
    with specframe.accelerate(model, draft) as handle:
        found = model.generate(**padded(), **ASKED, custom_generate=lambda model, input_ids, **_: input_ids)
    assert torch.equal(found, padded()["input_ids"])
    assert handle.report is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"accept": "typical"},
            "expected strategies that keep the model's distribution, got the acceptance rule 'typical'",
        ),
        ({"align": "masking"}, "the alignment 'masking'"),
        ({"kv": "slab,dtype=int8"}, "the KV backend 'slab,dtype=int8'"),
        ({"foo": 3}, "unknown option 'foo'"),
        ({"seed": 3}, "seed: expected none"),
        ({"layers": "x"}, "unknown value of layers 'x'"),
        ({"model": torch.nn.Linear(2, 2)}, "a loaded model with a method generate, got Linear"),
    ],
)
def test_what_is_refused_at_once(given, told):
    """Strategies that change the distribution, unknown options and what is no model are refused by one sentence."""
    model, draft = made()
    with pytest.raises(SpecframeError, match=told):
        specframe.accelerate(**{"model": model, "drafter": draft, **given})
    assert "generate" not in vars(model)


def test_stop_strings_in_the_generated_text():
    """A row ends where its generated text has the stop string, not where the prompt's end has a part of it; others go on."""
    model, _ = made()
    inputs, plain = padded(), greedy(model=model)
    width = inputs["input_ids"].shape[1]
    texts = [TOKENIZER.decode(row[width:]) for row in plain]
    string = next(text[3:5] for text in texts if len(text) > 8)
    criteria = StoppingCriteriaList([GeneratedStopStrings(TOKENIZER, string, width)])

    def call(model):
        return model.generate(**inputs, **ASKED, stopping_criteria=criteria)

    assert drafted(model, call)
    for row, text in zip(call(model), texts, strict=True):
        kept = [int(token) for token in row[width:]]
        place = next((n for n in range(1, NEW + 1) if string in TOKENIZER.decode(kept[:n])), None)
        assert (string in text) == (place is not None)
        assert place is None or set(kept[place:]) <= {zoo.EOS}
    across = TOKENIZER.decode(inputs["input_ids"][1])[-1] + texts[1][0]
    criteria[0] = GeneratedStopStrings(TOKENIZER, [across], width)
    assert across in texts[1] or not criteria[0](plain[1:2, : width + 1], None)
    with pytest.raises(SpecframeError, match="strings: expected a text or several"):
        GeneratedStopStrings(TOKENIZER, ["", "a"], width)
