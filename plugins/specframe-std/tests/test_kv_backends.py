from __future__ import annotations

import pytest
from specframe_testing.conformance import KVBackendSuite


class TestDynamic(KVBackendSuite):
    """Grows by concatenation."""

    def make(self) -> str:
        return "dynamic"


class TestSlab(KVBackendSuite):
    """Preallocated."""

    def make(self) -> str:
        return "slab"


class TestPool(KVBackendSuite):
    """Rows in one piece each."""

    def make(self) -> str:
        return "pool"


class TestPaged(KVBackendSuite):
    """Rows in blocks."""

    host_copies = 4
    """The table is sent when a row begins a block: rows may do so at two of a draft's steps, and once more when it is verified."""

    def make(self) -> str:
        return "paged,block=6"


class TestPagedSharing(KVBackendSuite):
    """Rows in blocks that are kept by their content, and handed out as they lie."""

    first_waits = 1
    host_copies = TestPaged.host_copies

    def make(self) -> str:
        return "paged,block=6,share=on,view=blocks"


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
