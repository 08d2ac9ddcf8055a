"""Whatever is called at a step of a run fails at its first, a middle and its last call: every request has exactly one result.

What is called are the members of all strategies, and of their layouts and stores. The members are those of the protocols, so that a
new one is covered without an edit here. What strategies call in their turn is in test_faults_inside.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pairing
import pytest
from planting import (
    FAULTS,
    WRONG,
    Act,
    Acting,
    Point,
    assert_once,
    collected,
    opened,
    plant,
    raising,
    stepped,
    turns,
    wanted,
)
from specframe_testing import fakes, harness

from specframe.contracts import cache, roles
from specframe.engine.local_engine import LocalEngine
from specframe.pipeline import Pipeline, in_order
from specframe.plugins.compose import FIELDS
from specframe.plugins.entries import ROLES
from specframe.plugins.protocols import members, members_of

pytestmark = pytest.mark.filterwarnings("ignore::specframe.errors.SpecframeWarning")

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
ASKED = harness.requests(harness.random_prompts((5, 1, 3), 61), [4, 7, 3])
PIPE = harness.pipeline(TARGET, DRAFT, draft_length=3, batch_size=2, kv=pairing.Paired())
MOVING = harness.pipeline(TARGET, DRAFT, draft_length=3, batch_size=2, align="eqspec")
USUAL = {id(one): one.composition for one in (PIPE, MOVING)}

WANTED = wanted(TARGET, ASKED)

POINTS: list[Point] = [
    *(
        (role, "", name)
        for role in ROLES
        if role != "attention backend"  # fakes do not attend
        for name, kind in members(role).items()
        if kind == "method"
    ),
    *(("alignment", "layout", name) for name in ("arrange", "place", "commit")),
    *(
        ("KV backend", "open", name)
        for name in members_of(cache.KVStore)
        if not isinstance(vars(cache.KVStore)[name], property)
    ),
]
assert {"arrange", "place", "commit"} <= {*members_of(roles.Layout)}


def pipe_of(point: Point) -> Pipeline:
    """Return the pipeline in which a point is called: one that realigns moves slots."""
    return MOVING if point[2] == "move" else PIPE


def planted(point: Point, at: int, act: Act) -> Acting:
    """Put what acts at a point into its pipeline, and return it."""
    role, maker, member = point
    pipe = pipe_of(point)
    return plant(pipe, USUAL[id(pipe)], (FIELDS[role], maker, member), at, act)


@pytest.fixture(autouse=True)
def _as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take out what was planted, and see that all room is released."""
    pairing.HELD.clear()
    yield
    for pipe in (PIPE, MOVING):
        pipe.parts.composition = USUAL[id(pipe)]
    assert not pairing.HELD or "KV backend open reserve-" in request.node.name, "but by a store that has said otherwise"


def calls(point: Point) -> int:
    """Return how often a point is called."""
    acting = planted(point, 0, raising("error"))
    harness.check(pipe_of(point), ASKED)
    return acting.calls


@pytest.mark.wide(but=["scheduler  rows"])
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_every_member_may_fail_at_any_call(point: Point) -> None:
    """A shortage of memory that passes changes no token; any other fault is reported with the strategy's role."""
    count = calls(point)
    assert count, f"{point} is never called"
    for at in turns(count):
        for fault in FAULTS:
            planted(point, at, raising(fault))
            results, told = collected(pipe_of(point).decode(ASKED))
            assert_once(TARGET, ASKED, results, complete=fault == "memory")
            if fault == "memory":
                assert told == "", at
                continue
            assert told.startswith(point[0]), (fault, at, told)
            assert f"{point[2]}() raised" in told, (fault, at, told)


@pytest.mark.wide(but=["alignment layout arrange", "KV backend open release"])
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_an_engine_goes_on_after_any_error(point: Point) -> None:
    """Stepped on after an error it has the target's tokens for every request, each reported once: a round counts whole or not."""
    for at in turns(calls(point)):
        planted(point, at, raising("error"))
        engine = opened(pipe_of(point), ASKED)
        assert stepped(engine) == (WANTED, 1), at
        engine.close()
        assert engine.idle


