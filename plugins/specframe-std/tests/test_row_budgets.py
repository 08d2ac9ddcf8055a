"""Budgets of single rows: ``explicit`` and ``implicit``, what they are estimated from, and drafts that a stopping rule ends."""

from __future__ import annotations

import types
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from policy_worlds import Rows, World, round_report
from products import crossed
from specframe_std.policies.acceptance_rates import AcceptanceRates
from specframe_std.policies.confidence import Calibration, ConfidenceStop, Evidence
from specframe_std.policies.fixed_length import FixedLength
from specframe_std.policies.goodput import DepthChoice, DepthPlans
from specframe_std.policies.levels import Levels
from specframe_std.policies.round_seconds import Curve, RoundSeconds
from specframe_testing import fakes, harness, zoo
from specframe_testing.conformance import DraftLengthPolicySuite

from specframe.contracts.drafts import Budget
from specframe.errors import ContractError


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestExplicit(DraftLengthPolicySuite):
    """The draft-length policy ``explicit``."""

    def make(self) -> str:
        return "explicit,maximum=4"


def test_what_is_cut_at_an_end_is_not_a_rejection() -> None:
    """Where a row ends, tokens that it could not take say nothing of the draft."""
    acceptance = AcceptanceRates(Levels(Budget(4)))
    for _ in range(100):
        report = round_report(np.array([4, 1, 2]), 4)
        report.sequences[1].limit = 12  # room for one draft token
        report.sequences[2].finished = True  # stopped by what it said
        acceptance.add(report)
    assert acceptance.rates().tolist() == pytest.approx([1, 1, 1, 1], abs=0.03)
    assert AcceptanceRates(Levels(Budget(4))).rates().tolist() == [0.6] * 4
    assert (AcceptanceRates(Levels(Budget(4))).rates(1.0) > AcceptanceRates(Levels(Budget(4))).rates()).all()


def ended_rows(acceptance: AcceptanceRates, rates_R: np.ndarray, seed: int, rounds: int = 12) -> None:
    """Have rows of these rates draft three tokens a round, one row after the other, and end."""
    noise = np.random.default_rng(seed)
    for rate in rates_R:
        row = Rows(1)
        for number in range(rounds):
            row.sequences[0].finished = number == rounds - 1
            acceptance.add(round_report((noise.random((1, 3)) < rate).cumprod(1).sum(1), 3, row))


@pytest.mark.wide(but=["8"])
@pytest.mark.parametrize("belief", [8, 20, 40])
def test_rows_that_have_ended_tell_how_much_rows_differ(belief: int) -> None:
    """Of rows of a beta distribution the belief is about its tokens, rather more, though a batch has one row."""
    found = []
    for seed in range(20):
        acceptance = AcceptanceRates(Levels(Budget(3)))
        rates_R = np.random.default_rng(1000 + seed).beta(0.75 * belief, 0.25 * belief, 120)
        ended_rows(acceptance, rates_R, seed)
        rows = acceptance._rows.rows(Rows(1).sequences)
        found.append(acceptance._belief(acceptance._rows.counts_R3K[rows], acceptance.rates()))
    assert 0.8 * belief < np.median(found) < 1.65 * belief, found


def test_bad_luck_of_one_row_is_not_its_quality() -> None:
    """A row whose first drafts fail, alone in its batch, is taken to be like others that are alike, and not like unlike ones."""
    alike, unlike = AcceptanceRates(Levels(Budget(3))), AcceptanceRates(Levels(Budget(3)))
    ended_rows(alike, np.full(80, 0.75), 0)
    ended_rows(unlike, np.array([0.97, 0.5, 0.97, 0.56] * 20), 0)
    kept = []
    for acceptance in (alike, unlike):
        row, usual = Rows(1), acceptance.rates()
        for stood in (0, 1, 0, 1):
            acceptance.add(round_report(np.array([stood]), 3, row))
        kept.append(float((acceptance.rates_of(row.sequences)[0] / usual).mean()))
    assert kept[0] > 0.93, kept
    assert kept[1] < 0.82, kept


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestImplicit(DraftLengthPolicySuite):
    """The draft-length policy ``implicit``, of a drafter that is always sure of itself, rightly or not."""

    host_waits = 5  # it looks at the distribution of each place

    def make(self) -> str:
        return "implicit,maximum=4"


ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("align", "policy"),
    crossed(ALIGNMENTS, ["implicit,maximum=5,least=0.3", "explicit,maximum=5,least=0.3", "goodput,maximum=5"]),
)
def test_unequal_drafts_are_exact(align: str, policy: str) -> None:
    """Rows that draft unequal numbers of tokens by a real model decode as the reference does, whatever the alignment."""
    target, feeds = zoo.build("qwen3"), harness.Feeds()
    draft = zoo.good_draft(target, noise=0.05)
    asked = harness.requests(harness.random_prompts((7, 1, 12, 3, 7), zoo.VOCABULARY, seed=4), [20, 9, 16, 3, 20], {5})
    options = {"batch_size": 3, "draft_length": policy, "observers": [feeds], "check": True}
    pipe = harness.pipeline(target, draft, align=align, **options)
    for _ in range(2):
        harness.check(pipe, asked)
    if policy.startswith("implicit"):
        rounds = [one.report for one in feeds.decoding]
        assert sum(0 < one.depth < 5 for one in rounds) > 3
        assert sum(len({*one.drafted.tolist()}) > 1 for one in rounds) > 3


