"""Budgets of rows leave the output's distribution as it is, and a budget that looks past the first drop is seen not to.

The statistic, the models and the bound are those of tests/test_distribution.py.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import test_distribution
import torch
from products import crossed
from specframe_std.drafters.model import ModelDrafter
from specframe_std.policies.goodput import Goodput
from specframe_std.policies.round_seconds import Prior
from test_distribution import DRAFT, LEAST, Cell, judged, small

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.contracts.round import Batch

SAMPLES = 2000
"""Sequences per prompt: with so many the p-values of budgets that look past the first drop are below 1e-10."""
TREE = "2/2/1"


class Cut(ModelDrafter):
    """A draft model, whose drafts are cut where tokens per second are most by the drafter's confidence in each place.

    Args:
        peeks: look at all places; else stop at the first place that makes it less, as DSpark does. The objective is the same.
        costs: shares of a plain round that the first draft token costs, and each further one.
        branch: of a static tree, which is cut to its first nodes; None: a chain.
    """

    def __init__(self, peeks: bool, costs: tuple[float, float], branch: str | None = None) -> None:
        super().__init__(branch=branch)
        self._peeks, self._costs = peeks, costs

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Draft, and cut the draft of each row."""
        draft = super().propose(batch, budget)
        if not draft.nodes:
            return draft
        assert draft.logits_BNV is not None
        sure_BN = draft.logits_BNV.softmax(-1).amax(-1)
        stands_BN = sure_BN if draft.parents_BN is not None else sure_BN.cumprod(1)
        places_N = torch.arange(draft.nodes + 1)
        first, rest = self._costs
        costs_N = 1 + first * (places_N > 0) + rest * (places_N - 1).clamp(min=0)
        rates_BN = torch.nn.functional.pad(1 + stands_BN.cumsum(1), (1, 0), value=1.0) / costs_N
        drops_BN = rates_BN[:, 1:] < rates_BN[:, :-1]
        first_B = torch.nn.functional.pad(drops_BN, (0, 1), value=True).long().argmax(1)
        return attrs.evolve(draft, counts_B=rates_BN.argmax(1) if self._peeks else first_B)


STEP, LINE = (0.7, 0.1), (0.6, 0.6)
"""Costs with a step, as kernels have them, and without. The objective of a chain on a line has one peak, where a first drop is
the maximum too; that of a tree has several, since a node's confidence is not bounded by that of the node before it."""
RULES: dict[str, tuple[Any, tuple[float, float], str | None]] = {
    "rejection": (small(5), STEP, None),
    "block": (small(5), STEP, None),
    "rejection-tree": (DRAFT, LINE, TREE),
    "traversal-tree": (DRAFT, LINE, TREE),
}


@pytest.mark.wide
@pytest.mark.parametrize("peeks", [False, True], ids=["first-drop", "past-it"])
@pytest.mark.parametrize("rule", crossed([*RULES]))
def test_the_first_drop_is_where_to_stop(rule: str, peeks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that ends at the first drop of the objective draws from the target; one that ends at its maximum does not."""
    draft, costs, branch = RULES[rule]
    monkeypatch.setattr(test_distribution, "DRAFT", draft)
    cell = Cell(rule.partition("-")[0], "ragged", 3, "t1")
    value = judged(cell, SAMPLES, drafter=Cut(peeks, costs, branch), draft_length="auto" if branch else 3)
    assert (value < LEAST**2) if peeks else (value > LEAST)


class Lengths(Observer):
    """Notes the numbers of tokens that rows drafted."""

    def __init__(self) -> None:
        self.seen = set[int]()
        self.uneven = 0

    def round(self, report: RoundReport) -> None:
        """Note a round."""
        if not report.prefill:
            self.seen |= set(report.drafted.tolist())
            self.uneven += len(set(report.drafted.tolist())) > 1


class Timed(Goodput):
    """`goodput` by a clock of which a round takes as long as it says: ``each`` more for each token computed."""

    def __init__(self, each: float = 0.3) -> None:
        super().__init__(4)
        self._each = each
        self._passed = 0.0
        self.clock = lambda: self._passed

    def start(self, run: Any) -> None:
        """Forget the models' shapes: this clock goes by others."""
        super().start(run)
        self._seconds.prepare(Prior())

    def observe(self, report: RoundReport) -> None:
        """Let time pass, and learn."""
        self._passed += 1 + 0.2 * report.depth + self._each * float(report.drafted.mean())
        super().observe(report)


POLICIES: dict[str, Any] = {
    "explicit": lambda: "explicit,maximum=4,least=0.2",
    "implicit": lambda: "implicit,maximum=4,least=0.5",
    "goodput": Timed,
    "goodput-tree": lambda: Timed(0.02),  # nodes that cost little, so that rows have many
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "policy", "branch"),
    [
        ("rejection", "explicit", None),
        ("block", "implicit", None),
        ("block", "goodput", None),
        ("rejection", "explicit", TREE),
        ("traversal", "goodput-tree", TREE),
    ],
)
def test_policies_draw_from_the_target(rule: str, policy: str, branch: str | None) -> None:
    """Under each policy rows draft unequal numbers of tokens, or nodes of a tree, and draw from the target."""
    lengths = Lengths()
    drafter = ModelDrafter(branch=branch) if branch else DRAFT
    options = {"drafter": drafter, "batch_size": 160, "draft_length": POLICIES[policy](), "observers": [lengths]}
    assert judged(Cell(rule, "ragged", 3 if branch else 4, "t1"), 1000, **options) > LEAST
    assert max(lengths.seen) > 3 if branch else len(lengths.seen) > 2, "of a tree more nodes than levels"
    assert lengths.uneven


@pytest.mark.wide(but=["traversal"])
@pytest.mark.parametrize("rule", crossed(["traversal", "rejection"]))
def test_budgets_of_trees_draw_from_the_target(rule: str) -> None:
    """Trees of which each row has a part that its past tells draw from the target."""

    class Parts:
        """Gives each row the more nodes, the longer it is."""

        needs = offers = frozenset[str]()
        maximum = Budget(3, 8)

        def start(self, run: Any) -> None:
            """Nothing to prepare."""

        def budget(self, batch: Batch) -> Budget:
            """Return unequal parts."""
            nodes_B = (batch.lengths * 3) % 9
            return Budget(3, 8, np.minimum(nodes_B, 3), nodes_B)

        def observe(self, report: RoundReport) -> None:
            """Nothing to learn."""

    options = {"drafter": ModelDrafter(branch=TREE), "draft_length": Parts(), "batch_size": 160}
    assert judged(Cell(rule, "ragged", 3, "t1"), 1000, **options) > LEAST