@pytest.mark.wide(but=["KV backend open reserve"])
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_aborts_and_a_close_from_inside_any_call(point: Point) -> None:
    """A request that is aborted from inside ends once, as the abort says, and the others go on; a closed engine is idle."""
    for at in turns(calls(point)):
        for gone in (*ASKED, None):
            held: list[LocalEngine] = []
            aborted = list[Any]()

            def act(
                inner: Any, usual: Callable[[], Any], gone: Any = gone, held: Any = held, aborted: Any = aborted
            ) -> Any:
                aborted.append(held[0].close() if gone is None else held[0].abort(gone.key))
                return usual()

            planted(point, at, act)
            held.append(opened(pipe_of(point), ASKED))
            ended, errors = stepped(held[0])
            assert errors == 0, (at, gone)
            if gone is None:
                assert held[0].idle
                assert held[0].step() is None
                continue
            if (left := aborted[0]) is not None:
                assert left.token_ids == WANTED[gone.index][: len(left.token_ids)]
                assert gone.index not in ended
                ended[gone.index] = WANTED[gone.index]
            assert ended == WANTED, (at, gone)
            held[0].close()


@pytest.mark.wide
@pytest.mark.parametrize("entry", ["generate", "stream"])
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_results_come_before_an_error(point: Point, entry: str) -> None:
    """What has ended before an error is returned by every entry, in the order asked or as chunks, and then the error."""
    at = turns(calls(point))[-1]
    planted(point, at, raising("error"))
    decoded, _ = collected(pipe_of(point).decode(ASKED))
    planted(point, at, raising("error"))
    completed = pipe_of(point).decode(ASKED)
    if entry == "stream":
        completed = (one.result for one in pipe_of(point)._stream(ASKED, ()) if one.result)
    else:
        completed = in_order(completed, sorted(one.key for one in ASKED))
    results, told = collected(completed)
    assert told.startswith(point[0])
    assert sorted(one.index for one in results) == sorted(one.index for one in decoded)
    assert_once(TARGET, ASKED, results, complete=False)


class Aborting:
    """A stop check that aborts a request, or closes the engine, at one of its calls."""

    def __init__(self, at: int, gone: Any, held: list[LocalEngine]) -> None:
        self._left, self._gone, self._held = at, gone, held
        self.aborted: Any = None

    def first(self, ids: Any, prompt_length: int, fresh: int) -> None:
        """Count a call, and act at its turn."""
        self._left -= 1
        if self._left == 0:
            self.aborted = self._held[0].close() if self._gone is None else self._held[0].abort(self._gone.key)


@pytest.mark.wide(but=["3-gone1"])
@pytest.mark.parametrize("gone", [*ASKED, None])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_aborts_and_a_close_from_inside_a_stop_check(at: int, gone: Any) -> None:
    """A stop check that aborts its own row or another ends it once; the round is decoded again for the others."""
    held: list[LocalEngine] = []
    check = Aborting(at, gone, held)
    held.append(opened(PIPE, [attrs.evolve(ASKED[0], stop_checks=(check,)), *ASKED[1:]]))
    ended, errors = stepped(held[0])
    assert errors == 0
    if gone is None:
        assert held[0].step() is None
        return
    if (left := check.aborted) is not None:
        assert gone.index not in ended
        assert left.finish_reason == "abort"
        assert left.token_ids == WANTED[gone.index][: len(left.token_ids)]
        ended[gone.index] = WANTED[gone.index]
    assert ended == WANTED


@pytest.mark.wide(but=["scheduler  next_batch-one column less"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_a_wrong_value_is_told_or_does_nothing(point: Point, wrong: str) -> None:
    """What a member returns is right, harmless, reported as its strategy's, or ends the sequences that it leaves undecided."""
    for at in turns(calls(point)) if point[2] != "write" else [1]:  # of a store's views the first alone is looked at
        planted(point, at, lambda inner, usual: WRONG[wrong](usual()))
        results, told = collected(pipe_of(point).decode(ASKED))
        if told:
            assert told.startswith(point[0]), (at, told)
            continue
        failed = [one for one in results if one.finish_reason == "error"]
        assert all("logits are no distribution" in str(one.error) for one in failed)
        assert len(results) == len(ASKED)
        assert_once(TARGET, ASKED, [one for one in results if one.finish_reason != "error"], complete=not failed)
