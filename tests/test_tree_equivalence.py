"""Every tree of a draft model gives the target's own tokens: greedy, and sampled with shared noise.

Each architecture is tested under one alignment, with one tree, batch size and rule, by turns.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

from specframe.text.sampling import Sampling

ARCHITECTURES = ("llama", "qwen3", "mistral", "gemma3", "gpt2", "opt")
"""Shared heads, tied embeddings, sliding windows in all layers and in some, learned positions, projected embeddings."""
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
TREES: dict[str, dict[str, Any]] = {
    "chain": {},
    "static": {"branch": "3/2/1"},
    "dynamic": {"tree": "dynamic", "nodes": 8},
}
BATCH_SIZES = (1, 3, 8)
RULES = ("greedy", "gumbel")
PROMPTS, NEW = zoo.eos_prompts((1, 40, 2, 17, 5, 28, 9)), 9


class Cell(NamedTuple):
    architecture: str
    align: str
    tree: str
    batch_size: int
    rule: str

    def __str__(self) -> str:
        return "-".join(map(str, self))


def few() -> list[Cell]:
    """Return one cell per architecture, with the other options in turn."""
    trees = [*TREES]
    return [
        Cell(name, ALIGNMENTS[a % 4], trees[1:][a % 2], BATCH_SIZES[a % 3], RULES[(a // 2) % 2])
        for a, name in enumerate(ARCHITECTURES)
    ]


@functools.cache
def models(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target and a draft model that often agrees with it."""
    target = zoo.build(name)
    return target, zoo.good_draft(target, noise=0.02)


@functools.cache
def sampled(name: str) -> list[list[int]]:
    """Return what plain sampling gives the prompts."""
    pipe = harness.pipeline(models(name)[0], None, accept="gumbel", batch_size=4, seed=3)
    return [one.token_ids for one in pipe.generate(PROMPTS, NEW, sampling=Sampling(temperature=0.9))]


def check(cell: Cell) -> float:
    """Decode with a cell's strategies, compare every token, and return the mean acceptance length."""
    target, draft = models(cell.architecture)
    pipe = harness.pipeline(
        target,
        draft,
        drafter=ModelDrafter(**TREES[cell.tree]),
        align=cell.align,
        accept=cell.rule,
        batch_size=cell.batch_size,
        draft_length=4 if cell.tree == "chain" else "auto",
        seed=3,
    )
    if cell.rule == "greedy":
        harness.check(pipe, harness.requests(PROMPTS, NEW, {zoo.EOS, 3}))
    else:
        found = [one.token_ids for one in pipe.generate(PROMPTS, NEW, sampling=Sampling(temperature=0.9))]
        assert found == sampled(cell.architecture)
    return pipe.report.mean_acceptance_length


def some_stand(cell: Cell, length: float) -> bool:
    """Return whether draft tokens were accepted; under `rollback`, which keeps the fewest of all rows, it may be that none did."""
    return length > 1.0 or (cell.align == "rollback" and cell.batch_size > 1)


@pytest.mark.wide
@pytest.mark.parametrize("cell", few(), ids=str)
def test_each_architecture(cell: Cell) -> None:
    """Each architecture decodes right with trees, each alignment, tree and batch size among them."""
    assert some_stand(cell, check(cell))
