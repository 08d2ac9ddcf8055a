"""The cases of trees in the conformance suites catch the faults that trees invite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from specframe_std.acceptance.greedy import Greedy
from specframe_std.alignments.eqspec import EqSpec, LeftPadded
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.kv.slab import Slab, SlabStore
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import conformance

from specframe.contracts.cache import KVStore
from specframe.contracts.drafts import Acceptance, Draft, Scores, Transfer
from specframe.contracts.round import Batch, Kept

Suite = type[Any]


def suite(base: Suite, make: Callable[[], Any]) -> Any:
    """Return a suite on a strategy."""
    return type("Planted", (base,), {"make": lambda self: make()})()


def caught(test: Callable[..., None], *given: Any) -> bool:
    """Return whether a test fails."""
    try:
        test(*given)
    except pytest.skip.Exception:
        raise AssertionError("the test was skipped") from None
    except Exception:
        return True
    return False


class SiblingSeen(ChainVerifier):
    """Feeds a tree as the chain of its nodes: each sees those before it."""

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Score without parents."""
        return super().score(batch, attrs.evolve(draft, parents_BN=None))


class PathLeftInColumns(EqSpec):
    """Drops what was rejected as if the draft were a chain."""

    class Layout(LeftPadded):
        """Keeps columns by their number."""

        def commit(self, batch: Batch, kept: Kept) -> None:
            """Forget the path."""
            super().commit(batch, attrs.evolve(kept, path_BT=None))

    def layout(self, store: KVStore, rows: int, capacity: int) -> LeftPadded:
        """Return the layout."""
        return self.Layout(store, rows)


class OneByOne(Slab):
    """Moves slots one after the other, so that a later one may be overwritten before it is read."""

    def open(self, *given: Any) -> SlabStore:
        """Return such a store."""
        store = super().open(*given)
        move = store.move

        def singly(sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
            for column in range(sources_BT.shape[1]):
                here = slice(column, column + 1)
                move(sources_BT[:, here], None if targets_BT is None else targets_BT[:, here])

        store.move = singly  # type: ignore[method-assign]
        return store


class AnyParent(Greedy):
    """Looks at tokens, not at parents."""

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Accept as if every node followed every other."""
        if draft.parents_BN is None:
            return super().accept(batch, draft, scores)
        flat = attrs.evolve(draft, parents_BN=draft.parents_BN.clamp(max=-1))
        return super().accept(batch, flat, scores)


class StaleBranch(ModelDrafter):
    """Forgets to move what was accepted in its own cache."""

    def __init__(self) -> None:
        super().__init__(branch="2/2/1")

    def _keep(self, batch: Batch, transfer: Transfer, fed_BN: torch.Tensor) -> None:
        cached = self._cached[: len(batch)]
        beyond = np.maximum(transfer.host.accepted - 1, 0)
        cached[:] = batch.lengths + beyond
        self._cache.commit(batch, Kept(beyond))


ONE_ROUND = {"kv": "slab", "schedule": "fixed"}
FAULTS: list[tuple[str, Suite, Callable[[], Any], Callable[[], Any], str, tuple[Any, ...]]] = [
    ("sibling visible", conformance.VerifierSuite, SiblingSeen, ChainVerifier, "test_scores_of_a_tree", ()),
    ("columns not moved", conformance.AlignmentSuite, PathLeftInColumns, EqSpec, "test_trees", (ONE_ROUND,)),
    ("moved one by one", conformance.KVBackendSuite, OneByOne, Slab, "test_paths_are_moved", ()),
    ("any parent", conformance.AcceptanceRuleSuite, AnyParent, Greedy, "test_tree_path", ()),
    ("stale branch", conformance.TreeDrafterSuite, StaleBranch, lambda: "model,branch=2/2/1", "test_what_stood_stays",
        ("ragged",)),
]  # fmt: skip


@pytest.mark.wide(but=["stale branch"])
@pytest.mark.parametrize(
    ("base", "wrong", "right", "test", "given"), [fault[1:] for fault in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_suites_catch_faults_of_trees(
    base: Suite, wrong: Callable[[], Any], right: Callable[[], Any], test: str, given: tuple[Any, ...]
) -> None:
    """A strategy with the fault fails the case, and the strategy without it passes."""
    assert caught(getattr(suite(base, wrong), test), *given)
    getattr(suite(base, right), test)(*given)
