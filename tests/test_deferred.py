"""Deferred rounds: a round is launched before the host has read the one before it, and every token is what it is without that."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import numpy as np
import pytest
from planting import assert_survived, noting, opened, stepped, wanted
from specframe_std.acceptance.greedy import Greedy
from specframe_std.policies.goodput import Goodput
from specframe_testing import fakes, harness, zoo
from specframe_testing.device.counters import COUNTERS, WAIT
from specframe_testing.device.launches import refuse_waits
from transformers import PreTrainedModel
from turns import ByTurns

from specframe.contracts.drafts import Acceptance, Draft, Scores
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Batch, Sequence
from specframe.engine import loop
from specframe.model.run import Run
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)


def asked(count: int = 11) -> list[Request]:
    """Return ragged requests with limits of one token and more, some of which end by a stop id before."""
    prompts = harness.random_prompts([1 + 3 * place % 8 for place in range(count)], 61)
    return harness.requests(prompts, [1 + 5 * place % 17 for place in range(count)], {zoo.EOS, 3})


def piped(draft: Any = DRAFT, rounds: str = "deferred", **options: Any) -> Pipeline:
    """Return a pipeline whose rounds are deferred."""
    return harness.pipeline(TARGET, draft, rounds=rounds, **{"batch_size": 3, "draft_length": 3, **options})


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each round was launched before the one before it was landed."""
    return noting(monkeypatch, loop, "launch", lambda flight, *given: given[-1] is not None)


@pytest.mark.wide(but=["plain-3"])
@pytest.mark.parametrize(
    "batch_size", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "draft"])
def test_equals_reference(draft: Any, batch_size: int, ahead: list[bool]) -> None:
    """More prompts than rows, limits of one token and more, stop ids: the tokens are the reference decoder's."""
    pipe = piped(draft, batch_size=batch_size)
    harness.check(pipe, asked())
    assert sum(ahead) > pipe.report.rounds // 2
    ahead.clear()
    told = Told()
    harness.check(piped(None, batch_size=batch_size, observers=[told]), harness.requests([[5, 7, 6]] * batch_size, 6))
    assert len(ahead) == told.rounds, "no round is launched when all rows are at their limits"


class Grudging(Greedy):
    """Accepts nothing of some drafts, and notes whether drafts are the target's own tokens."""

    def start(self, run: Run) -> None:
        """Begin anew."""
        self.agreed: list[bool] = []

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return the target's own acceptance result, or less of it."""
        found = super().accept(batch, draft, scores)
        real_B = np.full(len(batch), draft.nodes) if draft.counts_B is None else draft.counts_B.numpy()
        real_B = real_B.clip(max=draft.depth)
        self.agreed += (found.accepted_B.numpy() >= real_B).tolist()
        return attrs.evolve(found, accepted_B=found.accepted_B * (batch.lengths_B % 3 > 0))


def assert_right(**options: Any) -> None:
    """Assert that a target drafts rightly for itself, whatever a rule accepts of that."""
    rule, limits = Grudging(), [40, 40, *[2, 3, 1, 5] * 6]  # prompts are read between rounds of other rows, too
    requests = harness.requests(harness.random_prompts([3 + place % 7 for place in range(26)], 61), limits)
    harness.check(piped(fakes.fake_target(), accept=rule, schedule="continuous,wait=0", **options), requests)
    assert rule.agreed
    assert all(rule.agreed)


@pytest.mark.wide(but=["(3,)", "(2, 0, 3)"])
@pytest.mark.parametrize("depths", [(3,), (2, 3, 0, 0, 4), (2, 0, 3), ((0, 3, 1), (2, 0, 4), 0)], ids=str)
def test_drafts_of_any_length(depths: Any) -> None:
    """Lengths that change, to none and back, leave the tokens; a draft model has read all of them: the target drafts rightly."""
    found = [
        piped(rounds=rounds, draft_length=ByTurns(*depths, deferred=True)) for rounds in ("deferred", "synchronous")
    ]
    deferred, synchronous = (harness.check(pipe, asked()) for pipe in found)
    if depths == (3,):
        assert [one.metrics for one in deferred] == [one.metrics for one in synchronous]
    assert_right(draft_length=ByTurns(*depths, deferred=True))


