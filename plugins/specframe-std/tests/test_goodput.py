"""The draft-length policy ``goodput``, by a clock that costs set; and draft lengths that change from round to round."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from specframe_std.policies.estimates import Acceptance, RoundSeconds
from specframe_std.policies.goodput import Goodput
from specframe_testing import fakes, harness, zoo
from specframe_testing.conformance import DraftLengthPolicySuite
from turns import by_turns

from specframe.contracts.drafts import Budget
from specframe.observe.watch import Watcher
from specframe.reference import reference_decode


class TestGoodput(DraftLengthPolicySuite):
    """The draft-length policy ``goodput``, on the real clock: whatever it says, the tokens are the reference decoder's."""

    def make(self) -> str:
        return "goodput,maximum=4"


Cost = Callable[[int, int], float]
"""Seconds of a round by rows and draft length."""
ROUNDS = 300


def gain(rate: float, length: int) -> float:
    """Return the tokens a row gains in a round when each draft token stands with the probability ``rate``."""
    return 1 + sum(rate**place for place in range(1, length + 1))


class World:
    """Rounds whose time and acceptance are known, with 5 percent of noise and one round in 300 held up five times as long.

    ``rate`` is a probability, or one for each round. Taking up drafting costs 0.2 percent of a round for each token missed.
    """

    def __init__(self, cost: Cost, rate: float | Callable[[int], float], rows: int, seed: int = 0) -> None:
        self.cost, self.rows, self.seed = cost, rows, seed
        self.rate: Callable[[int], float] = rate if callable(rate) else lambda number: rate

    def run(self, rounds: int = ROUNDS, policy: Goodput | None = None) -> Goodput:
        """Let a policy decide for so many rounds and return it; note the draft lengths and their worth without the noise."""
        noise, self.now, missed = np.random.default_rng(self.seed), 0.0, 0
        policy = policy or Goodput()
        policy.clock = lambda: self.now
        self.said: list[int] = []
        self.seconds: list[float] = []
        self.gains: list[float] = []
        for number in range(rounds):
            length = policy.budget([None] * self.rows).depth  # type: ignore[arg-type]
            seconds = self.cost(self.rows, length) + (0.002 * missed * self.cost(self.rows, 0) if length else 0)
            missed = 0 if length else missed + 1
            self.now += seconds * float(np.exp(noise.normal(0, 0.05))) * (5 if noise.random() < 1 / 300 else 1)
            stood = (noise.random((self.rows, length)) < self.rate(number)).cumprod(1).sum(1)
            policy.observe(round_report(stood, length))
            self.said.append(length)
            self.seconds.append(seconds)
            self.gains.append(gain(self.rate(number), length))
        return policy

    def ratio(self, start: int = 0) -> float:
        """Return tokens per second from round ``start`` on, over those of the best fixed length, 0 included."""
        numbers = range(start, len(self.said))
        fixed = [
            sum(gain(self.rate(number), length) for number in numbers) / (len(numbers) * self.cost(self.rows, length))
            for length in range(9)
        ]
        return sum(self.gains[start:]) / sum(self.seconds[start:]) / max(fixed)


def round_report(accepted: np.ndarray, length: int) -> Any:
    """Return what a policy is told of a round in which no row came near its end."""
    sequences = [types.SimpleNamespace(limit=10**6, finished=False) for _ in accepted]
    return types.SimpleNamespace(
        sequences=sequences,
        lengths=np.full(len(accepted), 10),
        accepted=accepted,
        drafted=np.full(len(accepted), length),
        depth=length,
    )


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


@pytest.mark.parametrize("rows", [4, 16])
@pytest.mark.parametrize("curve", CURVES)
def test_near_the_best_fixed_length(curve: str, rows: int) -> None:
    """Over 300 rounds, learning included, it is within 3 percent of the better of plain decoding and the best fixed length."""
    worlds = played(curve, rows)
    assert sum(world.ratio() for world in worlds) / len(worlds) >= 0.97
    assert sum(world.ratio(100) for world in worlds) / len(worlds) >= 0.98
    assert min(world.ratio() for world in worlds) >= 0.93


@pytest.mark.parametrize("curve", CURVES)
def test_a_single_row(curve: str) -> None:
    """With one row a round tells little of acceptance: within 3 percent in most runs."""
    assert sorted(world.ratio() for world in played(curve, 1))[2] >= 0.965


@pytest.mark.parametrize("curve", CURVES)
def test_changes_are_few(curve: str) -> None:
    """After 100 rounds it changes in one round of four at most, trials included, and seldom where one is far ahead."""
    for world in played(curve, 4):
        assert len(world.said) > 200
        changes = sum(one != other for one, other in zip(world.said[100:], world.said[101:], strict=False))
        assert changes <= (6 if "never" in curve or "compute" in curve else 50)


