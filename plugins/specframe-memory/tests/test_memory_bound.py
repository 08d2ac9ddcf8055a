"""A bound of memory under load: who does not fit is refused alone, whatever comes is planned for, and nothing is lost."""

from __future__ import annotations

import queue
import warnings
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from specframe_memory.footprint import Footprint, Workload
from specframe_memory.memory_bound import PlannedBound
from specframe_memory.memory_plan import Configuration, Fallback, Ladder, kind_of
from specframe_serve.service import ServedRequest, Service
from specframe_testing import fakes, harness, zoo
from specframe_testing.constraint_fakes import Even
from transformers import LogitsProcessor, StoppingCriteria

from specframe import Pipeline, Sampling
from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Chunk, Request, Result
from specframe.contracts.roles import Observer
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.errors import ModelError

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
DRAWN = Sampling(temperature=0.8, top_p=0.9, logprobs=5)
LATEST = 30
"""Seconds after which a result is missed: it comes in milliseconds, or never."""


class Sizes:
    """A stand-in for memory profiling: a byte for each place of a row, four for a draft's node, 20 for a row with sampling."""

    def __init__(self) -> None:
        self.asked: list[Workload] = []

    def footprint(self, load: Workload, budget: Budget, like: Any = ()) -> Footprint:
        """Return the bytes."""
        self.asked.append(load)
        assert len({one.key for one in like}) == len(like), "an engine takes a key once"
        rows = [like[row % len(like)] for row in range(load.rows)] if like else []
        total = load.rows * (load.longest + 4 * budget.nodes) + sum(20 for one in rows if not one.plan.greedy)
        return Footprint(total, {"all": total}, 0)


class Within(Observer):
    """Asserts that every round is within the step that the run was last opened with."""

    nbytes: int

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: Any = Sizes()
        self.steps: list[tuple[Fallback, int, int]] = []
        self.drawn = False
        made = Ladder([Configuration(self.sizes), Configuration(self.sizes, drafts=False)], Budget(2))
        monkeypatch.setattr(PlannedBound, "_ladder", lambda bound, greedy: made)
        step = PlannedBound.step

        def noted(bound: PlannedBound, *given: Any) -> tuple[Fallback, int, int]:
            self.steps.append(step(bound, *given))
            self.nbytes = bound._nbytes
            return self.steps[-1]

        monkeypatch.setattr(PlannedBound, "step", noted)

    def round(self, report: RoundReport) -> None:
        """Compare a round with what it would take if all rows were as long as may be."""
        step, prompt, longest = self.steps[-1]
        like = [one.request for one in report.sequences]
        assert len(like) <= step.rows
        assert max(one.limit for one in report.sequences) <= longest
        assert not report.prefill or report.lengths.max() <= prompt
        budget = Budget(report.draft.depth, report.draft.nodes)
        assert self.sizes.footprint(Workload(len(like), prompt, longest), budget, like).total <= self.nbytes
        self.drawn |= not all(one.plan.greedy for one in like)


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> Within:
    """Watches rounds; memory profiling is replaced by sums."""
    return Within(monkeypatch)


@pytest.fixture(autouse=True)
def _no_memory_runs_out() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def pipeline(within: Within, nbytes: int = 120, **options: Any) -> Pipeline:
    """Return a pipeline of the fakes within a bound."""
    given = {"draft_length": 2, "batch_size": 3, "accept": "gumbel", "observers": [within], **options}
    return harness.pipeline(TARGET, DRAFT, memory=nbytes, **given)


@pytest.mark.wide
def test_a_prompt_that_does_not_fit_is_refused_alone(within: Within) -> None:
    """Its result is a sentence with both numbers; those before and after it have their tokens, whatever their number."""
    prompts = [[5] * 9, [7] * 130, [3] * 4, [2] * 118]
    warnings.filterwarnings("ignore", "results with an error")
    first, second, third, fourth = pipeline(within).generate(prompts, 6)
    told = "memory: expected at least {0} bytes for one sequence of {0} tokens, with a prompt of {1}, got 120 bytes"
    assert (second.finish_reason, second.error) == ("error", told.format(136, 130))
    assert (fourth.finish_reason, fourth.error) == ("error", told.format(124, 118))
    for one, prompt in ((first, prompts[0]), (third, prompts[2])):
        assert one.token_ids == harness.continuation(TARGET, prompt, 6)