@pytest.mark.wide(but=["branch=2/2/1"])
@pytest.mark.parametrize("tree", ["branch=2/2/1", "tree=dynamic,nodes=6"])
def test_trees_of_a_draft_model(tree: str, ahead: list[bool]) -> None:
    """The tokens are the reference decoder's, and a draft model has read the accepted path: the target drafts rightly."""
    found = []
    for rounds in ("deferred", "synchronous"):
        results = harness.check(piped(rounds=rounds, drafter=f"model,{tree}"), asked())
        found.append([one.metrics.num_accepted_draft_tokens for one in results])
        assert any(ahead)
    assert found[0] == found[1]
    assert_right(drafter=f"model,{tree}")


@pytest.mark.wide
@pytest.mark.parametrize("tree", ["", ",branch=2/1/1", ",tree=dynamic,nodes=6"])
@pytest.mark.parametrize("drafter", ["early-exit,layers=2", "layer-skip", "window"])
def test_a_target_that_drafts_for_itself(drafter: str, tree: str, ahead: list[bool]) -> None:
    """Where drafts are made in the target's own cache, too, the tokens are its own, and as many are accepted."""
    target, found = zoo.build("qwen3", num_hidden_layers=4), []
    prompts = harness.random_prompts([5, 1, 12, 3, 8, 2, 30], zoo.VOCABULARY)
    requests = harness.requests(prompts, [9, 14, 3, 11, 2, 20, 25], {zoo.EOS, 3})
    for rounds in ("deferred", "synchronous"):
        pipe = harness.pipeline(target, drafter + tree, draft_length=3, batch_size=3, rounds=rounds)
        found.append([one.metrics.num_accepted_draft_tokens for one in harness.check(pipe, requests)])
        assert any(ahead)
    assert found[0] == found[1]


class Paid(Goodput):
    """Decides by the seconds that a round of each depth takes on a device, where one begins when the one before has ended."""

    def __init__(self) -> None:
        super().__init__(4)
        self.passed, self.clock = 0.0, lambda: self.passed
        self.timed: list[tuple[int, float]] = []

    def start(self, run: Run) -> None:
        """Note what is timed."""
        super().start(run)
        add = self._seconds.add
        self._seconds.add = lambda rows, depth, tokens, seconds, typical: (  # type: ignore[method-assign]
            self.timed.append((depth, seconds)),
            add(rows, depth, tokens, seconds, typical),
        )[1]

    def observe(self, report: RoundReport) -> None:
        """Let the time of the round pass."""
        self.passed += 1 + 0.25 * report.depth
        super().observe(report)


@pytest.mark.wide(but=["deferred"])
@pytest.mark.parametrize("rounds", ["deferred", "synchronous"])
def test_goodput_times_the_round_that_it_is_told_of(rounds: str, ahead: list[bool]) -> None:
    """Whether the next round's budget was asked for before or not, the seconds are those of the round with that depth."""
    policy = Paid()
    harness.check(piped(rounds=rounds, draft_length=policy), harness.requests([[5, 7, 6], [1], [9, 9]], 60))
    assert any(ahead) == (rounds == "deferred")
    assert {depth > 0 for depth, _ in policy.timed} == {True, False}
    assert all(seconds == 1 + 0.25 * depth for depth, seconds in policy.timed)
    assert len(policy.timed) > 15