@attrs.define(eq=False)
class Script:
    """A stopping rule that lets row r draft as many tokens as its script says."""

    lengths: list[int]
    asked: list[tuple[int, int]] = attrs.Factory(list)

    def goes_on(self, batch: Any, place: int, logits_BV: torch.Tensor) -> np.ndarray:
        """Note the place, and the rows asked about."""
        self.asked.append((place, len(batch)))
        return np.array([self.lengths[one.request.index % len(self.lengths)] > place for one in batch.sequences])


class Stopping(FixedLength):
    """A policy whose budgets have a stopping rule."""

    needs, offers = frozenset({"stops"}), frozenset[str]()

    def __init__(self, make: Any) -> None:
        super().__init__(4)
        self._make, self.rules = make, list[Any]()

    def budget(self, batch: Any) -> Budget:
        """Return the budget with a rule of its own."""
        self.rules.append(self._make())
        return Budget(4, stopping=self.rules[-1])


def drafted(feeds: harness.Feeds) -> list[dict[int, int]]:
    """Return how many tokens each row drafted in each round, by its request's index."""
    rounds = [one.report for one in feeds.decoding]
    rows = [zip(one.sequences, one.drafted.tolist(), strict=True) for one in rounds]
    return [{sequence.request.index: count for sequence, count in pairs} for pairs in rows]


@pytest.mark.wide
@pytest.mark.parametrize("drafter", ["model", "early-exit,layers=1", "layer-skip,skip=attn:0"])
def test_a_stopping_rule_ends_each_rows_draft(drafter: str) -> None:
    """Rows draft as many tokens as their script says, the draft ends with the last of them, and tokens are the reference's."""
    target, feeds = zoo.build("llama"), harness.Feeds()
    policy = Stopping(lambda: Script([2, 0, 3]))
    options = {"batch_size": 3, "draft_length": policy, "observers": [feeds], "check": True}
    model = zoo.good_draft(target, noise=0.05) if drafter == "model" else drafter
    pipe = harness.pipeline(target, model, **options)
    asked = harness.requests(harness.random_prompts((7, 1, 12), zoo.VOCABULARY, seed=4), 16)
    harness.check(pipe, asked)
    seen = drafted(feeds)
    assert {0: 2, 1: 0, 2: 3} in seen
    assert all(most <= [2, 0, 3][index] for one in seen for index, most in one.items())
    whole = [rule.asked for rule in policy.rules if len(rule.asked) > 3]
    assert [(place, 3) for place in range(4)] in whole, "once for each place, and once more than the longest has"


def test_a_row_that_has_ended_stays_ended() -> None:
    """Whatever the rule says of a row later in the round, it drafts no more; the others go on."""

    class Wavering(Script):
        """Ends the first row at its second token, and would have it go on at its third."""

        def goes_on(self, batch: Any, place: int, logits_BV: torch.Tensor) -> np.ndarray:
            return np.array([place != 1 or one.request.index > 0 for one in batch.sequences])

    target, feeds = zoo.build("llama"), harness.Feeds()
    options = {"batch_size": 2, "draft_length": Stopping(lambda: Wavering([])), "observers": [feeds]}
    pipe = harness.pipeline(target, zoo.good_draft(target, noise=0.05), **options)
    harness.check(pipe, harness.requests(harness.random_prompts((7, 3), zoo.VOCABULARY, seed=4), 16))
    seen = drafted(feeds)
    assert {0: 1, 1: 4} in seen
    assert max(one.get(0, 0) for one in seen) == 1


