"""Budgets of rows leave the output's distribution as it is, and a budget that looks past the first drop is seen not to.

The statistic, the models and the bound are those of tests/test_distribution.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.policies.fixed_length import FixedLength
from specframe_std.policies.goodput import Goodput
from specframe_std.policies.round_seconds import Prior
from test_distribution import DRAFT, LEAST, Cell, by_rule

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.contracts.round import Batch

TREE = "2/2/1"


STEP, LINE = (0.7, 0.1), (0.6, 0.6)
"""Costs with a step, as kernels have them, and without. The objective of a chain on a line has one peak, where a first drop is
the maximum too; that of a tree has several, since a node's confidence is not bounded by that of the node before it."""


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
        """Forget the models' shapes: this clock uses others."""
        super().start(run)
        self._seconds.prior = Prior()

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
    assert by_rule(Cell(rule, "ragged", 3 if branch else 4, "t1"), 1000, **options) > LEAST
    assert max(lengths.seen) > 3 if branch else len(lengths.seen) > 2, "of a tree more nodes than levels"
    assert lengths.uneven


@pytest.mark.wide(but=["traversal"])
@pytest.mark.parametrize("rule", ["traversal", "rejection"])
def test_budgets_of_trees_draw_from_the_target(rule: str) -> None:
    """Trees of which each row has a part by its past draw from the target."""

    class Parts(FixedLength):
        """Gives each row the more nodes, the longer it is."""

        offers = frozenset()

        def budget(self, batch: Batch) -> Budget:
            """Return unequal parts."""
            nodes_B = (batch.lengths * 3) % 9
            return Budget(3, 8, np.minimum(nodes_B, 3), nodes_B)

    options = {"drafter": ModelDrafter(branch=TREE), "draft_length": Parts(3, 8), "batch_size": 160}
    assert by_rule(Cell(rule, "ragged", 3, "t1"), 600, **options) > LEAST
