from __future__ import annotations

import pytest

from specframe.plugins.registry import registry
from specframe.testing.conformance import AcceptanceRuleSuite, DraftLengthPolicySuite, VerifierSuite


class TestChain(VerifierSuite):
    """The verifier ``chain``."""

    def make(self) -> str:
        return "chain"


def test_tree_is_another_name_of_chain() -> None:
    """One pass scores the nodes of a tree and the tokens of a chain: both names are one verifier."""
    assert registry().entry("verifier", "tree").factory is registry().entry("verifier", "chain").factory


class TestGreedy(AcceptanceRuleSuite):
    """The acceptance rule ``greedy``."""

    def make(self) -> str:
        return "greedy"


class TestRejection(AcceptanceRuleSuite):
    """The acceptance rule ``rejection``, without doubt about any token."""

    def make(self) -> str:
        return "rejection"


@pytest.mark.slow
class TestIndependentRejection(AcceptanceRuleSuite):
    """The acceptance rule ``rejection`` for siblings that are drawn with replacement."""

    def make(self) -> str:
        return "rejection,siblings=independent"


class TestTraversal(AcceptanceRuleSuite):
    """The acceptance rule ``traversal``, without doubt about any token."""

    def make(self) -> str:
        return "traversal"


class TestBlock(AcceptanceRuleSuite):
    """The acceptance rule ``block``, without doubt about any token."""

    def make(self) -> str:
        return "block"


class TestGumbel(AcceptanceRuleSuite):
    """The acceptance rule ``gumbel``, without doubt about any token."""

    def make(self) -> str:
        return "gumbel"


class TestTypical(AcceptanceRuleSuite):
    """The acceptance rule ``typical``, without doubt about any token."""

    def make(self) -> str:
        return "typical"

    def test_longest_typical_path(self) -> None:
        """In a tree the longest path of typical tokens stands, of equally long ones the first."""
        assert self.judge_tree([[4, 1, 7, 1, 1, 8, 9]], [[3, 4, 5, 6, 7, 8]], [-1, -1, 0, 1, 1, 4]) == [[4, 7, 8, 9]]
        assert self.judge_tree([[9, 1, 7, 1, 1, 8, 9]], [[3, 4, 5, 6, 7, 8]], [-1, -1, 0, 1, 1, 4]) == [[9]]


class TestFixedLength(DraftLengthPolicySuite):
    """The draft-length policy ``fixed``."""

    def make(self) -> str:
        return "fixed,length=4"


class TestSynthetic(AcceptanceRuleSuite):
    """The acceptance rule ``synthetic``."""

    def make(self) -> str:
        return "synthetic,rate=0.6"
