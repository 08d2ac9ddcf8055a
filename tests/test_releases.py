"""Whatever ends a sequence, each cache that has made room for it releases it, once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import attrs
import pairing
import planting
import pytest
import torch
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import fakes, harness

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.engine import local_engine as engine_module
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.errors import SpecframeError
from specframe.text.generation import GenerationSettings
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
PROMPTS = harness.random_prompts((5, 9, 1), 61)
PLAN = GenerationSettings(Sampling(temperature=0.8), {}).plan(9, 20, [], TARGET.device)
ASKED = [
    Request(0, PROMPTS[0], 6, frozenset({7})),
    *(
        Request(1, PROMPTS[1], new, plan=PLAN, stream=sample << 32, sample=sample)
        for sample, new in enumerate((3, 8, 8))
    ),
    Request(2, PROMPTS[2], 9),
]
"""One that may stop, a prompt with three samples of which the first ends first, and one that waits."""


class Failing(ChainVerifier):
    """Fails once where it is asked to."""

    error: BaseException | None = None

    def score(self, *given: Any) -> Any:
        """Score, or fail after the target was fed."""
        scores, error, self.error = super().score(*given), self.error, None
        if error is not None:
            raise error
        return scores


@pytest.fixture(autouse=True)
def _all_is_released() -> Iterator[None]:
    """Hold nothing before and after a test."""
    pairing.HELD.clear()
    yield
    assert not pairing.HELD


def opened(schedule: str) -> tuple[LocalEngine, Failing]:
    """Return an engine on paired stores, with all requests, and its verifier."""
    verifier = Failing()
    how: dict[str, Any] = {"accept": "gumbel", "batch_size": 4, "draft_length": 3, "schedule": schedule}
    pipe = harness.pipeline(TARGET, fakes.fake_draft(TARGET), kv=pairing.Paired(), verify=verifier, **how)
    return planting.opened(pipe, ASKED), verifier


def ended(engine: LocalEngine, steps: int | None = None) -> int:
    """Step an engine until it is idle, or so often; return how many sequences have ended, over errors."""
    count = 0
    while not engine.idle and steps != 0:
        steps = None if steps is None else steps - 1
        with contextlib.suppress(SpecframeError):
            report: RoundReport | None = engine.step()
            count += len(report.finished) if report else 0
    return count


SCHEDULES = ["continuous,piece=4", "fixed"]


@pytest.mark.wide
@pytest.mark.parametrize("way", ["memory", "one by one", "error", "abort", "close"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_faults_inside_any_step(schedule: str, steps: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack of memory, an error, an abort and a close in the middle of a round; sequences that begin again have room once."""
    monkeypatch.setattr(engine_module, "share_memory", lambda use: way == "one by one")
    engine, verifier = opened(schedule)
    count = ended(engine, steps)
    if way in ("abort", "close"):
        act = engine.close if way == "close" else lambda: engine.abort((1, 0))

        class Inside(HandClock):
            """Acts when it is asked for the time."""

            @property
            def now(self) -> float:
                act()
                return 0.0

        engine._pool._clock = Inside()
        engine.step()
        engine._pool._clock = HandClock()
    else:
        verifier.error = ValueError("planted") if way == "error" else torch.OutOfMemoryError("CUDA out of memory")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count += ended(engine)
    assert way in ("abort", "close") or count == len(ASKED)
    assert not pairing.HELD
    engine.close()


def test_no_room_in_one_of_two_caches() -> None:
    """Where the second cache has no room for a sequence, or fails, the first has released it."""
    run = harness.open_run(TARGET, 2, 20, kv=pairing.Paired())
    second = run.open_cache(run.runner)
    one = attrs.evolve(harness.open_pool(ASKED).admit(1)[0])
    for fault in (lambda *_: None, lambda *_: 1 / 0):
        second.store.reserve = fault  # type: ignore[method-assign,attr-defined]
        with contextlib.suppress(ZeroDivisionError):
            assert run.reserve(one, 5) is None
        assert not pairing.HELD
    del second.store.reserve  # type: ignore[attr-defined]
    assert run.reserve(one, 5) == 0
    late = run.open_cache(run.runner)
    assert len(pairing.HELD) == 3, "a cache that is opened later has room for those that are live"
    run.close_cache(late)
    assert len(pairing.HELD) == 2
    run.release()


def test_a_store_that_fails_to_release_is_asked_once_more() -> None:
    """What a store has not released by an error it releases when it is closed, and so do the others."""
    run = harness.open_run(TARGET, 2, 20, kv=pairing.Paired())
    run.open_cache(run.runner)
    one = attrs.evolve(harness.open_pool(ASKED).admit(1)[0])
    assert run.reserve(one, 5) == 0
    one.finish("abort")
    run.target.store.release = lambda _: 1 / 0  # type: ignore[method-assign,assign]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run.forget_finished()
    del run.target.store.release  # type: ignore[method-assign]
    run.release()
