"""Rounds that are captured whole: a graph each, and every token is what it is without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from planting import Acting, Point, assert_survived, noting, opened, stepped, wanted
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.graphs import captured_rounds
from specframe_testing import fakes, harness, suite_device, zoo
from specframe_testing.device.captured_graphs import SimRecording
from specframe_testing.device.counters import COUNTERS, LAUNCH
from test_deferred import At, Told, asked
from turns import ByTurns

from specframe import Pipeline
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.contracts.round import Batch
from specframe.errors import SpecframeWarning
from specframe.text.sampling import Sampling

pytestmark = pytest.mark.filterwarnings("error:whole rounds are not captured")
TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)


@pytest.fixture(autouse=True)
def _soon(on_sim: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pipelines decode on the simulated device, where a round is captured when its kind comes up again."""
    monkeypatch.setattr(captured_rounds, "ROUNDS", 1)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The kinds of the rounds that were replayed or captured."""
    rounds = captured_rounds.CapturedRounds
    return noting(monkeypatch, rounds, "decoded", lambda flight, self, kind, *_: kind if flight else None)


def piped(draft: Any = DRAFT, **options: Any) -> Pipeline:
    """Return a pipeline of fakes."""
    return harness.pipeline(TARGET, draft, **{"batch_size": 3, "draft_length": 3, **options})


NEVER = 10**9
"""Times that a round is decoded before it is captured, where none is to be."""


@pytest.mark.wide(but=["draft-1", "plain-8"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "draft"])
def test_equals_reference(draft: Any, batch_size: int, replayed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come, leave, stop and reach limits of one token and more: tokens, reports and forwards are as without."""
    requests = [attrs.evolve(one, stop_checks=(At(place % 9 + 2),)) for place, one in enumerate(asked(24))]
    found = []
    for times in (1, NEVER):
        monkeypatch.setattr(captured_rounds, "ROUNDS", times)
        told, feeds = Told(), harness.Feeds()
        pipe = piped(draft, batch_size=batch_size, observers=[told, feeds])
        results = harness.check(pipe, requests)
        fed = [(one.target, one.draft) for one in feeds.rounds]
        found.append((told.tokens, [one.metrics for one in results], fed, pipe.report.padding_share))
    assert found[0] == found[1]
    assert len(replayed) > 4