@pytest.mark.parametrize(
    ("costs", "rate"), by_turns(2, [(1, 0.35, 0.23), (4, 0.2, 0.3), (8, 0.2, 0.32), (32, 0.1, 0.4)], [0.35, 0.6, 0.8])
)
def test_short_runs(costs: tuple[int, float, float], rate: float) -> None:
    """A run of 80 rounds, or 240 of one row, reaches 95 percent of the best fixed length, plain decoding included; the next 97.

    Costs are shares of a plain round, those of a small model on a CPU: of drafting at all, and of each draft token.
    """
    rows, drafting, token = costs
    rounds = 80 if rows > 1 else 240
    first, later = [], []
    for seed in range(12):
        world = World(lambda rows, length: 1 + drafting * (length > 0) + token * length, rate, rows, seed)
        policy = world.run(rounds)
        first.append(world.ratio())
        world.run(rounds, policy)
        later.append(world.ratio())
    assert np.mean(first) >= 0.95
    assert np.mean(later) >= 0.97


def test_acceptance_that_drifts() -> None:
    """Where drafts become good or bad in the middle of a run, it beats every fixed length."""
    for before, after in ((0.25, 0.9), (0.9, 0.2)):
        world = World(lambda rows, length: 1.0 + 0.25 * length, lambda n, b=before, a=after: b if n < 300 else a, 4)
        world.run(900)
        assert world.ratio() > 1.02
        assert world.ratio(700) > 0.95


def test_trials_cost_little() -> None:
    """Where plain decoding is best by far, all that is not plain decoding costs 4 percent of 300 rounds and 2 of 3000."""
    for rounds, share in ((300, 0.04), (3000, 0.02)):
        world = World(CURVES["compute-bound"][0], 0.75, 4)
        world.run(rounds)
        assert world.ratio() >= 1 - share
        assert 0 < sum(length > 0 for length in world.said) < 0.1 * rounds


def test_one_slow_round_changes_nothing() -> None:
    """A first round that takes a hundred times as long, as when something compiles, does not decide what is used."""

    def cost(rows: int, length: int, seen: set[int]) -> float:
        first = length not in seen
        seen.add(length)
        return (1.0 + 0.1 * length) * (100 if first else 1)

    seen: set[int] = set()
    world = World(lambda rows, length: cost(rows, length, seen), 0.8, 4)
    world.run()
    assert sorted(world.said[150:])[75] >= 4


def test_the_same_clock_gives_the_same_lengths() -> None:
    """What it says follows from times and acceptance alone."""
    one, other = (World(*CURVES["memory-bound"], 4, seed=3) for _ in range(2))
    one.run()
    other.run()
    assert one.said == other.said
    assert len(set(one.said)) > 3


def test_batches_that_shrink() -> None:
    """Where plain decoding is best for many rows and drafting for few, a batch that shrinks ends up drafting."""

    def cost(rows: int, length: int) -> float:
        return max(1.0, rows * (length + 1) / 16) + 0.08 * length

    world = World(cost, 0.75, 16)
    now, noise = 0.0, np.random.default_rng(1)
    policy, used = Goodput(), {}
    policy.clock = lambda: now
    for rows in [*[16] * 100, *[12] * 30, *[8] * 30, *[4] * 40, *[2] * 40, *[1] * 40]:
        length = policy.budget([None] * rows).depth  # type: ignore[arg-type]
        now += world.cost(rows, length)
        policy.observe(round_report((noise.random((rows, length)) < 0.75).cumprod(1).sum(1), length))
        used.setdefault(rows, []).append(length)
    assert np.mean(used[16][20:]) < 0.5
    assert np.mean(used[4]) > 1.5
    assert np.mean(used[1]) > 1.5


def test_time_between_rounds_says_nothing() -> None:
    """Time that passes between two rounds of the policy, such as the reading of prompts, is not counted."""
    now = [0.0]
    policy = Goodput()
    policy.clock = lambda: now[0]
    for number in range(120):
        length = policy.budget([None] * 4).depth  # type: ignore[arg-type]
        now[0] += 1.0 + 0.1 * length
        policy.observe(round_report(np.full(4, length), length))
        now[0] += 1000.0 * (number % 7 == 0)
    assert length == policy.maximum.depth


def test_seconds_of_what_was_not_measured() -> None:
    """Lengths and batch sizes in between and beyond follow from those measured; the first round of each pair does not count."""
    seconds = RoundSeconds(8)
    for rows, length in ((8, 0), (8, 2), (8, 6), (4, 2)):
        seconds.add(rows, length, 1e6)
        for _ in range(5):
            seconds.add(rows, length, 1 + 0.05 * rows + 0.1 * length)
    (at_8, off_8), (at_4, off_4) = seconds.estimate(8), seconds.estimate(4)
    assert np.allclose(at_8, 1.4 + 0.1 * np.arange(9), rtol=0.1)
    assert np.allclose(at_4, 1.2 + 0.1 * np.arange(9), rtol=0.12)
    assert off_8[[0, 2, 6]].max() < off_8[[1, 3, 5, 7, 8]].min(), "what was measured is more certain than what was not"
    assert (off_4[[0, 6, 8]] > off_8[[0, 6, 8]]).all(), "another batch size is less certain"


