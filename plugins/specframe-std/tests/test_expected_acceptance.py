"""How many tokens of a draft a rule accepts on average, computed without sampling.

All drafts of a small vocabulary are enumerated with their probabilities. A rule tests a node by a random number in (0, 1). The
number below which the node is accepted is found by bisection on the rule itself: the expectation is the code's, to 1e-4.

Tensor names carry their shape: B drafts, N nodes, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from specframe_std.acceptance import block, rejection, traversal
from specframe_std.trees.shapes import Shape
from specframe_testing import fakes, harness

from specframe.contracts.drafts import Draft, Scores

V = 3
"""The vocabulary."""


@functools.cache
def logits(model: str, pair: int, path: tuple[int, ...]) -> torch.Tensor:
    """Return the logits of one of two models after a path, (V,): the drafter's are near the target's."""
    seed = 1000 * pair + sum((token + 1) * 4**place for place, token in enumerate(path))
    own = torch.randn(V, generator=torch.Generator().manual_seed(seed))
    if model == "target":
        return own
    return own + torch.randn(V, generator=torch.Generator().manual_seed(50_000 + seed))


def families(shape: Shape) -> list[list[int]]:
    """Return the nodes that have one parent, for every parent."""
    return [[*group] for _, group in itertools.groupby(range(shape.nodes), key=lambda node: shape.parents[node])]


def drafts(shape: Shape, pair: int, distinct: bool) -> tuple[list[list[int]], list[float]]:
    """Return the tokens of all drafts that can be drawn, and the probability of each."""
    found: list[tuple[list[int], float]] = [([], 1.0)]
    for family in families(shape):
        grown = []
        for tokens, chance in found:
            weights = (
                logits("draft", pair, path_to(shape, tokens, shape.parents[family[0]])).double().softmax(-1).tolist()
            )
            for drawn in itertools.product(range(V), repeat=len(family)):
                if distinct and len(set(drawn)) < len(drawn):
                    continue
                here, left = chance, 1.0
                for token in drawn:
                    here *= weights[token] / left
                    left -= weights[token] if distinct else 0.0
                grown.append(([*tokens, *drawn], here))
        found = grown
    return [tokens for tokens, _ in found], [chance for _, chance in found]


def path_to(shape: Shape, tokens: list[int], node: int) -> tuple[int, ...]:
    """Return the tokens on the path to a node of a draft."""
    return () if node < 0 else (*path_to(shape, tokens, shape.parents[node]), tokens[node])


class Judged:
    """All drafts of a shape, with a rule's results under chosen random numbers."""

    def __init__(self, rule: Any, shape: Shape, pair: int, chain: bool = False) -> None:
        self.rule, self.shape, self.chain = rule, shape, chain
        tokens, chances = drafts(shape, pair, getattr(rule, "_siblings", "") == "distinct")
        self.chances_B, tokens_BN = torch.tensor(chances, dtype=torch.float64), torch.tensor(tokens)
        own = [
            torch.stack([logits("draft", pair, path_to(shape, row, parent)) for parent in shape.parents])
            for row in tokens
        ]
        after = [
            torch.stack([logits("target", pair, path_to(shape, row, node)) for node in range(-1, shape.nodes)])
            for row in tokens
        ]
        parents_1N = None if chain else torch.tensor([shape.parents])
        self.draft = Draft(tokens_BN, torch.stack(own), parents_1N, depth=shape.depth)
        self.scores = Scores(torch.stack(after))
        pool = harness.open_pool(harness.requests([[1]] * len(tokens), 9))
        self.batch = pool.batch(pool.admit(len(tokens)))
        rule.start(harness.open_run(fakes.fake_target(), rows=1, capacity=8))

    def stands(self, monkeypatch: pytest.MonkeyPatch, chances_BN: torch.Tensor, node: int) -> torch.Tensor:
        """Return whether a node is accepted under these numbers, (B,)."""
        for module, name in (
            (rejection, "chances"),
            (traversal, "chances"),
            (rejection, "uniform"),
            (block, "uniform"),
        ):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *_, **__: chances_BN)
        acceptance = self.rule.accept(self.batch, self.draft, self.scores)
        if acceptance.path_BT is None:
            return acceptance.accepted_B > node
        real_BT = torch.arange(self.shape.depth) < acceptance.accepted_B[:, None]
        return ((acceptance.path_BT == node) & real_BT).any(1)

    def threshold(self, monkeypatch: pytest.MonkeyPatch, node: int, standing: tuple[int, ...] = ()) -> torch.Tensor:
        """Return the number below which a node is accepted where those of ``standing`` are and no other is, (B,)."""
        chances_BN = torch.full(self.draft.tokens_BN.shape, 2.0, dtype=torch.float64)
        chances_BN[:, list(standing)] = 0.0
        low_B, high_B = torch.zeros_like(self.chances_B), torch.ones_like(self.chances_B)
        chances_BN[:, node] = 1.0 - 1e-9
        sure_B = self.stands(monkeypatch, chances_BN, node)
        for _ in range(16):
            chances_BN[:, node] = (low_B + high_B) / 2
            stands_B = self.stands(monkeypatch, chances_BN, node)
            low_B, high_B = chances_BN[:, node].where(stands_B, low_B), high_B.where(stands_B, chances_BN[:, node])
        return torch.where(sure_B, 1.0, (low_B + high_B) / 2)


def top_down(monkeypatch: pytest.MonkeyPatch, by_rule: Judged) -> float:
    """Return the expected number of accepted tokens where nodes are tested from the root down, siblings in turn."""
    total, reached = 0.0, dict[int, torch.Tensor]()
    for family in families(by_rule.shape):
        parent = by_rule.shape.parents[family[0]]
        left_B = reached[parent] if parent >= 0 else by_rule.chances_B
        above: tuple[int, ...] = ()
        while parent >= 0:
            above, parent = (*above, parent), by_rule.shape.parents[parent]
        for node in family:
            weight_B = by_rule.threshold(monkeypatch, node, above)
            reached[node] = left_B * weight_B
            left_B = left_B * (1 - weight_B)
            total += float(reached[node].sum())
    return total


def leaves_up(monkeypatch: pytest.MonkeyPatch, by_rule: Judged) -> float:
    """Return the expected number of accepted tokens where a node is tested after its children, with its path as a whole."""
    total, left_B = 0.0, by_rule.chances_B
    for node in after_children(by_rule.shape):
        weight_B = by_rule.threshold(monkeypatch, node)
        total += float((left_B * weight_B).sum()) * len(path_to(by_rule.shape, [0] * by_rule.shape.nodes, node))
        left_B = left_B * (1 - weight_B)
    return total


def after_children(shape: Shape, parent: int = -1) -> list[int]:
    """Return a tree's nodes, each after its children."""
    own = [node for node in range(shape.nodes) if shape.parents[node] == parent]
    return [one for node in own for one in (*after_children(shape, node), node)]


def test_on_a_chain_traversal_is_block_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain given as a tree, swept node by node, as much is accepted as under ``block``, and more than by rejection."""
    shape = Shape.line(3)
    for pair in range(2):
        whole = leaves_up(monkeypatch, Judged(traversal.Traversal(), shape, pair))
        jointly = leaves_up(monkeypatch, Judged(block.BlockVerification(), shape, pair, chain=True))
        singly = top_down(monkeypatch, Judged(rejection.Rejection(), shape, pair, chain=True))
        assert whole == pytest.approx(jointly, abs=1e-4)
        assert whole > singly + 0.003