@pytest.mark.wide(but=["gumbel"])
@pytest.mark.parametrize("rule", ["gumbel", "rejection"])
def test_sampled_tokens(rule: str, replayed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers are those of rows' streams and places, and log-probabilities those of the round."""
    target, found = zoo.build("qwen3"), []
    monkeypatch.setattr(captured_rounds, "ROUNDS", NEVER)
    how = [
        Sampling(temperature=0.9, top_k=20, logprobs=1),
        Sampling(temperature=1.3),
        Sampling(),
        Sampling(temperature=1.3),
    ]
    for rounds in ("synchronous", "synchronous", "deferred"):
        options: dict[str, Any] = {"accept": rule, "seed": 3, "batch_size": 3, "draft_length": 2, "rounds": rounds}
        options["schedule"] = "continuous,mixed=off"  # so that rounds of another row are of the same kind
        pipe = harness.pipeline(target, zoo.good_draft(target), **options)
        prompts = harness.random_prompts((5, 1, 9, 2), zoo.VOCABULARY)
        results = list(pipe.generate(prompts, 12, sampling=how))
        found.append([(one.token_ids, [round(number, 3) for number in one.logprobs or []]) for one in results])
        assert bool(replayed) == (len(found) > 1)
        monkeypatch.setattr(captured_rounds, "ROUNDS", 1)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("depths", [(2, 3, 0, 4)], ids=str)
def test_drafts_of_any_length(depths: tuple[int, ...], replayed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draft length is a kind of its own, and so is what a draft model has to catch up with."""
    requests, found = harness.requests([[5, 7, 6], [1], [9, 9]], 40), []
    for times in (1, NEVER):
        monkeypatch.setattr(captured_rounds, "ROUNDS", times)
        found.append(
            [one.metrics for one in harness.check(piped(draft_length=ByTurns(*depths, deferred=True)), requests)]
        )
    assert found[0] == found[1]
    assert {kind[0] for kind in replayed} == {*depths}
    assert len({kind[2] for kind in replayed}) > 2


class Launches(Observer):
    """Counts what was queued in each round, where nothing else was captured in it."""

    def __init__(self) -> None:
        self.found, self._before = [], (0, 0)

    def round(self, report: RoundReport) -> None:
        """Note a round."""
        now = COUNTERS.totals[LAUNCH], SimRecording.made
        if not report.prefill and now[1] == self._before[1]:
            self.found.append(now[0] - self._before[0])
        self._before = now


@pytest.mark.wide(but=["3"])
@pytest.mark.parametrize("draft_length", [0, 3])
def test_a_round_is_one_graph(draft_length: int) -> None:
    """Outside of its graph a round has three launches: the numbers and the logits are copied, and the numbers sent to the host."""
    target, launches = zoo.build("qwen3"), Launches()
    draft = zoo.good_draft(target) if draft_length else None
    pipe = harness.pipeline(target, draft, batch_size=2, draft_length=draft_length or 1, observers=[launches])
    harness.check(pipe, harness.requests(harness.random_prompts([5, 3], zoo.VOCABULARY), 40))
    assert launches.found.count(4) > len(launches.found) // 2


def test_rows_of_any_length(replayed: list[Any]) -> None:
    """Where attention has masks, rounds are captured for as many slots as rows have, and anew when they have more."""
    target = zoo.build("qwen3")
    pipe = harness.pipeline(target, zoo.good_draft(target), draft_length=3, batch_size=2)
    harness.check(pipe, harness.requests(harness.random_prompts([27, 30], zoo.VOCABULARY), [20, 60]))
    assert len({kind[1] for kind in replayed}) > 1


@pytest.mark.wide(but=["4"])
@pytest.mark.parametrize("at", [4, 9])
def test_aborts_and_arrivals(at: int, replayed: list[Any]) -> None:
    """Between rounds that are replayed a request is aborted and another comes; the rows change places."""
    requests = harness.requests(harness.random_prompts((5, 3, 4, 2, 6), 61), [12, 40, 30, 40, 21])
    engine, expected = opened(piped(), requests[:4]), wanted(TARGET, requests)
    for _ in range(at):
        engine.step()
    engine.abort(requests[0].key)
    engine.add(requests[4])
    ended, errors = stepped(engine)
    assert errors == 0
    assert {1, 2, 3, 4} <= {*ended}
    assert all(tokens == expected[index] for index, tokens in ended.items())
    assert replayed


POINTS = [
    ("drafter", "", "draw"),
    ("verifier", "", "score"),
    ("rule", "", "accept"),
    ("alignment", "", "commit"),
    ("drafter", "", "prepare"),
]


@pytest.mark.wide(but=["rule  accept"])
@pytest.mark.filterwarnings("default:whole rounds are not captured")
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_errors_while_a_round_is_captured(point: Point) -> None:
    """At whatever call memory runs out, or a strategy fails, no token is lost or comes twice; an error of the capture is none."""
    requests = harness.requests(harness.random_prompts((5, 3, 4), 61), 14)
    assert_survived(piped(batch_size=2), requests, point, range(2))  # none where only the capture has failed


def test_a_round_that_cannot_be_captured(replayed: list[Any]) -> None:
    """The round in which that is found out stands; those after it are decoded as before."""
    pipe = piped()
    usual, calls = pipe.parts.composition, [0]

    def accept(rule: Any, usual: Callable[[], Any]) -> Any:
        found = usual()
        found.accepted_B.tolist()  # a wait, which is refused where a graph is captured
        return found

    class Waits(Acting):
        def called(self, usual: Callable[[], Any]) -> Any:
            calls[0] += 1
            return accept(self._inner, usual)

    pipe.parts.composition = attrs.evolve(usual, rule=Waits(usual.rule, "accept", 0, accept))
    with pytest.warns(SpecframeWarning, match="whole rounds are not captured"):
        harness.check(pipe, asked())
    assert len(replayed) == 1


class Tired(ModelDrafter):
    """Drafts nothing beyond a length."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a draft, or none."""
        return super().propose(batch, budget if batch.longest < 12 else Budget(0))


def test_a_drafter_that_proposes_otherwise(replayed: list[Any]) -> None:
    """What a subclass, or an object, does in each round it does in each round."""
    one = ModelDrafter()
    one.propose = Tired.propose.__get__(Tired(), Tired)  # type: ignore[method-assign]
    one.start = one.propose.__self__.start  # type: ignore[attr-defined, method-assign]
    one.observe = one.propose.__self__.observe  # type: ignore[attr-defined, method-assign]
    for drafter in (Tired(), one):
        pipe = piped(drafter=drafter)
        assert harness.check(pipe, harness.requests([[5, 7, 6]] * 3, 40))[0].metrics.num_draft_tokens < 30
    assert not replayed


def test_runs_that_are_opened_anew(replayed: list[Any]) -> None:
    """What was captured over rows of tokens goes with them; two pipelines of one model have rounds of their own."""
    pipes = piped(), piped(seed=1)
    for new in (12, 12, 45, 12):
        for pipe in pipes:
            harness.check(pipe, harness.requests(harness.random_prompts((5, 1, 4), 61), new))
            gc.collect()
    assert len(replayed) > 12


def test_two_runs_at_once(replayed: list[Any]) -> None:
    """Runs of one model whose rounds take turns have rows, and graphs, of their own."""
    asked = [harness.requests(harness.random_prompts(lengths, 61), 24) for lengths in ((5, 1, 4), (3, 6, 2))]
    engines, ended = [opened(piped(), one) for one in asked], [dict[int, list[int]](), dict[int, list[int]]()]
    while not all(engine.idle for engine in engines):
        for engine, found in zip(engines, ended, strict=True):
            if (report := engine.step()) is not None:
                found.update({one.request.index: one.token_ids for one in report.finished})
    assert ended == [wanted(TARGET, one) for one in asked]
    assert len(replayed) > 10


def test_a_cache_that_is_closed() -> None:
    """Rounds that may read the memory of a cache go with it."""
    run = harness.open_run(zoo.build("qwen3"), 2, 20, align="ragged")
    run.graphs = "on"
    run.target = run.open_cache(run.runner)
    rounds = run.target.rounds
    for _ in range(2):
        rounds.take((), lambda: (None, lambda: (torch.zeros(1, device="sim"),)))
    late = run.open_cache(run.runner)
    assert len(rounds) == 1
    run.close_cache(late)
    assert len(rounds) == 0


def test_strategies_without_a_graph() -> None:
    """A device without graphs decodes a round again where others replay it."""
    with suite_device.running_on("cpu"):
        harness.check(piped(graphs="on", rounds="deferred"), asked())
