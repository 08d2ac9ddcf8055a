"""Medusa, Hydra, Clover and Clover-2 as drafters: read from files as published, exact in ragged batches."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from edited_heads import edited, without
from specframe_testing import harness, zoo
from specframe_testing.heads import stepwise

from specframe.errors import ModelError, SpecframeError

KINDS = stepwise.KINDS
PLAINER = ("hydra", "medusa of vLLM", "clover")
"""Kinds that have all parts of another one, hydra++, medusa and clover2: they are tried beside those in the slow tests."""
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
TREES = ("chain", "static,branch=3/2/1", "dynamic,nodes=7,top=3")


@functools.cache
def target(architecture: str) -> Any:
    return zoo.build(architecture)


KNOWN = harness.random_prompts([5, 1, 12, 3], zoo.VOCABULARY)
"""The prompts whose continuations the heads were trained on."""
UNKNOWN = harness.random_prompts([9, 2], zoo.VOCABULARY, seed=8)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that returns the folder of a head that was trained on the prompts' own continuations."""

    @functools.cache
    def made(kind: str, architecture: str) -> Path:
        return stepwise.overfitted(
            tmp_path_factory.mktemp("head"), kind, target(architecture), KNOWN, tokens=16, steps=40
        )

    return made


def decode(
    kind: str, folder: Path, architecture: str = "qwen3", tree: str = "chain", prompts: Any = None, **options: Any
) -> Any:
    """Decode ragged prompts with a head; assert that the tokens are the reference decoder's; return the report."""
    model = target(architecture)
    drafter = f"{kind.split()[0].rstrip('+')},checkpoint={folder},tree={tree}"
    asked = harness.requests(prompts or KNOWN + UNKNOWN, ([14, 9, 16, 3, 12, 10] if prompts is None else 14))
    pipe = harness.pipeline(model, drafter, **{"batch_size": 3, "draft_length": 3, **options})
    harness.check(pipe, asked)
    return pipe.report


@pytest.mark.wide
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in PLAINER else []) for kind in KINDS]
)
def test_chains_and_trees_are_exact(kind: str, folder: Any) -> None:
    """Each head drafts a chain, a static and a dynamic tree, alignments by turns; of each some tokens are accepted, some not."""
    for number, tree in enumerate(TREES, KINDS.index(kind)):
        report = decode(kind, folder(kind, "qwen3"), tree=tree, align=ALIGNMENTS[number % 4], check=True)
        assert 0.05 < report.draft_acceptance_rate < 1, tree


@pytest.mark.wide
def test_a_head_without_logits_of_its_own_needs_a_target_of_its_size(folder: Any) -> None:
    """A target that projects its states before its language modelling head cannot lend that to a head: one sentence says so."""
    wanted = "expected the target to have one of size 32, got one of size 16"
    with pytest.raises(ModelError, match=wanted):
        decode("medusa", folder("medusa", "opt"), "opt")


def test_a_token_map_holds_ids(folder: Any, tmp_path: Path) -> None:
    """Heads with a part of the vocabulary name the target's ids in token_map; read as offsets they would be refused or useless."""
    kept = torch.randperm(zoo.VOCABULARY, generator=torch.Generator().manual_seed(0))[:80].sort().values

    def cut(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {k: v[kept].contiguous() if k.startswith("lm_heads") else v for k, v in held.items()} | {
            "token_map": kept
        }

    whole = folder("medusa of vLLM", "qwen3")
    part = edited(shutil.copytree(whole, tmp_path / "part"), cut)
    rates = [decode("medusa of vLLM", place).draft_acceptance_rate for place in (whole, part)]
    assert 0.4 * rates[0] < rates[1] <= rates[0]


def shortened(part: str) -> Any:
    """Return what keeps 20 rows of the tensors with a part in their names."""
    return lambda held: {name: one[:20] if part in name else one for name, one in held.items()}


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "spoil", "config", "message"),
    [
        ("medusa", without("1.0.linear.weight"), {}, "lacks the tensor"),
        ("medusa of vLLM", shortened("lm_heads"), {}, "expected a tensor"),
        ("hydra", shortened("res_connection"), {}, "expected shape"),
        ("clover", None, {"num_attention_heads": "many"}, "expected a whole number for num_attention_heads"),
        ("clover2", None, {"vocab_size": 5000}, "is a head for another target"),
    ],
    ids=["missing head", "no token_map", "wrong shape", "no heads", "other vocabulary"],
)
def test_heads_that_do_not_fit(kind: str, spoil: Any, config: Any, message: str, folder: Any, tmp_path: Path) -> None:
    """Whatever a file lacks ends in one sentence that names the head."""
    place = edited(shutil.copytree(folder(kind, "qwen3"), tmp_path / "head"), spoil, **config)
    with pytest.raises(SpecframeError, match=message) as caught:
        decode(kind, place)
    assert "\n" not in str(caught.value)
    assert "head" in str(caught.value)


@pytest.mark.wide
def test_a_head_for_another_target(folder: Any) -> None:
    """A head for hidden states of another size is refused in one sentence."""
    wanted = "head for another target: expected a target with hidden states of size 32, got 36"
    for kind in KINDS:
        with pytest.raises(SpecframeError, match=wanted):
            decode(kind, folder(kind, "qwen3"), "llama")
