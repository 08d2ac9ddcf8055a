"""Rounds that are launched ahead on the simulated device."""

from __future__ import annotations

from typing import Any

import pytest

from specframe.contracts.reports import Outcome
from specframe.engine import loop
from specframe_testing.device.counters import COUNTERS, WAIT


def refuse_waits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have the simulated device refuse to be waited for where a round is launched before the one before it has landed.

    Returns:
        The rounds that had not landed, one for each of these launches.
    """
    launch, learn, ahead = loop.launch, loop.learn, list[Any]()

    def launched(*given: Any) -> Any:
        if given[-1] is None:
            return launch(*given)
        ahead.append(given[-1])
        with COUNTERS.refused(WAIT, where="in a launch"):
            return launch(*given)

    def learned(outcomes: list[Outcome], *given: Any) -> None:
        if any(one.batch.prefill for one in outcomes):
            return learn(outcomes, *given)  # a model is tried out with its first prompt
        with COUNTERS.refused(WAIT, where="before a launch"):
            return learn(outcomes, *given)

    monkeypatch.setattr(loop, "launch", launched)
    monkeypatch.setattr(loop, "learn", learned)
    return ahead
