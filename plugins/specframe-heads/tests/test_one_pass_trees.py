"""Trees grown from the logits of one pass: their nodes are the likeliest there are, by a search of all paths, and none is fed."""

from __future__ import annotations

import heapq
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specframe_heads.blocks.block_drafter import DSpark, corrected
from specframe_heads.blocks.markov import KINDS, MarkovHead
from specframe_heads.head import HeadDrafter
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.place_by_place import at_once, drawn
from specframe_std.acceptance.greedy import Greedy
from specframe_std.trees.tree_options import Trees

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch
from specframe.engine.pool import Pool
from specframe.errors import OptionError

ROWS, PLACES, VOCABULARY, HIDDEN = 3, 4, 7, 5
PROMPTS = ([1, 2, 3], [4], [5, 6])
Node = tuple[int, ...]
"""The tokens of the path to a node, its own last."""


def batch_of() -> Batch:
    """Return three rows."""
    pool = Pool([Request(index, ids, 20) for index, ids in enumerate(PROMPTS)], ROWS, 40, 40)
    return pool.batch(pool.admit(ROWS))


def drafter_of(trees: Trees) -> HeadDrafter:
    """Return a drafter without a checkpoint."""
    made: Any = object.__new__(HeadDrafter)
    made.trees, made.rule = trees, Greedy()
    made.head = SimpleNamespace(vocabulary=DraftVocabulary(None, VOCABULARY))
    return made


def paths(draft: Draft, row: int) -> list[Node]:
    """Return the path of every node of a row."""
    assert draft.parents_BN is not None
    found: list[Node] = []
    parents = draft.parents_BN.expand(ROWS, -1)[row].tolist()
    for token, parent in zip(draft.tokens_BN[row].tolist(), parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def likeliest(nodes: int, depth: int, logits: Any, row: int) -> set[Node]:
    """Return the nodes of the greatest products of probabilities, best first (DDTree); ``logits``: (place, path, row) -> (V,)."""
    order = itertools.count()
    heap: list[tuple[float, int, Node]] = [(0.0, next(order), ())]
    found: list[Node] = []
    while len(found) <= nodes:
        score, _, path = heapq.heappop(heap)
        found.append(path)
        if len(path) < depth:
            for token, own in enumerate(logits(len(path), path, row).log_softmax(-1).tolist()):
                heapq.heappush(heap, (score - own, next(order), (*path, token)))
    return {path for path in found if path}


@pytest.mark.wide(but=["4-4"])
@pytest.mark.parametrize("nodes", [1, 4, 9, 25])
@pytest.mark.parametrize("depth", [1, 3, PLACES])
def test_nodes_are_the_likeliest(nodes: int, depth: int) -> None:
    """A dynamic tree of one pass has the nodes that a search of all paths finds, in every row, each after its parent."""
    logits_BKV = torch.randn(ROWS, PLACES, VOCABULARY, generator=torch.Generator().manual_seed(nodes)) * 2
    nodes = min(nodes, VOCABULARY) if depth == 1 else nodes
    trees = Trees("dynamic", nodes=nodes, wide=True)
    draft = drawn(drafter_of(trees), batch_of(), Budget(depth, max(nodes, depth)), *at_once(logits_BKV))
    for row in range(ROWS):
        wanted = likeliest(max(nodes, depth), depth, lambda place, _, row: logits_BKV[row, place], row)
        assert set(paths(draft, row)) == wanted


@pytest.mark.wide(but=["rnn"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_path_has_its_own_correction(kind: str) -> None:
    """The Markov head corrects a node by the tokens of its own path, whichever nodes are beside it, in trees and in chains."""
    torch.manual_seed(0)
    markov = MarkovHead(VOCABULARY, VOCABULARY, 4, HIDDEN, kind).requires_grad_(False)
    for weights in markov.parameters():
        weights.mul_(3)  # so that paths of unlike tokens have unlike successors
    logits_BKV, states_BKH = torch.randn(ROWS, PLACES, VOCABULARY), torch.randn(ROWS, PLACES, HIDDEN)

    def alone(place: int, path: Node, row: int) -> torch.Tensor:
        state, before = markov.initial(1), PROMPTS[row][-1]
        for slot, token in enumerate((before, *path)):
            state, bias = markov.step(state, torch.tensor([token]), states_BKH[row : row + 1, slot])
        return logits_BKV[row, place] + bias[0]

    step = corrected(markov, logits_BKV, states_BKH)
    draft = drawn(drafter_of(Trees("dynamic", nodes=30, wide=True)), batch_of(), Budget(PLACES, 30), *step)
    chain = drawn(drafter_of(Trees()), batch_of(), Budget(PLACES), *step)
    for row in range(ROWS):
        assert set(paths(draft, row)) == likeliest(30, PLACES, alone, row)
        assert sum(len(path) == PLACES for path in paths(draft, row)) > 1
        path: Node = ()
        for place in range(PLACES):
            path = (*path, int(alone(place, path, row).argmax()))
        assert tuple(chain.tokens_BN[row].tolist()) == path


@pytest.mark.wide
@pytest.mark.parametrize(("option", "value"), [("confidence", 0.3), ("token_cost", 0.02)])
def test_a_draft_that_ends_early_is_a_chain(option: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options that end drafts early are refused beside a tree, in one sentence."""
    monkeypatch.setattr(DSpark, "_opened", lambda self, name: (None, None))
    with pytest.raises(OptionError, match=f"^{option}: expected a chain with it, got a static tree$"):
        DSpark("any", **{option: value}, branch="2/1")
