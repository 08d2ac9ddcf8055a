"""A target's generation config: what ``generate`` does with it, a pipeline does by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import invoke
from products import crossed
from specframe_testing import zoo
from transformers import PreTrainedModel

from specframe import Pipeline, Sampling
from specframe.errors import SpecframeWarning
from specframe.text.generation import MAKERS, NOT_DONE, WARPERS, GenerationSettings, of_checkpoint

PROMPTS = [[5, 9, 9, 31], [40], [7, 7, 7, 7, 7, 2, 3, 11, 60]]
NEW = 14
TARGET = zoo.build("llama")
DRAFT = zoo.good_draft(TARGET)


@pytest.fixture
def model() -> Any:
    """Return the target; its generation config is put back after the test."""
    kept = TARGET.generation_config.to_dict()
    yield TARGET
    TARGET.generation_config = type(TARGET.generation_config).from_dict(kept)


def generated(model: PreTrainedModel, prompt: list[int], **options: Any) -> list[int]:
    """Return what ``generate`` makes of one prompt."""
    ids = torch.tensor([prompt])
    full = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, **options)  # type: ignore[operator]
    return full[0, len(prompt) :].tolist()


def decoded(sampling: Sampling | None = None, **options: Any) -> list[list[int]]:
    """Return what a pipeline makes of the prompts."""
    pipe = Pipeline(TARGET, DRAFT, **{"draft_length": 4, "batch_size": 2, **options})
    return [result.token_ids for result in pipe.generate(PROMPTS, NEW, sampling=sampling)]


FREE = [generated(TARGET, prompt, do_sample=False) for prompt in PROMPTS]
FIRST = FREE[0][0]

GREEDY: dict[str, Any] = {
    "repetition_penalty": 1.8,
    "no_repeat_ngram_size": 2,
    "bad_words_ids": [[FIRST], FREE[2][1:3]],
    "suppress_tokens": sorted({tokens[2] for tokens in FREE}),
    "begin_suppress_tokens": [tokens[0] for tokens in FREE],
    "sequence_bias": [[[FREE[1][0]], -30.0], [[3, 4], 5.0]],
    "forced_bos_token_id": 33,
    "forced_eos_token_id": 44,
    "eos_token_id": sorted({tokens[5] for tokens in FREE}),
    "exponential_decay_length_penalty": (3, 1.7),
    "remove_invalid_values": True,
    "renormalize_logits": True,
}


@pytest.mark.wide
@pytest.mark.parametrize(("name", "align"), crossed([*GREEDY], ("ragged", "eqspec")))
def test_greedy_tokens_are_those_of_generate(model: PreTrainedModel, name: str, align: str) -> None:
    """Whatever one setting asks for, the tokens and where they end are those of ``generate``; switched off, those without it."""
    setattr(model.generation_config, name, GREEDY[name])
    expected = [generated(model, prompt, do_sample=False) for prompt in PROMPTS]
    assert decoded(align=align) == expected
    if name not in ("remove_invalid_values", "renormalize_logits"):
        assert expected != FREE
    if name != "eos_token_id":
        assert decoded(align=align, generation_config=None) == FREE


@pytest.mark.wide
@pytest.mark.parametrize(("name", "least"), [("min_length", 12), ("min_new_tokens", 9)])
def test_least_lengths_are_those_of_generate(model: PreTrainedModel, name: str, least: int) -> None:
    """No eos id ends a sequence before the length, with the prompt or without, that the generation config asks for."""
    model.generation_config.eos_token_id = sorted({tokens[1] for tokens in FREE})
    early = decoded()
    setattr(model.generation_config, name, least)
    expected = [generated(model, prompt, do_sample=False) for prompt in PROMPTS]
    assert decoded() == expected != early
    assert decoded(Sampling(min_new_tokens=0)) == early


def test_all_settings_together(model: PreTrainedModel) -> None:
    """Settings that meet are applied in the order of ``generate``."""
    model.generation_config.update(**{name: GREEDY[name] for name in GREEDY if name != "eos_token_id"})
    assert decoded() == [generated(model, prompt, do_sample=False) for prompt in PROMPTS]


@pytest.mark.wide(but=["top_k"])
@pytest.mark.parametrize("name", sorted({*WARPERS} - {"temperature"}))
def test_cutoffs_are_those_of_generate(model: PreTrainedModel, name: str) -> None:
    """A row's logits go through what ``generate`` puts them through before it draws."""
    values = {"top_k": 4, "eta_cutoff": 0.02, "epsilon_cutoff": 0.02}
    model.generation_config.update(do_sample=True, temperature=0.8, **{name: values.get(name, 0.4)})
    seen: list[torch.Tensor] = []

    def keep(model: Any, input_ids: torch.Tensor, logits_processor: Any, **_: Any) -> torch.Tensor:
        seen.append(logits_processor(input_ids, model(input_ids).logits[:, -1].clone()))
        return input_ids

    ids = torch.tensor([PROMPTS[0]])
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, custom_generate=keep)  # type: ignore[operator]
    plan = GenerationSettings(Sampling(), of_checkpoint(model.generation_config, draws=True)).plan(
        len(ids[0]), 20, [0], "cpu"
    )
    processed = model(ids).logits[:, -1].clone()
    for processor in plan.processors:
        processed = processor(ids, processed)
    assert torch.equal(processed, seen[0])
    assert bool(torch.isinf(processed).any())


