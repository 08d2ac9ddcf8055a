from __future__ import annotations

from specframe.testing.conformance import AcceptanceRuleSuite, DraftLengthPolicySuite, VerifierSuite


class TestChain(VerifierSuite):
    """The verifier ``chain``."""

    def make(self) -> str:
        return "chain"


class TestGreedy(AcceptanceRuleSuite):
    """The acceptance rule ``greedy``."""

    def make(self) -> str:
        return "greedy"


class TestRejection(AcceptanceRuleSuite):
    """The acceptance rule ``rejection``, without doubt about any token."""

    def make(self) -> str:
        return "rejection"


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


class TestFixedLength(DraftLengthPolicySuite):
    """The draft-length policy ``fixed``."""

    def make(self) -> str:
        return "fixed,length=4"


class TestSynthetic(AcceptanceRuleSuite):
    """The acceptance rule ``synthetic``."""

    def make(self) -> str:
        return "synthetic,rate=0.6"
