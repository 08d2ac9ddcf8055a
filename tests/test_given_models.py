"""Models as they are handed over: inside a wrapper, with a short context, or as folders of published layouts."""

from __future__ import annotations

import types
import warnings
from pathlib import Path
from typing import Any

import architectures
import pytest
import torch
import transformers
from specframe_testing import fakes, harness, zoo
from transformers import CONFIG_MAPPING, PreTrainedModel

from specframe.errors import ModelError, SpecframeWarning
from specframe.pipeline import Pipeline

TARGET = zoo.build("llama")
DRAFT = zoo.good_draft(TARGET)
PROMPTS = harness.random_prompts([3, 6], zoo.VOCABULARY)


class Wrapper(torch.nn.Module):
    """What PEFT puts around a model, as far as a pipeline looks at it."""

    def __init__(self, model: torch.nn.Module, kind: str, before: bool) -> None:
        super().__init__()
        self.base_model = model
        self.peft_config = {"default": types.SimpleNamespace(is_prompt_learning=before, peft_type=kind)}

    @property
    def active_peft_config(self) -> Any:
        return self.peft_config["default"]

    def get_base_model(self) -> torch.nn.Module:
        return self.base_model


WRAPPED = {
    "lora": lambda model: Wrapper(model, "LORA", False),
    "compiled lora": lambda model: torch.compile(Wrapper(model, "LORA", False)),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_model_is_decoded_as_the_model_inside(name: str) -> None:
    """What torch.compile returns and a PEFT model with adapters in its layers give the tokens of the model inside."""
    wrap = WRAPPED[name]
    expected = [result.token_ids for result in Pipeline(TARGET, DRAFT, draft_length=3).generate(PROMPTS, 8)]
    pipe = Pipeline(wrap(TARGET), wrap(DRAFT), draft_length=3)
    assert [result.token_ids for result in pipe.generate(PROMPTS, 8)] == expected
    assert (pipe.target_model, pipe.draft_model) == (TARGET, DRAFT)


@pytest.mark.wide(but=["target"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_learned_prefix_is_refused(role: str) -> None:
    """A PEFT model whose prefix or prompt is no part of the tokens is refused with its type."""
    learned = Wrapper(TARGET, "PREFIX_TUNING", True)
    with pytest.raises(ModelError, match=rf"the {role} is a Wrapper of type PREFIX_TUNING.*expected adapters"):
        Pipeline(*((learned, DRAFT) if role == "target" else (TARGET, learned)))


@pytest.mark.wide
def test_a_draft_whose_context_is_too_short_is_told() -> None:
    """Where sequences pass the draft model's context one warning names both numbers, and the tokens are the target's own."""
    target = fakes.fake_target(context=256)
    draft = fakes.FakeModel(fakes.FakeConfig(61, 32, eos_token_id=0)).eval()
    pipe = harness.pipeline(target, draft, draft_length=3)
    asked = harness.requests([[5, 6], [7, 8, 9]], 60)
    with pytest.warns(SpecframeWarning, match="the draft model's context of 32 tokens is shorter than .* up to 63"):
        harness.check(pipe, asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harness.check(pipe, harness.requests([[5, 6], [7, 8, 9]], 20))


PUBLISHED = (
    "bailing_hybrid", "bamba", "bloom", "deepseek_v32", "falcon_h1", "falcon_mamba", "glm_moe_dsa", "gpt_neo", "granitemoehybrid",
    "inkling2_text", "inkling_text", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "llama4_text", "mamba", "mamba2", "minimax", "mpt",
    "nemotron_h", "olmo_hybrid", "qwen3_next", "zamba", "zamba2", "zaya",
)  # fmt: skip
"""Model types that are published: their states, indexers, chunks or biases are none of a usual model's."""

IMAGES = {
    "llama4": "Llama4ForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
}
"""Model types that are published with a part for images, and the class of the whole."""


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save a model with a tokenizer, as they are published."""
    model.save_pretrained(folder)
    zoo.character_tokenizer().save_pretrained(folder)


def decoded_folder(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Return what a pipeline decodes that was given the folder."""
    pipe = Pipeline(str(folder), drafter="prompt-lookup", batch_size=2, generation_config="none")
    return [one.token_ids for one in pipe.generate(prompts, 6)]


@pytest.mark.wide
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("nemotron_h", "deepseek_v32"))) for name in PUBLISHED],
)
def test_a_published_language_model(name: str, tmp_path: Path) -> None:
    """What is loaded has the class of the model type, and decodes as the model that was saved."""
    if name not in architectures.NAMES or name in architectures.OTHERWISE:
        pytest.skip(f"transformers {transformers.__version__} has no {name}, or another one")
    model = architectures.build(name)
    save(model, tmp_path)
    prompts = harness.random_prompts([5, 9], zoo.VOCABULARY)
    asked = harness.requests(prompts, 6, {zoo.EOS})
    assert decoded_folder(tmp_path, prompts) == [harness.expected(model, one)[0] for one in asked]


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one != "qwen3_5")) for one in IMAGES])
def test_a_checkpoint_of_a_model_for_images_and_text(name: str, tmp_path: Path) -> None:
    """Of a published layout, whose model reads images too, the language model is loaded, and decodes as the whole does."""
    config = CONFIG_MAPPING[name]
    made = config(**architectures.shrunk(config(), architectures.OWN[name]))
    with zoo.quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole: Any = getattr(transformers, IMAGES[name])(made).eval()
        for weight in whole.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=zoo.WIDTH)
    save(whole, tmp_path)
    prompts = harness.random_prompts([5, 9], zoo.VOCABULARY)
    wanted = [
        whole.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False)[0, len(ids) :].tolist()
        for ids in prompts
    ]
    assert decoded_folder(tmp_path, prompts) == wanted
