"""An engine stepped by hand: requests come and go between its rounds, and every one of them has the reference's tokens."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import attrs
import pytest
from planting import opened
from products import crossed
from specframe_std.kv.slab import Slab
from specframe_testing import fakes, harness

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence
from specframe.engine.guards.guard_table import guard
from specframe.engine.local_engine import LocalEngine
from specframe.errors import ContractError, PromptError
from specframe.text.generation import GenerationSettings
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts((6, 1, 9, 4, 13, 2), 61, seed=5)
SCHEMES = [("ragged", None), ("eqspec", None), ("exspec", None), ("ragged", "continuous,piece=4"), ("eqspec", "fixed")]


def engine(
    draft: Any = DRAFT, requests: Iterable[Request] = (), observers: Iterable[Any] = (), **options: Any
) -> LocalEngine:
    """Return an engine of its own that has taken requests, with invariant checks."""
    pipe = harness.pipeline(TARGET, draft, **{"batch_size": 3, "draft_length": 3, "check": True, **options})
    return opened(pipe, requests, observers)


def asked(new: int | list[int] = 12, prompts: list[list[int]] = PROMPTS) -> list[Request]:
    """Return a request for every prompt."""
    return harness.requests(prompts, new, {7})


def run(one: LocalEngine) -> list[Sequence]:
    """Step an engine until it is idle and return what has finished."""
    done: list[Sequence] = []
    while not one.idle:
        if report := one.step():
            done += report.finished
    return done


def assert_exact(done: Iterable[Sequence], requests: list[Request]) -> None:
    """Assert that every request has finished once, with the reference's tokens."""
    found = sorted(done, key=lambda sequence: sequence.request.key)
    assert [sequence.request.key for sequence in found] == sorted(request.key for request in requests)
    for sequence in found:
        assert (sequence.token_ids, sequence.finish_reason) == harness.expected(TARGET, sequence.request)


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_two_engines_in_turns_are_exact(align: str) -> None:
    """Two engines on the same models, a step of one after a step of the other, each have the reference's tokens."""
    one, other = asked(), asked(9, PROMPTS[::-1])
    first = engine(requests=one, align=align)
    second = engine(requests=other, align=align, batch_size=2, draft_length=5)
    done: tuple[list[Sequence], list[Sequence]] = [], []
    while not (first.idle and second.idle):
        for mine, finished in zip((first, second), done, strict=True):
            if report := mine.step():
                finished += report.finished
    assert_exact(done[0], one)
    assert_exact(done[1], other)


@pytest.mark.wide
@pytest.mark.parametrize(("align", "schedule"), SCHEMES)
def test_a_request_longer_than_all_before_it(align: str, schedule: str | None) -> None:
    """A request beyond the capacity that is open is decoded like any other, and those under way keep their tokens."""
    requests = asked([9, 9, 9, 9, 60, 3], [*PROMPTS[:4], PROMPTS[4] * 4, [5]])
    one = engine(requests=requests[:4], align=align, schedule=schedule)
    done = [sequence for _ in range(4) if (report := one.step()) for sequence in report.finished]
    for request in requests[4:]:
        one.add(request)
    assert_exact([*done, *run(one)], requests)


@pytest.mark.wide
@pytest.mark.parametrize(("align", "schedule"), SCHEMES)
@pytest.mark.parametrize("steps", range(7))
def test_an_aborted_request_leaves_the_others_as_they_are(align: str, schedule: str | None, steps: int) -> None:
    """Aborted while it waits, is read in chunks or decodes, it has part of the reference's tokens; the others have all."""
    requests = asked(14)
    one = engine(requests=requests, align=align, schedule=schedule)
    done = [sequence for _ in range(steps) if (report := one.step()) for sequence in report.finished]
    ended = {sequence.request.key for sequence in done}
    aborted = []
    for key in [request.key for request in requests[::2]]:
        sequence = one.abort(key)
        assert (sequence is None) == (key in ended)
        aborted += [sequence] if sequence else []
    assert_exact([*done, *run(one)], [one for one in requests if one.key not in {a.request.key for a in aborted}])
    for sequence in aborted:
        tokens, _ = harness.expected(TARGET, sequence.request)
        assert sequence.finish_reason == "abort"
        assert sequence.token_ids == tokens[: len(sequence.token_ids)]
    assert steps < 6 or any(sequence.token_ids for sequence in aborted)


