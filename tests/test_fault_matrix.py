"""Every member of every strategy fails at its first, a middle and its last call: nothing is lost, and sentences name the strategy.

The members are those of the protocols, so a new one is covered without an edit here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specframe.contracts.requests import Result
from specframe.errors import SpecframeError
from specframe.plugins.compose import OPTIONS
from specframe.plugins.members import members
from specframe.plugins.offers import ROLES
from specframe.testing import fakes, harness

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
ASKED = harness.requests(harness.random_prompts((5, 1, 8, 3), 61), [7, 9, 3, 8])

FAULTS: dict[str, Callable[[], BaseException]] = {
    "memory": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "error": lambda: ValueError("planted"),
    "exit": lambda: SystemExit(3),
}
POINTS = [
    (role, name)
    for role in ROLES
    if role != "attention backend"  # fakes do not attend
    for name, kind in members(role).items()
    if kind == "method"
]

FIELDS = {
    "drafter": "drafter",
    "verifier": "verifier",
    "acceptance rule": "rule",
    "alignment": "alignment",
    "scheduler": "scheduler",
    "KV backend": "kv",
    "draft-length policy": "policy",
}
"""The roles' names in a composition."""


class Failing:
    """A strategy of which one member raises at one call; a shortage of memory passes."""

    def __init__(self, inner: Any, member: str, at: int, fault: Callable[[], BaseException] | None) -> None:
        self._inner, self._member, self._at, self._fault, self.calls = inner, member, at, fault, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._member:
            return found

        def call(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self._fault is not None and self.calls == self._at:
                raise self._fault()
            return found(*given, **named)

        return call


def decoded(role: str, member: str, at: int, fault: str | None) -> tuple[int, list[Result], str]:
    """Decode with one planted fault; return the member's calls, the results and the error's sentence."""
    usual = harness.pipeline(TARGET, DRAFT, draft_length=3, batch_size=2)
    inner = getattr(usual.composition, FIELDS[role])
    failing = Failing(inner, member, at, fault and FAULTS[fault])
    pipe = harness.pipeline(TARGET, DRAFT, **{"draft_length": 3, "batch_size": 2, OPTIONS[role]: failing})
    results: list[Result] = []
    try:
        results += pipe.decode(ASKED)
    except SpecframeError as error:
        return failing.calls, results, str(error)
    return failing.calls, results, ""


@pytest.mark.filterwarnings("ignore::specframe.errors.SpecframeWarning")
@pytest.mark.parametrize(("role", "member"), POINTS, ids=str)
def test_every_member_may_fail_at_any_call(role: str, member: str) -> None:
    """A shortage of memory that passes changes no token; any other fault is told with the strategy's role."""
    calls, _, _ = decoded(role, member, 0, None)
    assert calls, f"{role}: {member}() is never called"
    for at in sorted({1, (calls + 1) // 2, calls}):
        _, results, told = decoded(role, member, at, "memory")
        assert told == "", (at, told)
        harness.assert_exact(TARGET, ASKED, sorted(results, key=lambda one: one.index))
        for fault in ("error", "exit"):
            _, results, told = decoded(role, member, at, fault)
            assert told.startswith(role), (fault, at, told)
            assert f"{member}() raised" in told, (fault, at, told)
            assert len({one.index for one in results}) == len(results)