@pytest.mark.wide
@pytest.mark.parametrize("tree", ["", ",branch=2/1"])
@pytest.mark.parametrize("rule", ["gumbel", "rejection", pytest.param("typical", marks=pytest.mark.slow)])
def test_sampled_tokens_are_those_of_synchronous_rounds(rule: str, tree: str, ahead: list[bool]) -> None:
    """A seed gives the same tokens and log-probabilities, which are computed of the logits of a round that has been landed late."""
    target, found = zoo.build("qwen3"), []
    for rounds in ("synchronous", "deferred"):
        assert not any(ahead)
        options: dict[str, Any] = {"accept": rule, "seed": 3, "batch_size": 3, "draft_length": 2, "rounds": rounds}
        options["drafter"] = f"model{tree}"
        pipe = harness.pipeline(target, zoo.good_draft(target), **options)
        how = Sampling(temperature=0.9, top_k=20, logprobs=1, samples=2)
        results = list(pipe.generate(harness.random_prompts((5, 1, 9), zoo.VOCABULARY), 9, sampling=how))
        found.append(
            [(one.index, one.sample, one.token_ids, np.round(one.logprobs or [], 3).tolist()) for one in results]
        )
    assert any(ahead)
    assert sorted(found[0]) == sorted(found[1])


class At:
    """A stop check that ends a sequence at a token of its own."""

    def __init__(self, place: int) -> None:
        self._place = place

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the place of that token."""
        place = prompt_length + self._place - (len(ids) - fresh)
        return place if 0 <= place < fresh else None


class Told(Observer):
    """Adds up what reports have of each request."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ended: set[int] = set()
        self.rounds = 0

    def round(self, report: RoundReport) -> None:
        """Take in a round; none has a sequence that ended before."""
        self.rounds += 1
        for row, sequence in enumerate(report.sequences):
            index = sequence.request.index
            assert index not in self.ended
            self.tokens.setdefault(index, []).extend(report.tokens[row])
        self.ended |= {sequence.request.index for sequence in report.finished}
        rows = {len(report.sequences), len(report.gained), len(report.draft.tokens_BN), len(report.detail.host.tokens)}
        assert rows == {len(report.logits_BTV if report.logits_BTV is not None else [])}


@pytest.mark.wide
@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "draft"])
def test_a_row_that_has_ended_leaves_no_trace(draft: Any) -> None:
    """Stops that the host finds end rows a round late: no report has that round, and other rows have their tokens."""
    requests = [attrs.evolve(one, stop_checks=(At(place % 4),)) for place, one in enumerate(asked())]
    told = Told()
    results = harness.check(piped(draft, observers=[told]), requests)
    assert told.tokens == {one.index: one.token_ids for one in results}
    counted = [one.metrics for one in results]
    assert counted == [one.metrics for one in harness.check(piped(draft, "synchronous"), requests)]


@pytest.mark.wide
@pytest.mark.parametrize("at", range(1, 7))
def test_aborts_arrivals_and_a_close_meet_a_round_under_way(at: int) -> None:
    """Between steps a request is aborted, and another comes: each ends once; what is closed then is idle."""
    requests = asked(5)
    engine, expected = opened(piped(), requests[:4]), wanted(TARGET, requests)
    for _ in range(at):
        engine.step()
    gone: Sequence | None = engine.abort(requests[at % 4].key)
    engine.add(requests[4])
    ended, errors = stepped(engine)
    assert (errors, gone is None or gone.finish_reason) == (0, gone is None or "abort")
    assert all(tokens == expected[index] for index, tokens in ended.items())
    assert 4 in ended
    if gone is not None:
        assert gone.token_ids == expected[gone.request.index][: len(gone.token_ids)]
        assert gone.request.index not in ended
    engine = opened(piped(), requests)
    for _ in range(at):
        engine.step()
    engine.close()
    assert engine.idle
    assert engine.step() is None


POINTS = [
    ("drafter", "", "propose"),
    ("drafter", "", "observe"),
    ("verifier", "", "score"),
    ("rule", "", "accept"),
    ("scheduler", "", "next_batch"),
    ("policy", "", "budget"),
    ("policy", "", "observe"),
    ("alignment", "", "commit"),
    ("alignment", "layout", "place"),
    ("kv", "open", "write"),
]