def test_what_is_not_used_becomes_uncertain() -> None:
    """A draft length that was measured long ago is as good as one that was not."""
    seconds = RoundSeconds(4)
    for _ in range(10):
        seconds.add(4, 3, 2.0)
    for number in (1, 3000):
        for _ in range(number):
            seconds.add(4, 0, 1.0)
        _, off = seconds.estimate(4)
        assert (off[3] < 0.2) == (number == 1)


def test_what_is_cut_at_an_end_is_not_a_rejection() -> None:
    """Where a row ends, tokens that it could not take say nothing of the draft; that row gains no more than it had to come."""
    acceptance = Acceptance(4)
    for _ in range(100):
        report = round_report(np.array([4, 1, 2]), 4)
        report.sequences[1] = types.SimpleNamespace(limit=12, finished=False)  # room for one draft token
        report.sequences[2] = types.SimpleNamespace(limit=10**6, finished=True)  # stopped by what it said
        acceptance.add(report)
    assert acceptance.gains().tolist() == pytest.approx([1, 2, *((k + 1 + 2 + k + 1) / 3 for k in (2, 3, 4))], abs=0.05)
    assert Acceptance(4).gains().tolist() == pytest.approx([1, 1.6, 1.96, 2.176, 2.3056])
    assert (Acceptance(4).gains(1.0)[1:] > Acceptance(4).gains()[1:]).all()


def test_a_maximum_below_one_is_refused() -> None:
    """The option says what it accepts."""
    with pytest.raises(ValueError, match="maximum: expected a whole number from 1 to 64, got 0"):
        Goodput(0)


def test_by_name_in_a_pipeline() -> None:
    """It is chosen by name, with its option, and what it learnt stays with the pipeline."""
    target = fakes.fake_target()
    pipe = harness.pipeline(target, fakes.fake_draft(target), draft_length="goodput,maximum=3", batch_size=2)
    asked = harness.requests(harness.random_prompts((3, 5, 1), 61), 20)
    for _ in range(2):
        harness.check(pipe, asked)
    assert pipe.composition.policy.maximum == Budget(3)


class Scripted:
    """Draft lengths from 0 to 4 in no order; a fifth of the rounds, often several in a row, draft nothing."""

    needs = offers = frozenset()
    maximum = Budget(4)

    def __init__(self) -> None:
        self._lengths = np.random.default_rng(2).choice([0, 0, 0, 1, 2, 3, 4, 4], size=1000).tolist()

    def budget(self, batch: Any) -> Budget:
        """Return the next length."""
        return Budget(int(self._lengths.pop()))

    def observe(self, report: Any) -> None:
        """Nothing to learn."""


ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")


@pytest.mark.parametrize(
    ("align", "schedule"), by_turns(3, ALIGNMENTS, ("fixed", "continuous", "same-length,window=6"))
)
def test_lengths_that_change_are_exact(align: str, schedule: str) -> None:
    """Draft lengths that go up, down and to nothing give the reference decoder's tokens, on fakes and on a real architecture."""
    fake, real = fakes.fake_target(), zoo.build("qwen3")
    for target, draft in ((fake, fakes.fake_draft(fake)), (real, zoo.good_draft(real))):
        asked = harness.requests(harness.random_prompts((7, 1, 12, 3, 7), 61, seed=4), [20, 9, 16, 3, 20], {5})
        harness.check(
            harness.pipeline(target, draft, align=align, schedule=schedule, batch_size=3, draft_length=Scripted()),
            asked,
        )


class Drafts(Watcher):
    """An observer that keeps what was drafted for each row, with the number of the row's tokens it followed."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, list[int]]] = []

    def round(self, report: Any) -> None:
        """Note the draft of each row."""
        for sequence, length, tokens in zip(
            report.sequences, report.lengths.tolist(), report.draft.tokens_BN.tolist(), strict=True
        ):
            self.seen.append((sequence.request.index, length, tokens))


@pytest.mark.parametrize("align", ALIGNMENTS)
def test_the_draft_model_forgets_what_was_rejected(align: str) -> None:
    """After rounds without a draft the draft model goes on from the row's own tokens, not from those rejected before."""
    target, drafts = fakes.fake_target(), Drafts()
    draft = fakes.fake_draft(target, slip_every=2)
    asked = harness.requests(harness.random_prompts((7, 1, 12, 3), 61, seed=4), 24)
    pipe = harness.pipeline(target, draft, align=align, batch_size=3, draft_length=Scripted(), observers=[drafts])
    results = harness.check(pipe, asked)
    rows = [[*request.prompt_ids, *result.token_ids] for request, result in zip(asked, results, strict=True)]
    proposed = [(rows[index][:length], tokens) for index, length, tokens in drafts.seen if tokens]
    assert len(proposed) > 20
    assert all(reference_decode(draft, before, len(tokens)) == tokens for before, tokens in proposed)
