"""Grown models: the function of the small model they are grown from, at the shape asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Glm4Config, LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from specframe.models import loading as models
from specframe.reference import reference_decode
from specframe.text.prompts.builtin import BUILT_IN

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import grow

CPU = torch.device("cpu")
OWN = {
    "vocab_size": 2048, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 10, "num_attention_heads": 6,
    "num_key_value_heads": 6, "head_dim": 32, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
WIDER = {**OWN, "vocab_size": 2300, "hidden_size": 240, "intermediate_size": 544, "num_hidden_layers": 11}
UNTIED = {**WIDER, "num_attention_heads": 8, "tie_word_embeddings": False}
SHAPES = {
    "qwen3, tied": Qwen3Config(**WIDER | {"num_key_value_heads": 2}),
    "qwen3, more queries per key": Qwen3Config(**UNTIED | {"num_key_value_heads": 2, "head_dim": 128}),
    "qwen2": Qwen2Config(**UNTIED | {"num_key_value_heads": 2}),
    "glm4": Glm4Config(
        **UNTIED | {"num_key_value_heads": 2, "head_dim": 128}, partial_rotary_factor=0.5, attention_bias=True
    ),
}


@pytest.fixture(scope="module")
def tiny() -> PreTrainedModel:
    return models.load_model("tiny", "target", CPU, torch.float32)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    tokenizer: Any = models.load_tokenizer("tiny")
    return [tokenizer(text).input_ids for text in BUILT_IN]


@pytest.fixture(scope="module")
def plain(tiny: PreTrainedModel, texts: list[list[int]]) -> PreTrainedModel:
    """The embedded target with the norms of its heads made constant, at its own size."""
    return grow.grow(tiny, LlamaConfig(**OWN), texts)


@torch.inference_mode()
def logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids], device=model.device)).logits[0].float().cpu()


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("qwen3, tied", "glm4") else pytest.mark.slow) for name in SHAPES]
)
def test_a_grown_model_gives_the_small_ones_tokens(
    name: str, tiny: PreTrainedModel, plain: PreTrainedModel, texts: list[list[int]]
) -> None:
    """Greedy tokens are the source's and so are the logits, up to rounding; norm-free shapes: those of the norm-free source."""
    source = tiny if name.startswith("qwen3") else plain
    grown = grow.grow(tiny, SHAPES[name], texts)
    torch.testing.assert_close(logits(grown, texts[-1])[:, :2048], logits(source, texts[-1]), rtol=1e-4, atol=1e-4)
    for prompt in texts[2:4]:
        assert reference_decode(grown, prompt, 16) == reference_decode(source, prompt, 16)


def test_places_of_heads_keep_the_sharing_of_keys() -> None:
    """Every query head finds, in its place, a copy of the key head it shared."""
    own = Qwen3Config(**OWN | {"num_key_value_heads": 2})
    for heads, keys in ((32, 8), (32, 32), (32, 2), (12, 6), (8, 4)):
        config = Qwen3Config(**OWN | {"num_attention_heads": heads, "num_key_value_heads": keys})
        queries, shown = grow.head_places(own, config)
        assert len(set(queries)) == 6
        assert [shown[query // (heads // keys)] for query in queries] == [0, 0, 0, 1, 1, 1]


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_growing_on_the_device(dtype: torch.dtype, tiny: PreTrainedModel, texts: list[list[int]]) -> None:
    """A model grown on CUDA has the source's logits, up to the precision's rounding."""
    grown = grow.grow(tiny, grow.shape("small"), texts, "cuda", dtype)
    assert {weight.device.type for weight in grown.parameters()} == {"cuda"}
    bound = 1e-3 if dtype == torch.float32 else 1.0
    assert (logits(grown, texts[-1])[:, :2048] - logits(tiny, texts[-1])).abs().max() < bound
