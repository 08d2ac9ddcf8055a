from __future__ import annotations

from specframe_testing.conformance import AlignmentSuite


class TestRagged(AlignmentSuite):
    """Slot = position."""

    def make(self) -> str:
        return "ragged"


class TestEqspec(AlignmentSuite):
    """Realigned after every round."""

    def make(self) -> str:
        return "eqspec"


class TestExspec(AlignmentSuite):
    """Realigned when it has to be."""

    def make(self) -> str:
        return "exspec"


class TestRollback(AlignmentSuite):
    """Cut to the batch's minimum."""

    def make(self) -> str:
        return "rollback"


class TestMasking(AlignmentSuite):
    """Masked, as published."""

    def make(self) -> str:
        return "masking"


class TestMaskingMended(AlignmentSuite):
    """Masked, with positions that count content."""

    def make(self) -> str:
        return "masking,positions=content"


class TestPadding(AlignmentSuite):
    """Padded without end, as published."""

    def make(self) -> str:
        return "padding"


class TestPaddingMended(AlignmentSuite):
    """Padded without end, with all fixes."""

    def make(self) -> str:
        return "padding,mask=content,positions=content,bonus=target"