@pytest.mark.wide
def test_where_nothing_fits_the_run_ends(within: Within) -> None:
    """No request is at fault where a short one does not fit either: the sentence is that of the longest."""
    told = r"^memory: expected at least 46 bytes for one sequence of 46 tokens, .* got 7 bytes$"
    with pytest.raises(ModelError, match=told):
        list(pipeline(within, 7).generate([[5] * 9, [7] * 40], 6))


def test_a_kind_that_comes_later_has_the_caches_opened_anew(within: Within) -> None:
    """A request that asks for more than those that there were is planned for before it is decoded."""
    pipe = pipeline(within)
    engine = LocalEngine(pipe.recipe, pipe.parts, [within], HandClock(), pipe.executor)
    engine.make_room(20)
    plain, drawn = (pipe.requests.make([[5] * 8], 8, sampling=how)[0][0] for how in (Sampling(), DRAWN))
    ended = list[int]()
    for number, one in enumerate([plain, plain, drawn, plain, drawn]):
        engine.add(Request(number, one.prompt_ids, 8, plan=one.plan, logprobs=one.logprobs, stream=number))
        if (report := engine.step()) is not None:
            ended += [one.request.index for one in report.finished]
    while not engine.idle:
        if (report := engine.step()) is not None:
            ended += [one.request.index for one in report.finished]
    assert sorted(ended) == [*range(5)]
    assert within.drawn
    assert len(within.steps) == 2, "once for each kind"


class Client:
    """Takes a job's chunks."""

    def __init__(self, prompt: list[int], new: int, number: int, sampling: Sampling) -> None:
        self.chunks: queue.Queue[Chunk] = queue.Queue()
        self.job = ServedRequest(prompt, sampling, new, self.chunks.put, seed=number)
        self.samples = sampling.samples

    def results(self) -> list[Result]:
        """Wait for all results."""
        found = list[Result]()
        while len(found) < self.samples:
            if (result := self.chunks.get(timeout=LATEST).result) is not None:
                found.append(result)
        return sorted(found, key=lambda one: one.sample)


def test_a_server_under_load_stays_within_the_bound(within: Within) -> None:
    """Prompts of many lengths, samples, clients that leave, one that does not fit: each gets its own tokens, or its sentence."""
    greedy, drawn = Sampling(), Sampling(temperature=0.8, samples=3)
    lengths = [4, 9, 3, 40, 7, 130, 5, 12, 6]
    hows = [greedy, drawn, greedy, greedy, greedy, greedy, drawn, greedy, greedy]
    prompts = harness.random_prompts(lengths, 61, seed=5)
    free = harness.pipeline(TARGET, DRAFT, draft_length=2, batch_size=3, accept="gumbel")
    wanted = [
        [one.token_ids for one in free.generate([[1]] * number + [prompt], 9, sampling=[greedy] * number + [how])][
            number:
        ]
        for number, (prompt, how) in enumerate(zip(prompts, hows, strict=True))
    ]
    service = Service(pipeline(within), 24, 64, [])
    service.start()
    clients = [Client(*one) for one in zip(prompts, [9] * 9, range(9), hows, strict=True)]
    leaving = [Client(prompt, 30, 99, greedy) for prompt in prompts[:4]]
    for client, gone in zip(clients, [*leaving, *[None] * 5], strict=True):
        service.submit([client.job])
        if gone is not None:
            numbers = service.submit([gone.job])
            gone.chunks.get(timeout=LATEST)
            service.abort(numbers)
    found = [client.results() for client in clients]
    (refused,) = found.pop(5)
    del wanted[5]
    assert (refused.finish_reason, refused.token_ids) == ("error", [])
    assert str(refused.error).startswith("memory: expected at least 139 bytes for one sequence of 139 tokens")
    assert [[one.token_ids for one in results] for results in found] == wanted
    again = Client([3, 4], 9, 0, greedy)
    service.submit([again.job])
    again.results()
    assert min(step.rows for step, *_ in within.steps) == 1, "while the long prompt was decoded"
    assert (within.steps[-1][0].rows, within.steps[-1][2]) == (2, 24)
    assert service.unfinished == 0
    service.close()
    assert all(step.footprint.total <= 120 for step, *_ in within.steps)


