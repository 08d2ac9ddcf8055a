"""Prompt lookup: what it finds, and that it never changes the output."""

from __future__ import annotations

import random
from typing import Any

import pytest
from specframe_testing import harness
from specframe_testing.conformance import DrafterSuite, TreeDrafterSuite

from specframe.contracts.drafts import Budget
from specframe.contracts.round import Batch
from specframe.plugins.registry import registry


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestPromptLookup(DrafterSuite):
    """The suite, under the name it is registered by."""

    def make(self) -> str:
        return "prompt-lookup"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestPromptLookupOfOne(DrafterSuite):
    """The suite, comparing the last token alone, which matches most often."""

    def make(self) -> str:
        return "prompt-lookup,ngram=1"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestPromptLookupTrees(TreeDrafterSuite):
    """The suite of trees."""

    def make(self) -> str:
        return "prompt-lookup,ngram=1,tree=dynamic,nodes=8"

    def perfect(self, target: Any) -> Any:
        """Return None: no draft model makes it right."""
        return None


def batch_of(rows: list[list[int]]) -> Batch:
    """Return these tokens as a batch; what lies beyond a row's length would match, if it were looked at."""
    pool = harness.open_pool(harness.requests(rows))
    batch = pool.batch(pool.admit(len(rows)))
    for row, sequence in enumerate(batch.sequences):
        length = len(sequence.request.prompt_ids)
        batch.tokens_BS[row, length:] = batch.tokens_BS[row, length - 1]
    return batch


def proposed(rows: list[list[int]], count: int = 4, ngram: int = 3) -> list[list[int]]:
    """Return what is proposed for each row."""
    batch = batch_of(rows)
    drafter = registry().make("drafter", f"prompt-lookup,ngram={ngram}")
    draft = drafter.propose(batch, Budget(count))
    meant = [count] * len(rows) if draft.counts_B is None else draft.counts_B.tolist()
    drafts = [tokens[:count] for tokens, count in zip(draft.tokens_BN.tolist(), meant, strict=True)]
    by_index = {sequence.request.index: draft for sequence, draft in zip(batch.sequences, drafts, strict=True)}
    return [by_index[index] for index in range(len(rows))]


@pytest.mark.wide(but=["row3-1-expected3"])
@pytest.mark.parametrize(
    ("row", "ngram", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 3, [4, 5, 6, 7]),
        ([1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3], 3, [4, 9, 2, 3]),  # the longest match, though another is later
        ([1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3], 2, [5, 9, 1, 2]),  # no longer than ngram: the later one
        ([3, 4, 8, 3, 5, 8, 3], 1, [5, 8, 3, 5]),
        ([8, 3, 4, 4, 3, 5, 6, 7, 8, 3], 3, [4, 4, 3, 5]),  # two tokens match at the row's start
        ([5, 6, 5, 6], 3, [5, 6, 5, 6]),  # what follows ends with the row, and is repeated
        ([9, 7, 7], 3, [7, 7, 7, 7]),
        ([1, 2, 3], 3, []),  # nothing matches
        ([6], 3, []),
        ([0, 0, 0], 5, [0, 0, 0, 0]),
    ],
)
def test_what_is_proposed(row: list[int], ngram: int, expected: list[int]) -> None:
    """The tokens after the latest of the longest matches are proposed."""
    assert proposed([row], ngram=ngram) == [expected]


def tree_of(row: list[int], depth: int, nodes: int, ngram: int = 2) -> list[tuple[int, ...]]:
    """Return the paths of the tree that is proposed for a row."""
    drafter = registry().make("drafter", f"prompt-lookup,ngram={ngram},tree=dynamic,nodes={nodes}")
    draft = drafter.propose(batch_of([row]), Budget(depth, nodes))
    whole = list[tuple[int, ...]]()
    for token, parent in zip(draft.tokens_BN[0].tolist(), draft.parents_BN[0].tolist(), strict=True):
        whole.append((*(whole[parent] if parent >= 0 else ()), token))
    return whole[: int(draft.counts_B[0])]


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(8))
def test_a_tree_merges_the_best_matches(seed: int) -> None:
    """What followed the longest and latest matches is there once, the best match first, as far as there are nodes."""
    draw = random.Random(seed)
    row, depth, nodes = [draw.randrange(3) for _ in range(draw.randrange(1, 20))], draw.choice([1, 3, 5]), 12
    matches = []
    for place in range(len(row) - 1):
        same = 0
        while same < min(2, place + 1) and row[place - same] == row[len(row) - 1 - same]:
            same += 1
        matches += [(same, place)] if same else []
    expected = list[tuple[int, ...]]()
    for _, place in sorted(matches, reverse=True)[:8]:
        tokens = [row[place + 1 + step % (len(row) - place - 1)] for step in range(depth)]
        for end in range(1, depth + 1):
            if (path := tuple(tokens[:end])) not in expected:
                expected.append(path)
    assert tree_of(row, depth, nodes) == expected[:nodes]
