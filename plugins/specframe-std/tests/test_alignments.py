from __future__ import annotations

import pytest
from specframe_testing.conformance import AlignmentSuite


@pytest.mark.wide(but=["test_rows_stop_at_every_place[3]", "test_equals_reference[slab-continuous]"])
class TestRagged(AlignmentSuite):
    """Slot = position."""

    def make(self) -> str:
        return "ragged"


@pytest.mark.wide(but=["test_equals_reference[pool-fixed]"])
class TestEqspec(AlignmentSuite):
    """Realigned after every round."""

    def make(self) -> str:
        return "eqspec"


@pytest.mark.wide(but=["test_equals_reference[dynamic-fixed]"])
class TestExspec(AlignmentSuite):
    """Realigned when it has to be."""

    def make(self) -> str:
        return "exspec"


@pytest.mark.wide(but=["test_equals_reference[paged-fixed]", "test_prompts_read_in_chunks[dynamic-fixed]"])
class TestRollback(AlignmentSuite):
    """Cut to the batch's minimum."""

    def make(self) -> str:
        return "rollback"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestMasking(AlignmentSuite):
    """Masked, as published."""

    def make(self) -> str:
        return "masking"


@pytest.mark.wide(but=["test_equals_reference[dynamic-same-length,window=4]"])
class TestMaskingMended(AlignmentSuite):
    """Masked, with positions that count content."""

    def make(self) -> str:
        return "masking,positions=content"


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestPadding(AlignmentSuite):
    """Padded without end, as published."""

    def make(self) -> str:
        return "padding"


@pytest.mark.wide(but=["test_equals_reference[dynamic-continuous]"])
class TestPaddingMended(AlignmentSuite):
    """Padded without end, with all fixes."""

    def make(self) -> str:
        return "padding,mask=content,positions=content,bonus=target"