@pytest.mark.wide
def test_stop_strings_and_time_of_the_checkpoint(model: PreTrainedModel) -> None:
    """Strings that end a continuation, and how long it may take, come from the generation config as well."""
    tokenizer = zoo.character_tokenizer()
    word = tokenizer.decode(FREE[2][4:6])
    model.generation_config.stop_strings = word
    pipe = Pipeline(model, DRAFT, draft_length=4, tokenizer=tokenizer)
    result = list(pipe.generate(PROMPTS, NEW))[2]
    assert (result.finish_reason, result.text) == ("stop", tokenizer.decode(FREE[2]).partition(word)[0])
    model.generation_config.update(stop_strings=None, max_time=1e-9)
    assert {len(result.token_ids) for result in pipe.generate(PROMPTS, NEW)} == {1}


@pytest.mark.wide
@pytest.mark.parametrize("name", NOT_DONE)
def test_what_is_not_done_is_told(model: PreTrainedModel, name: str) -> None:
    """A setting that ``generate`` honours and a pipeline does not is named in a warning; switched off, nothing is said."""
    value = {"watermarking_config": "some", "token_healing": True}.get(name, 3)
    setattr(model.generation_config, name, value)
    with pytest.warns(SpecframeWarning, match=f"the generation config asks for {name} {value}: not honoured here"):
        decoded()
    assert decoded(generation_config=None) == FREE


@pytest.mark.wide
def test_every_setting_has_a_place_in_the_order() -> None:
    """The settings that the order of processors is made of are attributes of a generation config, but for one of our own."""
    assert [name for name in MAKERS if not hasattr(TARGET.generation_config, name)] == [
        "presence_penalty",
        "frequency_penalty",
    ]


@pytest.mark.wide
def test_verification_leaves_generation_configs_aside(tmp_path: Path) -> None:
    """``specframe verify`` compares greedy decoding with greedy decoding, whatever the checkpoint's generation config asks for."""
    pair = zoo.save_pair(tmp_path)
    path = tmp_path / "target" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": True, "repetition_penalty": 2.0}))
    grid = ["--align", "ragged,eqspec", "--batch-size", "2", "--draft-length", "3", "--max-new-tokens", "8"]
    result = invoke("verify", *pair, *grid, "abc", "x = 1")
    assert result.exit_code == 0, result.output
    assert "2 of 2 combinations decode as the reference decoder does" in result.output
