"""Trees of the drafter ``model``, the shapes they have and how they grow."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.policies.fixed_length import FixedLength
from specframe_std.trees import growth
from specframe_std.trees.children import likeliest
from specframe_std.trees.shapes import Shape
from specframe_std.trees.tree_options import Trees
from specframe_testing import fakes, harness
from specframe_testing.conformance import TreeDrafterSuite

from specframe.contracts.drafts import Budget
from specframe.contracts.round import Batch
from specframe.errors import OptionError

TARGET = fakes.fake_target()


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestStatic(TreeDrafterSuite):
    """A tree of two children for the first node and one for each of these, and so on."""

    def make(self) -> str:
        return "model,branch=2/2/1/1"


@pytest.mark.slow
class TestDynamic(TreeDrafterSuite):
    """A tree that follows the draft model's probabilities."""

    def make(self) -> str:
        return "model,tree=dynamic,nodes=12"

    def test_tokens_are_the_draft_models_own(self) -> None:
        """A node's likeliest child is what the draft model generates after the node's path."""
        draft = fakes.fake_draft(TARGET, slip_every=2)
        feeds, asked = harness.Feeds(), harness.requests(harness.random_prompts((6, 1, 9), 61), 9)
        results = self.verify(self.pipeline(TARGET, draft, align="eqspec", observers=[feeds]), asked)
        looked_at = 0
        for round in feeds.decoding:
            for row, sequence in enumerate(round.report.sequences):
                index = sequence.request.index
                before = [*asked[index].prompt_ids, *results[index].token_ids][: round.report.lengths[row]]
                found = round.report.draft
                assert found.parents_BN is not None
                parents = found.above_BN[row].tolist()
                own = harness.continuation(draft, before, found.depth)
                node = -1
                for token in own[: found.depth]:
                    children = [child for child, parent in enumerate(parents) if parent == node]
                    if not children:
                        break
                    node = children[0]
                    assert int(found.tokens_BN[row, node]) == token
                    looked_at += 1
        assert looked_at > len(feeds.decoding)


MEDUSA = [[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0], [0, 2], [3], [0, 0, 0, 0]]
"""The beginning of a published ``medusa_choices``."""


@pytest.mark.wide
def test_a_shape_by_children() -> None:
    """Children per depth give a node for every path of ranks, each after its parent."""
    shape = Shape.read("2/2")
    assert shape.ranks == ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))
    assert shape.parents == (-1, -1, 0, 0, 1, 1)
    assert (shape.nodes, shape.depth, shape.chain) == (6, 2, False)
    assert [len(level) for level in shape.levels] == [2, 4]
    assert shape.levels[0].inner == (0, 1)
    assert Shape.line(3) == Shape.read("1/1/1")