def test_each_place_has_a_curve_of_its_own() -> None:
    """A token's acceptance probability is the product of its place's curve and those of the places before; rows add up."""
    rows = [types.SimpleNamespace(request=types.SimpleNamespace(key=(number, 0))) for number in range(2)]
    batch: Any = types.SimpleNamespace(sequences=rows)
    weights_KF = np.array([[2.0, 0, 0], [0.0, 0, 0], [2.0, 0, 0]])  # 0.88, 0.5, 0.88: 0.88, 0.44, 0.39
    logits_BV = torch.zeros(2, 5)

    def lengths(least: float, together: float = 0.0) -> list[bool]:
        stop = ConfidenceStop(weights_KF, least, {(0, 0): 0, (1, 0): 1}, together=together)
        return [bool(stop.goes_on(batch, place, logits_BV).all()) for place in range(3)]

    assert lengths(0.6) == [True, False, False]
    assert lengths(0.42) == [True, True, False]
    assert lengths(0.3) == [True, True, True]
    assert lengths(0.3, together=0.8) == [True, True, False], "two rows of 0.39 do not pay for a step"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "got None"),
        ([True, True], r"got \[True, True\]"),
        (np.ones(3, dtype=bool), r"got one of bool, \(3,\)"),
        (np.ones(2), r"got one of float64, \(2,\)"),
        (torch.ones(2, dtype=torch.bool), "got a tensor of shape"),
    ],
)
def test_a_wrong_answer_of_a_stopping_rule_names_the_policy(answer: Any, words: str) -> None:
    """What is no array of truth values is refused in one sentence, which names the policy and not the drafter."""
    rule = types.SimpleNamespace(goes_on=lambda batch, place, logits_BV: answer)
    target = fakes.fake_target()
    pipe = harness.pipeline(target, fakes.fake_draft(target), batch_size=2, draft_length=Stopping(lambda: rule))
    expected = (
        r"policy Stopping: the stopping rule's goes_on\(\) must return an array of numpy of bool, \(B,\) = \(2,\), "
    )
    with pytest.raises(ContractError, match=expected + words):
        harness.check(pipe, harness.requests(harness.random_prompts((7, 3), 61, seed=4), 16))


@pytest.mark.wide
def test_the_calibration_finds_the_curve() -> None:
    """Drafters that are too sure of themselves, and the more so at later places, are found out: predictions meet acceptance."""
    calibration, noise = Calibration(3), np.random.default_rng(0)
    true_KF = np.array([[-1.0, 0.6, 0.0], [-2.0, 0.5, -0.3], [0.5, 1.0, 0.0]])
    for _ in range(400):
        odds_BK, entropy_BK = noise.normal(1, 2, (8, 3)), noise.random((8, 3)) * 2
        features_BKF = np.stack([np.ones((8, 3)), odds_BK, entropy_BK], -1)
        stood_BK = (noise.random((8, 3)) < 1 / (1 + np.exp(-(features_BKF * true_KF).sum(-1)))).cumprod(1).astype(bool)
        tested_BK = np.concatenate([np.ones((8, 1), dtype=bool), stood_BK[:, :-1]], axis=1)
        calibration.add(Evidence(features_BKF, tested_BK, stood_BK))
    assert np.abs(calibration.weights_KF - true_KF).max() < 0.35
    calibration.bins *= 0
    for _ in range(800):
        odds_BK, entropy_BK = noise.normal(1, 2, (8, 1)), noise.random((8, 1)) * 2
        features_BKF = np.stack([np.ones((8, 1)), odds_BK, entropy_BK], -1)
        stood_BK = noise.random((8, 1)) < 1 / (1 + np.exp(-(features_BKF * true_KF[:1]).sum(-1)))
        calibration.add(Evidence(features_BKF, np.ones((8, 1), dtype=bool), stood_BK))
    predicted, stood, count = calibration.bins.T
    off = np.abs(predicted - stood).sum() / count.sum()
    assert off < 0.05, "the expected calibration error"


def test_seconds_of_what_was_not_measured() -> None:
    """Depths and batch sizes in between and beyond follow from those measured; the first round of each pair does not count."""
    seconds, depths = RoundSeconds(Levels(Budget(8))), np.arange(9)
    for rows, depth in ((8, 0), (8, 2), (8, 6), (4, 2)):
        seconds.add(rows, depth, rows * (depth + 1), 1e6)
        for _ in range(5):
            seconds.add(rows, depth, rows * (depth + 1), 1 + 0.05 * rows + 0.1 * depth)
    at_8, at_4 = seconds.curve(8), seconds.curve(4)
    assert np.allclose(at_8.seconds(depths, depths), 1.4 + 0.1 * depths, rtol=0.1)
    assert np.allclose(at_4.seconds(depths, depths), 1.2 + 0.1 * depths, rtol=0.12)
    off_8, off_4 = at_8.deviations(depths, depths), at_4.deviations(depths, depths)
    assert off_8[[0, 2, 6]].max() < off_8[[1, 3, 5, 7, 8]].min(), "what was measured is more certain than what was not"
    assert (off_4[[0, 6, 8]] > off_8[[0, 6, 8]]).all(), "another batch size is less certain"


