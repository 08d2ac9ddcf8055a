"""The draft-length policy ``goodput``, by a clock that costs set; and draft lengths that change from round to round."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from policy_worlds import Cost, Rows, World, round_report
from specframe_std.drafters.draft_model import IDLE
from specframe_std.policies.goodput import NEW_SHAPES, PLAIN_FIRST, QUIETEST, READ, UNREAD, DepthChoice, Goodput
from specframe_std.policies.parting import passes_lost
from specframe_std.policies.round_seconds import Curve, Prior, RoundSeconds
from specframe_testing import fakes, harness
from specframe_testing.conformance import DraftLengthPolicySuite


@pytest.mark.wide(but=["test_equals_reference[default]", "test_any_acceptance[by-row]"])
class TestGoodput(DraftLengthPolicySuite):
    """The draft-length policy ``goodput``, on the real clock: whatever it says, the tokens are the reference decoder's."""

    def make(self) -> str:
        return "goodput,maximum=4"


CURVES: dict[str, tuple[Cost, float]] = {
    "memory-bound": (lambda rows, length: 1.0 + 0.12 * length + 0.1 * (length > 0), 0.8),
    "compute-bound": (lambda rows, length: 1.0 + 0.9 * length + 0.3 * (length > 0), 0.75),
    "few-accepted": (lambda rows, length: 1.0 + 0.3 * length, 0.25),
    "nearly-free": (lambda rows, length: 1.0 + 0.02 * length, 0.5),
    "nearly-perfect": (lambda rows, length: 1.0 + 0.1 * length, 0.97),
    "a-jump-that-pays-late": (lambda rows, length: 1.0 + 0.05 * length + 1.5 * (length > 0), 0.85),
    "a-jump-that-never-pays": (lambda rows, length: 1.0 + 0.05 * length + 2.5 * (length > 0), 0.7),
    "all-alike": (lambda rows, length: 1.0 + 0.45 * length + 0.2 * (length > 0), 0.66),
}


@functools.cache
def played(curve: str, rows: int) -> list[World]:
    """Return six runs of one cost curve, of different seeds."""
    cost, rate = CURVES[curve]
    worlds = [World(cost, rate, rows, seed) for seed in range(6)]
    for world in worlds:
        world.run()
    return worlds


