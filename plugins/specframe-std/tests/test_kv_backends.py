from __future__ import annotations

from specframe_testing.conformance import KVBackendSuite


class TestDynamic(KVBackendSuite):
    """Grows by concatenation."""

    def make(self) -> str:
        return "dynamic"


class TestSlab(KVBackendSuite):
    """Preallocated."""

    def make(self) -> str:
        return "slab"
