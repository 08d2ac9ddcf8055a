"""Forwards of heads beside those of `speculators` 0.9.0, from fixtures that the library made (fixtures/make.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from specframe_heads.blocks.net import sight
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.recognised import format_of
from specframe_heads.target import Target
from specframe_testing import zoo
from torch import nn

FOLDER = Path(__file__).parent / "fixtures"
EAGLE3 = ("eagle3-llama", "eagle3-qwen3", "eagle3-fc-norm")
HIDDEN, TOKENS = 8, 24


class FixtureModel(nn.Module):
    """A target with what the fixtures' heads take of one."""

    def __init__(self, expected: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(TOKENS, HIDDEN), nn.Linear(HIDDEN, TOKENS, bias=False)
        for module, name in ((self.embedding, "embed_tokens"), (self.output, "lm_head")):
            if name in expected:
                module.weight.data = expected[name].float()
        self.dtype = torch.float32
        self.config = zoo.build("qwen3", vocab_size=TOKENS, hidden_size=HIDDEN, num_hidden_layers=6).config

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.output


def fixture(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the head of a fixture, in 32 bits, and what is expected of it."""
    checkpoint = Checkpoint(name, FOLDER / name)
    expected = load_file(FOLDER / name / "expected" / "outputs.safetensors")
    return format_of(checkpoint).made(checkpoint, Target(FixtureModel(expected))), expected  # type: ignore[arg-type]


def run(head: Any, ids: list[int], features: torch.Tensor) -> torch.Tensor:
    """Return the output states of one row without a cache, (T, D)."""
    return head.backbone(torch.tensor([ids]), features=features[None]).logits[0]


@pytest.mark.wide(but=["eagle3-fc-norm"])
@torch.no_grad()
@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3_gives_the_librarys_logits(name: str) -> None:
    """After true pairs, and after every number of drafted pairs behind any of them, the logits are those of the library."""
    head, expected = fixture(name)
    features, ids, logits = head.fuse(expected["hidden"][None])[0], expected["ids"].tolist(), expected["logits"]
    states = run(head, ids, features)
    assert torch.allclose(head.logits(states[None])[0], logits[0], atol=1e-4)
    for last in range(len(ids) - 2):
        own = features[: last + 1]
        out = states[last : last + 1]
        for step in (1, 2):
            own = torch.cat([own, head.fed_back(out[None])[0]])
            out = run(head, ids[: last + 1 + step], own)[-1:]
            assert torch.allclose(head.logits(out[None])[0, 0], logits[step, last], atol=1e-4), (last, step)


class Kept:
    """The keys and values of one row, of layers that write one after the other."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer in self.held:
            keys, values = (torch.cat(pair, dim=2) for pair in zip(self.held[layer], (keys, values), strict=True))
        self.held[layer] = keys, values
        return keys, values


@pytest.mark.wide
@torch.no_grad()
@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_a_block_gives_the_librarys_logits(name: str) -> None:
    """The logits of a block after some context, and the confidences, are those of `speculators`."""
    head, expected = fixture(name)
    anchor, count, cache = int(expected["anchor"]), len(expected["logits"]), Kept()
    before_BT = torch.arange(anchor)[None]
    head.net.remember(head.fuse(expected["hidden"][None, :anchor]), before_BT, cache)
    places_BT = torch.arange(anchor, anchor + count)[None]
    ids = torch.tensor([[int(expected["ids"][anchor])] + [head.facts.mask] * (count - 1)])
    seen = sight(torch.arange(anchor + count)[None], places_BT, head.net.windows, head.facts.reach, torch.float32)
    states = head.net(head.embed(ids), places_BT, seen, cache)
    logits = head.head(states)[0]
    if head.markov is not None:
        before, state = expected["ids"][anchor : anchor + count], head.markov.initial(1)
        biases = []
        for slot in range(count):
            state, bias = head.markov.step(state, before[slot : slot + 1], states[:, slot])
            biases.append(bias[0])
        logits = logits + torch.stack(biases)
        assert torch.allclose(head.chances(states, before[None])[0], expected["confidence"].sigmoid(), atol=1e-4)
    assert torch.allclose(logits, expected["logits"], atol=1e-4)


@pytest.mark.wide
@torch.no_grad()
def test_peagle_gives_the_librarys_logits() -> None:
    """The logits after true pairs and the masks behind them are those of `speculators`."""
    head, expected = fixture("peagle")
    count, features = len(expected["logits"]), head.fuse(expected["hidden"][None])
    features = torch.cat([features, head.masked_D.expand(1, count - 1, -1)], dim=1)
    ids = torch.cat([expected["ids"], torch.full((count - 1,), head.mask)])[None]
    states = head.backbone(ids, features=features).logits
    assert torch.allclose(head.logits(states)[0, -count:], expected["logits"], atol=1e-4)
