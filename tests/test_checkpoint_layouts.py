"""Checkpoints as they are published: a folder with a configuration and weights is loaded by its path, as its class, and decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import architectures
import pytest
import torch
import transformers
from specframe_testing import harness, zoo
from transformers import CONFIG_MAPPING, PreTrainedModel

from specframe.pipeline import Pipeline

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


def decoded(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
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
    assert decoded(tmp_path, prompts) == [harness.expected(model, one)[0] for one in asked]


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
    assert decoded(tmp_path, prompts) == wanted
