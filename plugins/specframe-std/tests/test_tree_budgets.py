"""Draft-length policies over trees: how many levels each row drafts, and with how many nodes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from policy_worlds import Rows, round_report
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.policies.acceptance_rates import AcceptanceRates
from specframe_std.policies.explicit import Explicit
from specframe_std.policies.goodput import DepthPlans, Goodput
from specframe_std.policies.levels import Levels
from specframe_std.policies.round_seconds import Curve
from specframe_testing import fakes, harness

from specframe.contracts.drafts import Budget
from specframe.pipeline import Pipeline

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
ASKED = harness.requests(harness.random_prompts((3, 9, 5, 7), TARGET.config.vocab_size), 24)
TREES = ("model,tree=dynamic,nodes=12", "model,tree=static,nodes=12", "model,branch=3/2/1")


def pipeline(drafter: str, policy: object, **options: object) -> Pipeline:
    """Return a pipeline of the fakes with a draft model that agrees with its target in two contexts of three."""
    pipe = harness.pipeline(TARGET, None, drafter=drafter, draft_length=policy, batch_size=4, **options)
    pipe.parts.draft = DRAFT
    return pipe


def test_levels_of_a_tree_have_its_nodes_in_equal_parts() -> None:
    """Of a tree of five levels and 16 nodes, and of a chain, whose levels are its tokens."""
    tree, chain = Levels(Budget(5, 16)), Levels(Budget(5))
    assert tree.nodes_D.tolist() == [0, 3, 6, 10, 13, 16]
    assert tree.of(np.array([0, 1, 3, 4, 9, 16, 99])).tolist() == [0, 1, 1, 2, 3, 5, 5]
    assert chain.of(np.array([0, 1, 4, 9])).tolist() == [0, 1, 4, 5]
    budget = tree.budget(np.array([2, 0, 4]))
    assert (budget.depth, budget.nodes) == (4, 13)
    assert budget.nodes_B.tolist() == [6, 0, 13]
    assert chain.budget(np.array([2, 0, 4])).nodes_B is None
    assert Levels(Budget(4, 5)).nodes_D.tolist() == [0, 1, 2, 4, 5], "no path has more nodes than its draft"


def test_a_level_stands_where_one_of_its_nodes_does() -> None:
    """Of rows with as many nodes as three levels have, one accepted up to the second, the third is tested there alone."""
    acceptance, rows = AcceptanceRates(Levels(Budget(4, 12))), Rows(2)
    for _ in range(300):
        acceptance.add(round_report(np.array([3, 2]), 4, rows, np.array([9, 9])))
    rates_BK = acceptance.rates_of(rows.sequences)
    assert rates_BK[0, 2] > 0.85 > 0.2 > rates_BK[1, 2]
    assert acceptance.rates()[3] == pytest.approx(acceptance.rates()[:3].mean(), abs=0.1), "nobody had a fourth level"


@pytest.mark.wide(but=["3"])
@pytest.mark.parametrize("width", [1, 3])
def test_plans_take_the_levels_that_pay(width: int) -> None:
    """Of each depth those levels are taken that raise tokens per second, by exhaustive search the best ones."""
    stands_BK = np.array([[0.95, 0.9, 0.85], [0.6, 0.3, 0.1], [0.05, 0.02, 0.01]])
    levels = Levels(Budget(3, 3 * width))
    cost = Curve(np.array([1, 0.05, 0.13, 0, *[0.0] * 9]), np.zeros((13, 13)), 0.0)
    plans = DepthPlans.best(stands_BK, cost, len(stands_BK) * (levels.nodes_D + 1), levels)

    def rate(own: tuple[int, ...]) -> float:
        gained = 3 + sum(float(stands_BK[row, :length].sum()) for row, length in enumerate(own))
        return gained / (1 + 0.05 * max(own) + 0.13 * width * sum(own) / 3)

    best = max(itertools.product(range(4), repeat=3), key=rate)
    budgets = [plans.budget(depth) for depth in range(4)]
    owns = [(0, 0, 0) if one.depths_B is None else tuple(one.depths_B.tolist()) for one in budgets]
    assert best in owns
    assert best == {1: (3, 2, 0), 3: (3, 1, 0)}[width], "the wider a tree, the more its levels have to gain"


@pytest.mark.wide
@pytest.mark.parametrize("policy", [Explicit, Goodput])
def test_rows_have_the_trees_that_they_are_worth(policy: type[Explicit] | type[Goodput]) -> None:
    """Rows of whose drafts all is accepted draft the whole tree, others fewer levels."""
    one, rows, now = policy(), Rows(2), [0.0]
    one.draft_trees(Budget(4, 12))
    if isinstance(one, Goodput):
        one.clock = lambda: now[0]
        one._leaves_out = lambda places, tokens: tokens < places
    nodes = list[list[int]]()
    for _ in range(120):
        budget = one.budget(rows)
        own_B = np.full(2, budget.nodes) if budget.nodes_B is None else budget.nodes_B
        depths_B = np.full(2, budget.depth) if budget.depths_B is None else budget.depths_B
        now[0] += 1 + 0.05 * budget.depth + 0.04 * float(own_B.sum())
        computed = 2 + int(own_B.sum())
        one.observe(round_report(np.minimum((4, 0), depths_B), budget.depth, rows, own_B, computed))
        nodes.append(own_B.tolist())
    assert [12, 0] in nodes[-20:] if policy is Goodput else nodes[-1] == [12, 3]


@pytest.mark.wide(but=["goodput-model,tree=static,nodes=12"])
@pytest.mark.parametrize("drafter", TREES)
@pytest.mark.parametrize("policy", ["explicit", "goodput"])
def test_trees_are_as_large_as_the_drafter_s_own(policy: str, drafter: str) -> None:
    """A policy's largest tree is the drafter's, no deeper than asked for, and tokens are the reference decoder's."""
    feeds = harness.Feeds()
    pipe = pipeline(drafter, f"{policy},maximum=4", observers=[feeds])
    harness.check(pipe, ASKED)
    own = pipe.parts.composition.drafter.budget()
    most = pipe.parts.composition.policy.maximum
    assert (most.depth, most.nodes) == (min(4, own.depth), own.nodes)
    nodes, depth = (max(getattr(one.report.draft, of) for one in feeds.rounds) for of in ("nodes", "depth"))
    assert own.depth >= depth
    assert own.nodes >= nodes > depth


def test_chains_of_a_drafter_with_trees_are_chains() -> None:
    """A drafter whose drafts are chains leaves a policy as long a draft as was asked for."""
    assert pipeline("model", "goodput,maximum=6").parts.composition.policy.maximum == Budget(6)
    assert ModelDrafter().budget() is None
