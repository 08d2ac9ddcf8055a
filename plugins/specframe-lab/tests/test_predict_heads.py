"""Predicted speeds of drafters whose forwards are counted: heads, which read their weights once a pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from specframe_heads import checkpoint
from specframe_heads.eagle.eagle_drafter import Eagle
from specframe_lab.prediction.counted_drafts import CountedDrafts
from specframe_lab.prediction.counted_products import Products
from specframe_lab.prediction.pair import read_pair
from specframe_testing import zoo
from specframe_testing.heads import block_heads, checkpoints, stepwise

from specframe.cli import cli
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, and a head of each kind for it."""
    made = tmp_path_factory.mktemp("heads")
    zoo.save_pair(made)
    target = zoo.build("qwen3")
    target.save_pretrained(made / "model")
    checkpoints.eagle3(made / "eagle3", target, drafted=70)
    stepwise.overfitted(made / "medusa", "medusa", target, [[1, 2]], tokens=4, steps=1)
    block_heads.speculators(made / "dflash", target, drafted=70)
    return made


def matrices(folder: Path) -> dict[str, int]:
    """Return the numbers of each matrix of a head, without the embedding, of which rows are looked up."""
    tensors = checkpoint.Checkpoint.open(str(folder)).load()
    return {name: one.numel() for name, one in tensors.items() if one.ndim == 2 and "embed" not in name}


def of(weights: dict[str, int], *parts: str) -> int:
    """Return the numbers of matrices with one of these parts in their names."""
    return sum(count for name, count in weights.items() if any(part in name for part in parts))


def eagle3(weights: dict[str, int], length: int) -> tuple[int, int]:
    """Return the weights that EAGLE-3 reads in a round: features are fused once, the layer and the head are run once a token."""
    return of(weights, "fc.") + length * of(weights, "layers.", "lm_head"), length


def medusa(weights: dict[str, int], length: int) -> tuple[int, int]:
    """Return those of Medusa: each of its three heads once, if the draft is so long."""
    places = min(length, 3)
    return sum(of(weights, f"{place}.0.linear", f"{place}.1.weight") for place in range(places)), places


def dflash(weights: dict[str, int], length: int) -> tuple[int, int]:
    """Return those of DFlash: all of it once, however long the draft, and keys and values of the context once more."""
    return of(weights, "fc.", "layers.", "lm_head") + of(weights, "k_proj", "v_proj"), min(length, 5)


@pytest.mark.wide(but=["medusa"])
@pytest.mark.parametrize("wanted", [eagle3, medusa, dflash])
def test_a_head_reads_its_weights_once_a_pass(folder: Path, wanted: Callable[..., Any]) -> None:
    """Weights are those of the products in a round, to the number; rows share them, and each has its operations and its cache."""
    drafts = read_pair(str(folder / "model"), f"{folder / wanted.__name__},tree=chain", "float32").drafts
    assert isinstance(drafts, CountedDrafts)
    for length in (1, 4, 7):
        one, four = (drafts.drafting(rows, length, 24) for rows in (1, 4))
        assert (sum(load.weights for load in one.loads), one.depth) == wanted(
            matrices(folder / wanted.__name__), length
        )
        assert one.nodes == one.depth
        for alone, together in zip(one.loads, four.loads, strict=True):
            assert (together.weights, together.tokens) == (alone.weights, 4 * alone.tokens)
            assert together.weight_bytes == alone.weight_bytes == 4 * alone.weights
            assert together.operations == 4 * alone.operations >= 8 * alone.weights
            assert together.bytes - together.weight_bytes == 4 * (alone.bytes - alone.weight_bytes)


def test_a_tree_is_fed_to_the_target_whole(folder: Path) -> None:
    """A row gains no more than the depth, and the target is fed all nodes."""
    drafts = CountedDrafts(recipe(folder / "model", f"{folder / 'eagle3'},tree=dynamic,nodes=9,top=3"), torch.float32)
    found = drafts.drafting(1, 3, 20)
    assert (found.depth, found.nodes) == (3, 9)


@pytest.mark.wide
def test_experts_are_read_as_tokens_take_them() -> None:
    """Each state computes with the expert that it takes; many states read nearly all of them."""
    with Products() as counted, torch.inference_mode():
        states, experts = torch.ones(2, 16, dtype=torch.bfloat16), torch.ones(4, 16, 8, dtype=torch.bfloat16)
        torch._grouped_mm(states.to("meta"), experts.to("meta"), torch.ones(4, dtype=torch.int32, device="meta"))
    (few,), (many,) = counted.loads(1), counted.loads(50)
    assert few.operations == 2 * 2 * 16 * 8
    assert few.weights == pytest.approx((1 - 0.75**2) * experts.numel())
    assert many.weights == pytest.approx(experts.numel(), rel=1e-6)
    assert many.weight_bytes == 2 * many.weights


def recipe(target: Any, drafter: Any) -> Recipe:
    """Return the options of a run."""
    return Recipe(str(target), str(drafter)).checked().named(registry())


def invoked(*arguments: str) -> Any:
    return CliRunner().invoke(cli, [*arguments])


@pytest.mark.wide
def test_a_drafter_that_looks_at_numbers_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says why."""
    monkeypatch.setattr(Eagle, "draft", lambda self, batch, *_: batch.tokens_BS.max().item())
    found = invoked(
        "predict", "--target", str(folder / "model"), "--drafter", str(folder / "eagle3"), "--context", "20"
    )
    assert found.exit_code != 0
    assert "--drafter: expected one that drafts for this target without looking at numbers, got '" in found.stderr