@pytest.mark.wide
def test_what_rows_may_be_like_has_keys_of_its_own() -> None:
    """Requests of all kinds are decoded together in memory profiling, samples of one prompt and those of other runs among them."""
    bound: Any = PlannedBound(harness.pipeline(TARGET, DRAFT, memory="1GB").recipe, None)  # type: ignore[arg-type]
    for plan in (Sampling(), Sampling(samples=3, temperature=0.8, logprobs=2)):
        for one in harness.requests([[1, 2, 3]], 4):
            bound._kinds[plan] = (one, attrs.evolve(one, sample=1))
    *kinds, mixed = bound._like(greedy=False)
    assert [len(kind) for kind in kinds] == [2, 2]
    assert sorted(one.key for one in mixed) == [(0, 0), (0, 1), (1, 0), (1, 1)]


class Rolled(LogitsProcessor):
    """A logits processor of its own kind."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return every token's score at the next token."""
        return scores.roll(1, -1)


class Fives(StoppingCriteria):
    """Stops after a token that five divides."""

    def __call__(self, input_ids: Any, scores: Any, **named: Any) -> Any:
        """Return which rows stop."""
        return input_ids[:, -1] % 5 == 0


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a constraint of the run": ({"constraint": Even()}, {}),
    "a constraint, samples": ({"constraint": Even()}, {"samples": 2, "temperature": 0.8}),
    "a processor": ({}, {"processors": (Rolled(),)}),
    "criteria, log-probabilities": ({}, {"criteria": (Fives(),), "logprobs": 2}),
}


@pytest.mark.wide
@pytest.mark.parametrize(("options", "how"), ASKED.values(), ids=ASKED)
def test_whatever_a_request_has_is_decoded_within_a_bound(options: dict[str, Any], how: dict[str, Any]) -> None:
    """A bound of memory that suffices changes no token, whatever memory profiling would have to ask of numbers that it has not."""
    prompts, target = [[3, 4, 5, 6], [9, 8], [7, 7, 7]], zoo.build("llama")

    def tokens(**more: Any) -> list[Any]:
        pipe = harness.pipeline(target, target, batch_size=2, draft_length=2, **options, **more)
        found = [*pipe.generate(prompts, 5, sampling=Sampling(**how))]
        return [(one.token_ids, one.finish_reason) for one in found]

    wanted = tokens()
    assert {reason for _, reason in wanted} <= {"length", "eos", "stop"}
    assert tokens(memory="200MB") == wanted


class Unasked(Even):
    """A constraint of a run that is only planned: it notes whether it is asked."""

    asked = False

    def begin(self, *given: Any) -> Any:
        """Return the state, as usual."""
        self.asked = True
        return super().begin(*given)


def test_masks_of_constraints_are_planned_for() -> None:
    """A request's own constraint is a kind of its own, whose masks take memory; memory profiling asks it nothing."""
    pipe = harness.pipeline(zoo.build("llama", vocab_size=4000), memory="200MB", batch_size=2)
    constraint = Unasked()
    plain = harness.requests([[3, 4, 5, 6]], 5)[0]
    bound = PlannedBound(pipe.recipe, pipe.parts)
    taken = [
        bound._ladder(True).step(Workload(99, 4, 9), 0, [(attrs.evolve(plain, constraint=one),)]).footprint.total
        for one in (None, constraint)
    ]
    assert taken[0] < taken[1]
    assert not constraint.asked
    assert kind_of(plain) != kind_of(attrs.evolve(plain, constraint=Unasked()))
