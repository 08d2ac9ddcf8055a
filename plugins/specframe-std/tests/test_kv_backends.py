from __future__ import annotations

import pytest
from specframe_testing.conformance import KVBackendSuite


@pytest.mark.wide(
    but=[
        "test_equals_reference[eqspec]",
        "test_paths_of_rows_that_join_are_moved",
        "test_chosen_slots_of_rows_that_join",
    ]
)
class TestDynamic(KVBackendSuite):
    """Grows by concatenation."""

    def make(self) -> str:
        return "dynamic"


@pytest.mark.wide(
    but=[
        "test_equals_reference[ragged]",
        "test_paths_of_rows_that_join_are_moved",
        "test_chosen_slots_of_rows_that_join",
        "test_forwards_begin_at_any_row",
    ]
)
class TestSlab(KVBackendSuite):
    """Preallocated."""

    def make(self) -> str:
        return "slab"


@pytest.mark.wide(but=["test_equals_reference[rollback]"])
class TestPool(KVBackendSuite):
    """Rows in one piece each."""

    def make(self) -> str:
        return "pool"


@pytest.mark.wide(but=["test_equals_reference[ragged]"])
class TestPaged(KVBackendSuite):
    """Rows in blocks."""

    host_copies = 4
    """The table is sent when a row begins a block: rows may do so at two of a draft's steps, and once more when it is verified."""

    def make(self) -> str:
        return "paged,block=6"


@pytest.mark.wide(but=["test_equals_reference[ragged]", "test_chosen_slots_are_handed_out[1]"])
class TestPagedSharing(KVBackendSuite):
    """Rows in blocks that are kept by their content, and handed out as they lie."""

    first_waits = 1
    host_copies = TestPaged.host_copies

    def make(self) -> str:
        return "paged,block=6,share=on,view=blocks"


@pytest.mark.wide(but=["test_equals_reference[rollback]"])
class TestPagedInt8(KVBackendSuite):
    """Rows in blocks, keys and values in 8 bits: the reference rounds them alike."""

    host_copies = TestPaged.host_copies

    def make(self) -> str:
        return "paged,block=6,dtype=int8,draft_dtype=int8"


@pytest.mark.slow
class TestSlabFp8(KVBackendSuite):
    """Preallocated, in floats of 8 bits."""

    def make(self) -> str:
        return "slab,dtype=fp8,draft_dtype=fp8"