def samples(engine: LocalEngine, count: int = 3, new: int = 8) -> list[Request]:
    """Add the samples of a prompt of 13 tokens to an engine, and return their requests."""
    plan = GenerationSettings(Sampling(temperature=0.8), {}).plan(13, 13 + new, [], TARGET.device)
    requests = [Request(0, PROMPTS[4], new, plan=plan, stream=sample << 32, sample=sample) for sample in range(count)]
    for request in requests:
        engine.add(request)
    return requests


@pytest.mark.wide
@pytest.mark.parametrize(("sample", "steps", "schedule"), crossed(range(3), range(5), ["continuous,piece=4", "fixed"]))
def test_abort_of_one_of_several_samples(schedule: str, steps: int, sample: int) -> None:
    """The samples left have their tokens, whether the one that reads the prompt is aborted or one that starts from its row."""
    whole = engine(accept="gumbel", schedule=schedule)
    samples(whole)
    expected = {sequence.request.key: sequence.token_ids for sequence in run(whole)}
    one = engine(accept="gumbel", schedule=schedule)
    one.add(Request(1, [2, 3], 20))  # somebody decodes meanwhile, so that the prompt is read in chunks
    one.step()
    samples(one)
    done = [sequence for _ in range(steps) if (report := one.step()) for sequence in report.finished]
    finished = (0, sample) in [sequence.request.key for sequence in done]
    aborted = one.abort((0, sample))
    assert (aborted is None) == finished
    done += run(one)
    tokens = {sequence.request.key: sequence.token_ids for sequence in done if sequence.request.index == 0}
    assert tokens == {key: value for key, value in expected.items() if finished or key != (0, sample)}


@pytest.mark.wide(but=["exspec-greedy"])
@pytest.mark.parametrize("accept", ["greedy", "block", "gumbel"])
@pytest.mark.parametrize("align", ["ragged", "eqspec", "exspec"])
def test_requests_without_speculation(align: str, accept: str) -> None:
    """Nothing is drafted for requests that ask for no speculation; they and the others are exact in one batch."""
    drafted: dict[int, int] = {}

    class Drafted(Observer):
        def round(self, report: RoundReport) -> None:
            for sequence, count in zip(report.sequences, report.drafted.tolist(), strict=True):
                drafted[sequence.request.index] = drafted.get(sequence.request.index, 0) + count

    requests = [attrs.evolve(request, speculate=request.index % 2 == 0) for request in asked()]
    one = engine(requests=requests, align=align, accept=accept, observers=[Drafted()])
    assert_exact(run(one), requests)
    assert all((drafted[index] > 0) == (index % 2 == 0) for index in drafted)


def test_a_closed_engine_has_forgotten_its_requests() -> None:
    """An engine that is closed in the middle of a run is idle, and gives no further token."""
    one = engine(requests=asked())
    one.step()
    one.close()
    assert one.idle
    assert one.step() is None


class Releases(Slab):
    """A backend whose stores note which requests they were asked to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[int] = []

    def open(self, *given: Any) -> Any:
        store = super().open(*given)
        right = store.release

        def release(sequence: Sequence) -> None:
            self.released.append(sequence.request.index)
            right(sequence)

        store.release = release  # type: ignore[method-assign]
        return store


def test_an_aborted_sequence_gives_its_memory_back_at_once() -> None:
    """Stores receive the end of an aborted sequence when it is aborted, and not when another one finishes."""
    kv = Releases()
    one = engine(None, asked(20)[:3], kv=kv, check=False)
    one.step()
    assert kv.released == []
    one.abort((1, 0))
    assert kv.released == [1]


def test_a_key_is_one_requests_alone() -> None:
    """A request with the key of an unfinished one is refused, waiting or live; the key is free again after the end."""
    one, request = engine(check=False), harness.requests(PROMPTS[:1], 30)[0]
    why = "request 0, sample 0: expected a key of its own, got that of an unfinished request"
    one.add(request)
    for _ in range(2):
        with pytest.raises(PromptError, match=why):
            one.add(request)
        one.step()
    assert_exact(run(one), [request])
    one.add(request)
    assert_exact(run(one), [request])


def test_every_member_of_an_engine_is_looked_for() -> None:
    """An executor whose engine lacks a member of the contract is refused by the member's name."""

    class Lacking:
        idle, peak_kv_bytes, state_bytes, remote = True, 0, 0, 0
        add = abort = step = close = print

    executor = guard("executor", types.SimpleNamespace(open=lambda *_: Lacking()))
    with pytest.raises(ContractError, match=r"open\(\) must return an engine with .*, make_room among them, got"):
        executor.open(None, None, [], None)