@pytest.mark.wide
def test_a_published_list_is_read(tmp_path: Any) -> None:
    """Medusa's list of rank lists is a tree, as a list and from a file, in whatever order it is."""
    (tmp_path / "choices.json").write_text(str(MEDUSA[::-1]))
    for given in (MEDUSA, str(tmp_path / "choices.json")):
        shape = Shape.read(given)
        assert (shape.nodes, shape.depth) == (10, 4)
        assert {list(map(tuple, MEDUSA))[node] for node in range(10)} == set(shape.ranks)
    level = shape.levels[1]
    assert (level.children, level.parents, level.ranks) == (3, (0, 0, 0, 1), (0, 1, 2, 0))
    assert level.inner == (0,)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tree": "round"}, "tree: expected chain, static or dynamic, got 'round'"),
        ({"branch": "3/0"}, "branch: expected the children of the nodes of each depth, as in 3/2/1, got '3/0'"),
        ({"branch": "40/40/40"}, "tree: expected at most 1024 nodes, got more with [40, 40, 40] children"),
        ({"branch": "no.json"}, "branch: no.json cannot be read: No such file or directory"),
        ({"branch": [[0], [2]]}, "tree: expected node [1] beside [2], got a tree without it"),
        ({"branch": [[0, 0]]}, "tree: expected node [0] beside [0, 0], got a tree without it"),
        ({"branch": [[]]}, "tree: expected lists of ranks, as in [[0], [0, 0], [1]], got [[]]"),
        ({"branch": []}, "tree: expected from 1 to 1024 nodes, got 0"),
        ({"nodes": 8}, "nodes: expected a static or dynamic tree with it, got a chain"),
        ({"tree": "dynamic", "branch": "2/2"}, "branch: expected a static tree with it, got a dynamic tree"),
        ({"top": 3}, "top: expected a dynamic tree with it, got a chain"),
        ({"tree": "static", "nodes": 0}, "nodes: expected a whole number from 1 to 1,024, got 0"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    """An option that cannot be is one sentence with its name, what was expected and what was given."""
    with pytest.raises(OptionError) as error:
        Trees(**options)
    assert str(error.value) == said


@pytest.mark.wide
def test_a_given_top_has_room_or_is_refused() -> None:
    """A drafter whose cache has slots for the tree's nodes alone refuses a larger ``top``; left open, it is what has room."""
    assert Trees("dynamic", nodes=16).top(Budget(5, 16)) == 4
    assert Trees("dynamic", nodes=59).top(Budget(3, 59)) == 10
    trees = Trees("dynamic", nodes=59, top=10)
    assert trees.spare(Budget(8, 59)) == 11
    assert [trees.top(Budget(8, 59), spare=spare) for spare in (11, None)] == [10, 10]
    with pytest.raises(OptionError, match=r"^top: expected at most 4 for 16 nodes and depth 5, since .*, got 8$"):
        ModelDrafter("dynamic", nodes=16, top=8).budget(5)
    assert ModelDrafter("dynamic", nodes=16, top=8).budget(3) == Budget(3, 16)


V = 13


def after(path: list[int]) -> torch.Tensor:
    """Return the logits after a path, (V,)."""
    seed = sum((place + 1) * (token + 3) * 7919 for place, token in enumerate(path))
    return torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 2


def run(level: growth.Frontier) -> torch.Tensor:
    """Return the logits after each node of a level, as a drafter that is fed all of the nodes would."""
    rows = []
    parents_BM = level.parents_BM.expand_as(level.tokens_BM)
    for row, (tokens, parents) in enumerate(zip(level.tokens_BM.tolist(), parents_BM.tolist(), strict=True)):
        found = []
        for node in range(len(tokens) - level.width, len(tokens)):
            path = []
            while node >= 0:
                path.append(tokens[node])
                node = parents[node]
            assert len(path) == level.depth
            found.append(after([row, *path[::-1]]))
        rows.append(torch.stack(found))
    return torch.stack(rows)


def choose(offset: int, logits_BFV: torch.Tensor, count: int) -> growth.Children:
    """Choose the likeliest tokens."""
    return growth.Children(*likeliest(logits_BFV, count))


def chances(grown: growth.Grown, row: int) -> list[float]:
    """Return the logarithm of the probability of each node of a row's tree."""
    tokens, found = grown.draft.tokens_BN[row].tolist(), list[float]()
    paths = list[list[int]]()
    for token, parent in zip(tokens, parents_of(grown, row), strict=True):
        before = paths[parent] if parent >= 0 else [row]
        paths.append([*before, token])
        found.append((found[parent] if parent >= 0 else 0.0) + float(after(before).log_softmax(-1)[token]))
    return found


def parents_of(grown: growth.Grown, row: int) -> list[int]:
    """Return the parents of a row's nodes."""
    assert grown.draft.parents_BN is not None
    return grown.draft.above_BN[row].tolist()


ROOTS_B1V = torch.stack([after([row]) for row in range(3)])[:, None]


OWN = [(3, 9), (2, 9), (1, 4), (3, 5), (0, 0), (3, 2)]
"""Depth and nodes of six rows' own budgets."""
UNEVEN = Budget(3, 9, np.array([depth for depth, _ in OWN]), np.array([nodes for _, nodes in OWN]))


def own_parents(grown: growth.Grown, row: int, count: int) -> list[int]:
    """Return the parents of the first nodes of a row, after looking that each lies before its children."""
    parents = parents_of(grown, row)
    assert all(parent < node for node, parent in enumerate(parents))
    return parents[:count]


def test_rows_of_a_static_tree_have_their_own_first() -> None:
    """The first nodes of each row are those of the tree that its own budget would have, with their tokens, logits and places."""
    shape, roots_B1V = Shape.branching([3, 2, 1]).cut(3, 9), torch.stack([after([row]) for row in range(6)])[:, None]

    def drawn(offset: int, logits_BFV: torch.Tensor, count: int) -> growth.Children:
        return growth.Children(*likeliest(logits_BFV, count), logits_BFV[:, :, None])

    whole = growth.static(shape, Budget(3, 9), roots_B1V, run, drawn)
    found = growth.static(shape, UNEVEN, roots_B1V, run, drawn)
    for row, (depth, nodes) in enumerate(OWN):
        kept = shape.cut(depth, nodes) if nodes else None
        count = 0 if kept is None else kept.nodes
        assert own_parents(found, row, count) == ([*kept.parents] if kept else [])
        places = [shape.ranks.index(ranks) for ranks in kept.ranks] if kept else []
        assert found.draft.tokens_BN[row, :count].tolist() == whole.draft.tokens_BN[row, places].tolist()
        assert found.draft.logits_BNV[row, :count].equal(whole.draft.logits_BNV[row, places])
        assert found.fed_BN[row, :count].tolist() == whole.fed_BN[row, places].tolist()
        assert sorted(found.draft.tokens_BN[row].tolist()) == sorted(whole.draft.tokens_BN[row].tolist())


class Nodes(FixedLength):
    """A policy by which the rows of some requests have a number of nodes."""

    offers = frozenset()
    rows = (9, 2, 5, 9, 7)

    def budget(self, batch: Batch) -> Budget:
        """Return the rows' budgets, by request."""
        return Budget(3, 9, nodes_B=np.array([self.rows[sequence.request.index] for sequence in batch.sequences]))


def test_rows_have_their_own_trees_beside_rows_without_speculation() -> None:
    """A draft model that leaves out rows without speculation gives each of the others the tree of its own budget."""
    target, feeds, shape = fakes.fake_target(), harness.Feeds(), Shape.branching([3, 2, 1]).cut(3, 9)
    asked = [
        attrs.evolve(one, speculate=one.index % 3 > 0)
        for one in harness.requests(harness.random_prompts((5, 2, 9, 3, 7), 61), 20)
    ]
    drafter = ModelDrafter(branch="3/2/1", nodes=9)
    options = {"drafter": drafter, "draft_length": Nodes(3, 9), "batch_size": 5, "observers": [feeds]}
    pipe = harness.pipeline(target, fakes.fake_draft(target), **options)
    harness.check(pipe, asked)
    whole = [
        round.report for round in feeds.decoding if round.report.lengths.min() < 2 + 20 - 4
    ]  # no row nears its end
    assert {len(report.sequences) for report in whole[:4]} == {5}
    for report in whole[:4]:
        parents_BN = report.draft.parents_BN
        for row, sequence in enumerate(report.sequences):
            index = sequence.request.index
            count = Nodes.rows[index] if index % 3 else 0
            assert report.drafted[row] == count
            assert parents_BN[row, :count].tolist() == ([*shape.cut(3, count).parents] if count else [])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("budget", "top"), [(Budget(4, 12), 4), (Budget(1, 5), 5), (Budget(3, 30), 10), (Budget(3, 3), 1)]
)
def test_a_dynamic_tree_has_the_likeliest_nodes(budget: Budget, top: int) -> None:
    """With room for all children the kept nodes are the likeliest of the whole tree, as a heap finds them."""
    grown = growth.dynamic(budget, top, ROOTS_B1V, run, choose)
    for row in range(3):
        parents = parents_of(grown, row)
        assert all(-1 <= parent < node for node, parent in enumerate(parents))
        found = chances(grown, row)
        level, everything = [([row], 0.0)], list[float]()
        for _ in range(budget.depth):
            grown_level = [
                ([*path, token], chance + float(after(path).log_softmax(-1)[token]))
                for path, chance in level
                for token in after(path).topk(top).indices.tolist()
            ]
            everything += [chance for _, chance in grown_level]
            level = sorted(grown_level, key=lambda node: -node[1])[:top]
        assert sorted(found, reverse=True) == pytest.approx(sorted(everything, reverse=True)[: len(found)], abs=1e-4)


