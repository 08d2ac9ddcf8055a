"""Forwards of heads beside those of `speculators` 0.9.0, from fixtures that the library made (fixtures/make.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.recognised import format_of

FOLDER = Path(__file__).parent / "fixtures"
EAGLE3 = ("eagle3-llama", "eagle3-qwen3", "eagle3-fc-norm")
CPU = torch.device("cpu")


@attrs.frozen
class FixtureTarget:
    """The facts of a target that the fixtures' heads fit; they borrow nothing of it."""

    model: Any = None
    layers: int = 6
    hidden: int = 8
    vocabulary: int = 24
    context: int = 64
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32


def head_of(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the head of a fixture, in 32 bits, and what is expected of it."""
    checkpoint = Checkpoint(str(FOLDER / name), FOLDER / name)
    return format_of(checkpoint).made(checkpoint, FixtureTarget()), load_file(
        FOLDER / name / "expected" / "outputs.safetensors"
    )


def run(head: Any, ids: list[int], features: torch.Tensor) -> torch.Tensor:
    """Return the output states of one row without a cache, (T, D)."""
    return head.backbone(torch.tensor([ids]), features=features[None]).logits[0]


@pytest.mark.wide(but=["eagle3-fc-norm"])
@torch.no_grad()
@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3_gives_the_librarys_logits(name: str) -> None:
    """After true pairs, and after every number of drafted pairs behind any of them, the logits are those of the library."""
    head, expected = head_of(name)
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
