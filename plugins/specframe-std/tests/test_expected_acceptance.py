"""How many tokens of a chain a rule accepts on average, computed without sampling.

All drafts of a small vocabulary are enumerated. The number below which a rule accepts a token is found by bisection on
the rule itself, to 1e-4. B stands for drafts, K for places of a draft, V for the vocabulary.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from specframe_std.acceptance import block, rejection, traversal
from specframe_testing import fakes, harness

from specframe.contracts.drafts import Draft, Scores

V, K = 3, 3
"""The vocabulary, and the tokens of a draft."""
DRAFTS = [*itertools.product(range(V), repeat=K)]


@functools.cache
def logits(model: str, pair: int, path: tuple[int, ...]) -> torch.Tensor:
    """Return the logits of one of two models after a path, (V,): the drafter's are near the target's."""
    seed = 1000 * pair + sum((token + 1) * 4**place for place, token in enumerate(path))
    own = torch.randn(V, generator=torch.Generator().manual_seed(seed))
    if model == "target":
        return own
    return own + torch.randn(V, generator=torch.Generator().manual_seed(50_000 + seed))


def along(model: str, pair: int, places: int) -> torch.Tensor:
    """Return a model's logits at the first places of all drafts, (B, places, V)."""
    return torch.stack([torch.stack([logits(model, pair, ids[:place]) for place in range(places)]) for ids in DRAFTS])


class Judged:
    """All drafts, given as chains or as trees, with a rule's results under chosen random numbers."""

    def __init__(self, rule: Any, pair: int, tree: bool = False) -> None:
        self.rule, tokens_BK, own_BKV = rule, torch.tensor(DRAFTS), along("draft", pair, K)
        drawn_BK = own_BKV.double().softmax(-1).gather(2, tokens_BK[..., None])[..., 0]
        self.chances_B = drawn_BK.prod(1)
        """The probability of each draft."""
        self.draft = Draft(
            tokens_BK, own_BKV, torch.arange(-1, K - 1)[None] if tree else None, depth=K if tree else None
        )
        self.scores = Scores(along("target", pair, K + 1))
        pool = harness.open_pool(harness.requests([[1]] * len(DRAFTS), 9))
        self.batch = pool.batch(pool.admit(len(DRAFTS)))
        rule.start(harness.open_run(fakes.fake_target(), rows=1, capacity=8))

    def threshold(self, monkeypatch: pytest.MonkeyPatch, place: int, standing: Iterable[int] = ()) -> torch.Tensor:
        """Return the number below which a token is accepted where those at ``standing`` places are and no other is, (B,)."""
        chances_BK = torch.full(self.draft.tokens_BN.shape, 2.0, dtype=torch.float64)
        chances_BK[:, [*standing]] = 0.0
        for module, name in (
            (rejection, "chances"),
            (traversal, "chances"),
            (rejection, "uniform"),
            (block, "uniform"),
        ):
            monkeypatch.setattr(module, name, lambda *_, **__: chances_BK)

        def stands_B(numbers_B: torch.Tensor | float) -> torch.Tensor:
            chances_BK[:, place] = numbers_B
            return self.rule.accept(self.batch, self.draft, self.scores).accepted_B > place

        low_B, high_B = torch.zeros_like(self.chances_B), torch.ones_like(self.chances_B)
        sure_B = stands_B(1.0 - 1e-9)
        for _ in range(16):
            middle_B = (low_B + high_B) / 2
            below_B = stands_B(middle_B)
            low_B, high_B = middle_B.where(below_B, low_B), high_B.where(below_B, middle_B)
        return torch.where(sure_B, 1.0, (low_B + high_B) / 2)


def one_by_one(monkeypatch: pytest.MonkeyPatch, by_rule: Judged) -> float:
    """Return the expected number of accepted tokens where each is tested after the one before it stands."""
    reached = [by_rule.chances_B]
    for place in range(K):
        reached.append(reached[-1] * by_rule.threshold(monkeypatch, place, range(place)))
    return math.fsum(float(one.sum()) for one in reached[1:])


def as_a_whole(monkeypatch: pytest.MonkeyPatch, by_rule: Judged) -> float:
    """Return the expected number of accepted tokens where the last is tested first, each with all before it."""
    total, left_B = 0.0, by_rule.chances_B
    for place in reversed(range(K)):
        weight_B = by_rule.threshold(monkeypatch, place)
        total += float((left_B * weight_B).sum()) * (place + 1)
        left_B = left_B * (1 - weight_B)
    return total


def test_on_a_chain_traversal_is_block_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain given as a tree, swept node by node, as much is accepted as under ``block``, and more than by rejection."""
    for pair in range(2):
        whole = as_a_whole(monkeypatch, Judged(traversal.Traversal(), pair, tree=True))
        jointly = as_a_whole(monkeypatch, Judged(block.BlockVerification(), pair))
        singly = one_by_one(monkeypatch, Judged(rejection.Rejection(), pair))
        assert whole == pytest.approx(jointly, abs=1e-4)
        assert whole > singly + 0.003