@pytest.mark.wide
@pytest.mark.parametrize("rows", [4, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("curve", CURVES)
def test_near_the_best_fixed_length(curve: str, rows: int) -> None:
    """Over 300 rounds, learning included, it is within 3 percent of the better of plain decoding and the best fixed length."""
    worlds = played(curve, rows)
    assert sum(world.ratio() for world in worlds) / len(worlds) >= 0.97
    assert sum(world.ratio(100) for world in worlds) / len(worlds) >= 0.98
    assert min(world.ratio() for world in worlds) >= 0.93


def test_one_token_is_tried_where_no_draft_is_expected_to_pay() -> None:
    """A batch whose tokens cost more than its drafts are expected to gain tries the draft that is expected to lose least."""
    shapes = Prior(step=0.1, each=0.09)
    ratios: dict[int, list[float]] = {16: [], 32: []}
    for rows, found in ratios.items():
        for seed in range(8):
            world, policy = World(lambda rows, length: 1 + shapes.token(rows) * length, 0.5, rows, seed), Goodput()
            policy._seconds.prior = shapes
            world.run(50, policy)
            assert world.said[:4] == [0, 0, 0, 1]
            found.append(world.ratio())
    assert np.mean(ratios[16]) >= 0.99, "0.982 where two tokens are tried"
    assert np.mean(ratios[32]) >= 0.98, "0.971 where two tokens are tried"


def test_two_tokens_are_tried_where_drafts_may_pay() -> None:
    """A batch in which drafts are expected to lose a twentieth at most learns from its test what deeper drafts cost."""
    shapes = Prior(step=0.23, each=0.046)
    ratios = []
    for seed in range(12):
        world, policy = World(lambda rows, length: 1 + 0.15 * (length > 0) + 0.3 * length, 0.7, 16, seed), Goodput()
        policy._seconds.prior = shapes
        world.run(60, policy)
        assert world.said[:4] == [0, 0, 0, 2]
        world.run(60, policy)
        ratios.append(world.ratio())
    assert np.mean(ratios) >= 0.98, "0.954 where one token is tried"


def test_prompts_that_a_draft_model_has_to_read_count() -> None:
    """Drafts that pay by far are scheduled again where rows have room for many tokens, and not for a few after long prompts."""
    world, policy = World(lambda rows, length: 1.0 + 0.2 * length, 0.8, 4), Goodput()
    policy._seconds.prior = Prior(step=0.2, each=0.01, read=0.002)
    world.run(60, policy)
    policy._undrafted = 50
    for room, drafts in ((5, False), (10**6, True)):
        policy._choices.clear()
        policy._choices[4] = DepthChoice(0, left=0)
        batch = Rows(4)
        for sequence in batch:
            sequence.request.prompt_ids = [0] * 500
        batch.lengths, batch.limits = np.full(4, 505), 505 + room + np.arange(-2, 2)  # no two rows end together
        assert bool(policy.budget(batch).depth) == drafts


def test_what_a_draft_model_has_missed() -> None:
    """Tokens since the last draft, the prompts of rows that came when it read none, and those that wait, for each token to come."""
    policy, batch = Goodput(), Rows(3)
    assert UNREAD == IDLE
    policy._undrafted = 19
    for sequence in batch:
        sequence.request.prompt_ids = [0] * 100
    batch.lengths, batch.limits = np.array([130, 115, 112]), np.array([140, 125, 132])
    policy._curves[3] = Curve(np.array([2.0, 0, 0.6, 0, *[0.0] * 9]), np.zeros((13, 13)), 0.0)
    policy._seconds.prior = Prior(each=0.1, read=0.01)
    of_each, parting = 0.2 * 0.1 * READ, 2.0 / 1.3 * passes_lost([10, 10, 20], 0, 97 / 3)
    assert parting > 0, "two rows end together"
    assert policy._beside(batch) == pytest.approx((19 + 15 + 112) / 40 * of_each + parting)
    batch.waiting = 2
    parting = 2.0 / 1.3 * passes_lost([10, 10, 20], 2, 97 / 3)
    now, later = (19 + 15 + 112) / 40, 2 * 100 / (40 + 2 * 97 / 3)
    assert policy._beside(batch) == pytest.approx((now + later) * of_each + parting)
    policy._undrafted = 0
    assert policy._beside(batch) == pytest.approx(later * of_each + parting)
    policy._seconds.prior = Prior(each=0.1)
    assert policy._beside(batch) == pytest.approx(parting)


def test_a_run_begins_with_prompts_that_are_unread() -> None:
    """A draft model has all tokens of a run's first rows to read. The round that reads them is not timed, those after it are."""
    target, policy, batch = fakes.fake_target(), Goodput(), Rows(3)
    World(lambda rows, length: 1.0 + 0.2 * length, 0.9, 3).run(60, policy)
    policy.start(harness.open_run(target, 3, 200, draft=fakes.fake_draft(target)))
    policy._seconds.prior = Prior(each=0.1, read=0.01)
    for sequence in batch:
        sequence.request.prompt_ids = [0] * 100
    batch.lengths, batch.limits = np.full(3, 101), np.array([140, 125, 132])
    curve = policy._curves[3]
    parting = passes_lost([39, 24, 31], 0, 97 / 3) / 1.3 * curve.plain
    assert policy._beside(batch) == pytest.approx(303 / 94 * curve.token / 3 * 0.1 * READ + parting)
    timed = []
    for _ in range(2):
        depth = policy.budget(batch).depth
        before = policy._seconds._measured[3, depth].seconds.copy()
        policy.observe(round_report(np.full(3, depth), depth))
        timed.append(policy._seconds._measured[3, depth].seconds != before)
    assert (depth > 0, timed) == (True, [False, True])


def test_plain_rounds_are_seldom_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plain decoding stays the best one round in three is timed at most, the last ones of each choice; drafts are always."""
    timed, usual = list[int](), RoundSeconds.add

    def add(self: RoundSeconds, rows: int, depth: int, *of: Any) -> None:
        timed.append(self._rounds)
        usual(self, rows, depth, *of)

    monkeypatch.setattr(RoundSeconds, "add", add)
    world = World(CURVES["compute-bound"][0], 0.75, 4)
    policy = world.run(30)
    assert timed == [*range(30)], "early rounds are all timed"
    said = list(world.said)
    world.run(1200, policy)
    said += world.said
    assert len(timed) < 1230 / 3
    assert {number for number, depth in enumerate(said) if depth} <= {*timed}
    assert 20 < np.diff(timed).max() <= QUIETEST


def test_costs_that_change_are_noticed() -> None:
    """Where drafts or plain rounds alone come to take twice their time, the other kind is soon in use: no pace of the machine is
    assumed that all rounds share."""

    def dear(rows: int, length: int) -> float:
        return 1.0 + 0.8 * (length > 0) + 0.05 * length

    def cheap(rows: int, length: int) -> float:
        return 1.0 + 0.1 * length

    for before, after in (
        (dear, lambda rows, length: 2.0 + 0.05 * length),
        (cheap, lambda rows, length: cheap(rows, length) + 1.5 * (length > 0)),
    ):
        for seed in range(2):
            world = World(before, 0.5, 4, seed)
            policy = world.run(900)
            assert world.ratio(200) > 0.95
            world.cost = after
            world.run(300, policy)
            assert world.ratio(100) > 0.94


def test_new_shapes_in_every_round_are_timed_after_a_while() -> None:
    """A device that meets a new shape in each round does not keep a choice for good."""
    policy, rows, new = Goodput(), Rows(4), iter(range(10**6))
    policy.clock, policy._new_shapes = (lambda: 0.1 * next(new)), (lambda: next(new))
    for _ in range(60):
        depth = policy.budget(rows).depth
        policy.observe(round_report(np.zeros(4, dtype=int), depth, rows))
    assert policy._plain_first == PLAIN_FIRST + NEW_SHAPES
    assert policy._seconds.longest > 0