def test_what_is_not_used_becomes_uncertain() -> None:
    """A depth that was measured long ago is as good as one that was not."""
    seconds = RoundSeconds(Levels(Budget(4)))
    for _ in range(10):
        seconds.add(4, 3, 16, 2.0)
    for number in (1, 3000):
        for _ in range(number):
            seconds.add(4, 0, 4, 1.0)
        off = seconds.curve(4).deviations(np.array([3]), np.array([3]))
        assert (off[0] < 0.2) == (number == 1)
    seconds._rounds += 10**7  # a server's
    assert np.isfinite(seconds.curve(4).seconds(np.arange(5), np.arange(5))).all()


def test_one_slow_round_moves_no_estimate() -> None:
    """A round that took ten times as long among usual ones changes the seconds of no depth."""
    one, other = RoundSeconds(Levels(Budget(4))), RoundSeconds(Levels(Budget(4)))
    for number in range(9):
        for depth in (0, 4):
            one.add(4, depth, 4 * (depth + 1), 1 + 0.1 * depth)
            other.add(4, depth, 4 * (depth + 1), (1 + 0.1 * depth) * (10 if number in (3, 6) else 1))
    depths = np.arange(5)
    assert one.curve(4).seconds(depths, depths).tolist() == pytest.approx(
        other.curve(4).seconds(depths, depths).tolist()
    )


def curve(step: float, token: float) -> Curve:
    """Return a cost of 1 for a plain round, and so much for each step and for each token of every row."""
    return Curve(np.array([1, step, token, 0, *[0.0] * 9]), np.zeros((13, 13)), 0.0)


def test_rounds_counted_at_once_say_what_each_says_by_itself() -> None:
    """Rounds of changing rows, some without a draft, some at a row's limit: counted late they are worth as much as at once."""
    draw = np.random.default_rng(5)
    at_once = AcceptanceRates(Levels(Budget(4)))
    late = AcceptanceRates(Levels(Budget(4)))
    batches = [Rows(3), Rows(2)]
    batches[0].sequences[1].limit = 12  # of the row's 10 tokens: one more can be accepted
    for number in range(12):
        rows, depth = batches[number // 4 % 2], number % 3 * 2
        drafted = draw.integers(0, depth + 1, len(rows))
        report = round_report(np.minimum(draw.integers(0, 5, len(rows)), drafted), depth, rows, drafted)
        at_once.add(report)
        at_once.rates()
        late.add(report)
    assert late.rates() == pytest.approx(at_once.rates(), rel=1e-12)
    for rows in batches:
        assert late.rates_of(rows.sequences).ravel() == pytest.approx(
            at_once.rates_of(rows.sequences).ravel(), rel=1e-12
        )


def test_plans_of_a_rectangle_take_all_of_it() -> None:
    """Where forwards do not leave out padding, every row drafts as deep as the deepest: its places are computed anyway."""
    stands_BK = np.array([[0.9, 0.8, 0.7], [0.5, 0.2, 0.1]])
    plans = DepthPlans.best(stands_BK, curve(0.05, 0.2), np.zeros(4), Levels(Budget(3)))
    assert [(one.depth, one.depths_B) for one in map(plans.budget, range(4))] == [
        (0, None),
        (1, None),
        (2, None),
        (3, None),
    ]
    assert plans.tokens_C.tolist() == [0, 1, 2, 3]


def test_a_plan_of_a_rectangle_holds_for_other_rows() -> None:
    """Rows without parts of their own need no plan of their own: other ones of the same number take the plan that there is."""
    policy = World(lambda rows, length: 0.01 * (1 + 0.02 * length), 0.8, 4).run(60)
    policy.budget(Rows(3))
    policy.budget(Rows(4))
    policy._plan(Rows(4))
    policy._choices[4] = policy._choices[3] = DepthChoice(3, left=5)
    before = policy._plans
    assert policy.budget(Rows(4)).depth == 3
    assert policy._plans is before
    assert policy.budget(Rows(3)).depth == 3
    assert policy._plans is not before, "rows of another number may have parts of their own"
    policy._leaves_out, policy._fits = lambda places, tokens: tokens < places, {}
    near_its_end = Rows(3)
    near_its_end.limits[0] = 12
    policy._plan(near_its_end)
    before = policy._plans
    assert policy.budget(near_its_end).depths_B.tolist() == [1, 3, 3]
    assert policy._plans is not before, "a row's part follows what is known of the row in each round"