def test_equal_scores_keep_parents() -> None:
    """Where a drafter is certain, a child is as likely as its parent, and the parent is kept all the same."""

    def certain(level: growth.Frontier) -> torch.Tensor:
        logits = torch.full((1, level.width, V), float("-inf"))
        logits[..., level.depth] = 0.0
        return logits

    first = torch.full((1, 1, V), float("-inf"))
    first[..., 0] = 0.0
    grown = growth.dynamic(Budget(4, 6), 3, first, certain, choose)
    parents = parents_of(grown, 0)
    assert all(-1 <= parent < node for node, parent in enumerate(parents))
    assert sorted(grown.draft.tokens_BN[0].tolist())[:1] == [0]


def test_a_dynamic_tree_has_parents_before_children_whatever_the_logits() -> None:
    """Nodes without a probability, as where a head's logits overflow, come after all others: no child without its parent."""

    def scored(level: growth.Frontier) -> torch.Tensor:
        logits_BFV = torch.randn(1, level.width, 20, generator=generator)
        logits_BFV[:, -1] = float("nan")
        return logits_BFV

    def children(depth: int, logits_BFV: torch.Tensor, count: int) -> growth.Children:
        return growth.Children(*likeliest(logits_BFV, count))

    generator = torch.Generator().manual_seed(0)
    grown = growth.dynamic(Budget(4, 8), 3, torch.randn(1, 1, 20, generator=generator), scored, children)
    assert (grown.draft.parents_BN < torch.arange(8)).all()
    assert grown.draft.parents_BN.max() > 0