@pytest.mark.wide
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_errors_of_launches_and_landings(point: Any) -> None:
    """Wherever memory runs out nothing is lost; another error is reported after what has ended, and the others go on."""
    assert_survived(piped(batch_size=2), asked(5), point, range(1, 2))


KEPT: dict[str, dict[str, Any]] = {
    "synchronous": {"rounds": "synchronous"},
    "auto on a CPU": {"rounds": "auto"},
    "places that lengths do not tell": {"align": "eqspec"},
    "tokens looked up on the host": {"draft": None, "drafter": "prompt-lookup"},
    "drafts that are ended by what the host sees": {"draft_length": "implicit"},
    "invariants": {"check": True},
    "numerics": {"bitwise": True},
    "a bound of memory": {"memory": "1GB"},
    "pages": {"kv": "paged"},
}


@pytest.mark.wide(but=["tokens looked up on the host", "invariants"])
@pytest.mark.parametrize("kind", [*KEPT])
def test_rounds_that_need_the_last_ones_numbers(kind: str, ahead: list[bool]) -> None:
    """Strategies that need lengths on the host, and whoever asks for that, keep the synchronous round."""
    real = kind in ("numerics", "a bound of memory", "pages")
    target = zoo.build("qwen3") if real else TARGET
    given = {"draft_length": 3, "batch_size": 2, "rounds": "deferred", **KEPT[kind]}
    pipe = harness.pipeline(target, given.pop("draft", zoo.good_draft(target) if real else DRAFT), **given)
    harness.check(pipe, harness.requests(harness.random_prompts((5, 1, 3), target.config.vocab_size), 6))
    assert ahead
    assert not any(ahead)


def test_processors_that_look_at_tokens(ahead: list[bool]) -> None:
    """A row whose logits are shaped by its tokens keeps its batch to synchronous rounds as long as it lives."""
    target, prompts = zoo.build("qwen3"), harness.random_prompts((5, 3), zoo.VOCABULARY)
    for how, expected in ((Sampling(repetition_penalty=1.3), False), (Sampling(suppress_tokens=(5,)), True)):
        found = []
        for rounds in ("deferred", "synchronous"):
            ahead.clear()
            pipe = harness.pipeline(target, zoo.good_draft(target), draft_length=2, rounds=rounds)
            found.append([one.token_ids for one in pipe.generate(prompts, 8, sampling=how)])
            assert any(ahead) == (expected and rounds == "deferred")
        assert found[0] == found[1]


@pytest.mark.wide(but=["0-3-", "3-3-model,branch=2/1/1"])
@pytest.mark.parametrize(
    ("draft_length", "batch_size", "tree"), [(0, 3, ""), (3, 1, ""), (3, 3, ""), (3, 3, "model,branch=2/1/1")]
)
def test_the_device_is_never_idle(
    draft_length: int, batch_size: int, tree: str, on_sim: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default rounds are deferred on a device: no launch waits for it, and each wait has a round queued behind it."""
    target, ahead = zoo.build("qwen3"), refuse_waits(monkeypatch)
    draft: PreTrainedModel | None = zoo.good_draft(target) if draft_length else None
    options: dict[str, Any] = {"drafter": tree} if tree else {}
    pipe = harness.pipeline(target, draft, batch_size=batch_size, draft_length=draft_length or 1, **options)
    requests = harness.requests(harness.random_prompts([5] * batch_size, zoo.VOCABULARY), 24)
    harness.check(pipe, requests)
    with COUNTERS.watched(WAIT) as events:
        harness.decode(pipe, requests)
    waits = Counter[str]()
    for event, number in events.items():
        waits[event.what] += number
    assert ahead
    assert waits.pop("event") > 4
    assert sum(waits.values()) <= 2, "after the prompts, and after the last round"
