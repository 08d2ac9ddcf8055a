from __future__ import annotations

import pytest
import torch
from specframe_testing import fakes, harness
from specframe_testing.conformance import AcceptanceRuleSuite, DraftLengthPolicySuite, VerifierSuite
from specframe_testing.conformance.acceptance_suite import VOCABULARY

from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestChain(VerifierSuite):
    """The verifier ``chain``."""

    def make(self) -> str:
        return "chain"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestGreedy(AcceptanceRuleSuite):
    """The acceptance rule ``greedy``."""

    def make(self) -> str:
        return "greedy"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestRejection(AcceptanceRuleSuite):
    """The acceptance rule ``rejection``, without doubt about any token."""

    def make(self) -> str:
        return "rejection"


@pytest.mark.wide(but=["test_equals_reference[default]", "test_a_tree_without_distribution"])
class TestTraversal(AcceptanceRuleSuite):
    """The acceptance rule ``traversal``, without doubt about any token."""

    def make(self) -> str:
        return "traversal"


@pytest.mark.wide(but=["test_equals_reference[default]", "test_a_target_without_distribution"])
class TestBlock(AcceptanceRuleSuite):
    """The acceptance rule ``block``, without doubt about any token."""

    def make(self) -> str:
        return "block"


@pytest.mark.wide(but=["test_equals_reference[default]", "test_path_of_choices", "test_first_sibling"])
class TestGumbel(AcceptanceRuleSuite):
    """The acceptance rule ``gumbel``, without doubt about any token."""

    def make(self) -> str:
        return "gumbel"


@pytest.mark.wide(but=["traversal"])
@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_numbers_of_rejected_tokens_are_not_used_again(name: str) -> None:
    """A position that is drafted again in a later round is drawn anew: the rule's result depended on the first draw."""
    rule = strategy(registry(), "acceptance rule", name)
    rule.start(harness.open_run(fakes.fake_target(), rows=1, capacity=8))
    pools = [harness.open_pool(harness.requests([[1] * length], 9)) for length in (2, 3)]
    earlier, later = (pool.batch(pool.admit(1)) for pool in pools)
    uniform_1V = torch.zeros(1, 1000, device=harness.device())
    assert rule.choose(earlier, 1, uniform_1V) == rule.choose(earlier, 1, uniform_1V)
    assert rule.choose(earlier, 1, uniform_1V) != rule.choose(later, 0, uniform_1V)


@pytest.mark.wide(
    but=["test_equals_reference[default]", "test_filler_is_as_if_it_had_not_been_drafted", "test_longest_typical_path"]
)
class TestTypical(AcceptanceRuleSuite):
    """The acceptance rule ``typical``, without doubt about any token."""

    def make(self) -> str:
        return "typical"

    def test_a_token_is_held_to_the_threshold_of_its_own_place(self) -> None:
        """An unlikely token is rejected where the target is sure, however unsure it is of the token after it."""
        logits_1TV = torch.zeros(1, 3, VOCABULARY)
        logits_1TV[0, 0] = torch.tensor([0.95, 0.05, *[0.0] * (VOCABULARY - 2)]).log()
        acceptance, _ = self.accept_logits(logits_1TV.to(harness.device()), [[1, 0]])
        assert acceptance.accepted_B.tolist() == [0]

    def test_longest_typical_path(self) -> None:
        """In a tree the longest path of typical tokens is accepted, of equally long ones the first."""
        assert self.accept_tree([[4, 1, 7, 1, 1, 8, 9]], [[3, 4, 5, 6, 7, 8]], [-1, -1, 0, 1, 1, 4]) == [[4, 7, 8, 9]]
        assert self.accept_tree([[9, 1, 7, 1, 1, 8, 9]], [[3, 4, 5, 6, 7, 8]], [-1, -1, 0, 1, 1, 4]) == [[9]]


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestFixedLength(DraftLengthPolicySuite):
    """The draft-length policy ``fixed``."""

    def make(self) -> str:
        return "fixed,length=4"


@pytest.mark.wide(but=["test_equals_reference[default]", "test_filler_is_as_if_it_had_not_been_drafted"])
class TestSynthetic(AcceptanceRuleSuite):
    """The acceptance rule ``synthetic``."""

    def make(self) -> str:
        return "synthetic,rate=0.6"
