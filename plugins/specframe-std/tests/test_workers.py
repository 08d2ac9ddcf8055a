"""Worker processes: the tokens of one process whatever happens to a worker, and no process that outlives its parent."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_constraints as constraints
from specframe_std.executors.workers import executor
from specframe_std.executors.workers.dispatcher import DispatchingEngine
from specframe_std.executors.workers.executor import Workers
from specframe_std.executors.workers.jobs import Job, report_of
from specframe_std.executors.workers.messages import Abort, Broken, Ended, Ready, Round
from specframe_testing import fakes, harness, zoo
from specframe_testing.conformance import ExecutorSuite
from specframe_testing.constraint_fakes import DigitSum
from specframe_testing.instrumentation.invariant_error import InvariantError
from workers_objects import After, Failing, Raising, Tiring, Twigs

from specframe.contracts.requests import Request, SequenceMetrics
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence
from specframe.engine import request_stream
from specframe.engine.engine_clock import HandClock
from specframe.errors import ContractError, OptionError, SpecframeWarning, UnknownNameError
from specframe.observe.watch import Watch
from specframe.pipeline import Pipeline
from specframe.reference import reference_decode
from specframe.text.sampling import Sampling

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts((6, 1, 9, 4, 3, 12, 7, 2, 5, 8), 61, seed=5)
SAMPLED = Sampling(temperature=1.0, top_k=40, samples=2, logprobs=2, stop=("007;",), repetition_penalty=1.1)


@pytest.fixture(scope="module")
def local(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """The workers that all tests of a module share: two, but one in the quick set, since each takes seconds to import torch."""
    config = request.config
    quick = config.getoption("markexpr") == "not slow" and not config.getoption("--as-if-quick")
    executor = Workers(1 if quick else 2)
    yield executor
    executor.dismiss()


@pytest.fixture(scope="module")
def pipes(local: Workers) -> tuple[Pipeline, Pipeline]:
    """The same pipeline with workers and without."""
    options = {"batch_size": 2, "draft_length": 3, "seed": 4, "tokenizer": fakes.fake_tokenizer()}
    return (harness.pipeline(TARGET, DRAFT, executor=local, **options), harness.pipeline(TARGET, DRAFT, **options))


@pytest.mark.wide(but=["test_equals_reference[ragged]"])
class TestWorkers(ExecutorSuite):
    @pytest.fixture(autouse=True)
    def _workers(self, local: Workers) -> None:
        self.local = local

    def make(self) -> Workers:
        return self.local


def workers() -> dict[int, int]:
    """Return the process ids of the workers that live, by number."""
    found = [one for one in multiprocessing.active_children() if one.name.startswith("specframe-worker-")]
    return {int(one.name.rpartition("-")[2]): one.pid for one in found if one.pid}


def facts(results: Any) -> list[tuple[Any, ...]]:
    """Return everything of results that does not depend on time."""
    return [(r.index, r.sample, r.token_ids, r.text, r.finish_reason, r.error, r.prompt_tokens) for r in results]


@pytest.mark.wide
@pytest.mark.parametrize("how", [None, SAMPLED, Sampling(criteria=(After(11),))], ids=["greedy", "sampled", "criteria"])
def test_results_are_those_of_one_process(pipes: tuple[Pipeline, Pipeline], how: Sampling | None) -> None:
    """Tokens, texts, reasons and log-probabilities equal those of one process, for all samples, in the order asked."""
    found, alone = ([*pipe.generate(PROMPTS, 14, sampling=how)] for pipe in pipes)
    assert facts(found) == facts(alone)
    for one, other in zip(found, alone, strict=True):
        assert (one.logprobs is None) == (how is not SAMPLED)
        if one.logprobs is not None and other.logprobs is not None:
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert [*map(set, one.top_logprobs)] == [*map(set, other.top_logprobs)]


@pytest.mark.wide
def test_requests_that_are_read_meanwhile(pipes: tuple[Pipeline, Pipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are read while workers decode have the results of one process, and the time it takes counts."""
    monkeypatch.setattr(request_stream, "AHEAD", 1)
    settings = pipes[0].requests.setting(Sampling(), 6)
    given, most, jumps = 0, 0, 40.0
    clock = time.perf_counter
    late = 0.0

    def asked() -> Iterator[Any]:
        nonlocal given, late
        for index, prompt in enumerate(PROMPTS * 3):
            given += 1
            late += jumps * (index == 20)
            yield pipes[0].requests.of(index, prompt, 6, settings)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late)
    found = []
    for result in pipes[0].decode_fed(asked()):
        found.append(result)
        most = max(most, given - len(found))
    ordered = sorted(found, key=lambda result: result.index)
    assert facts(ordered) == facts(pipes[1].generate(PROMPTS * 3, 6))
    assert most <= 16
    assert pipes[0].report.seconds >= jumps


def test_figures_are_those_of_all_workers(pipes: tuple[Pipeline, Pipeline]) -> None:
    """Tokens, sequences, drafts and forwards are added up over the workers, and every request's arrival is kept."""
    results = [*pipes[0].generate(PROMPTS, 14, arrivals=[0.01 * (9 - i) for i in range(10)])]
    report = pipes[0].report
    assert report.tokens == sum(len(result.token_ids) for result in results)
    assert report.sequences == len(PROMPTS)
    assert report.num_spec_steps == sum(result.metrics.num_spec_steps for result in results) > 0
    assert report.num_accepted_draft_tokens == sum(result.metrics.num_accepted_draft_tokens for result in results)
    assert report.target_forwards > report.rounds > 0
    assert report.draft_forwards > 0
    assert report.peak_kv_bytes > 0
    assert report.seconds > 0
    told = {"prefill", "draft", "verify", "accept"}
    assert told <= {*report.stage_seconds} <= told | {"schedule", "align"}


def test_observers_are_told_of_every_round(local: Workers) -> None:
    """An observer of this process, which could not be pickled, sees all tokens and forwards."""

    class Seen(Observer):
        def __init__(self) -> None:
            self.tokens, self.models = 0, set[str]()
            self.real = self.expected = self.filler = 0

        def forward(self, model: str, rows: int, tokens: int) -> None:
            self.models.add(model)

        def fed(self, model: str, real: int, computed: int) -> None:
            self.real += real * (model == "target")
            self.filler += computed - real

        def round(self, report: Any) -> None:
            assert [len(ids) for ids in report.tokens] == report.gained.tolist()
            assert len(report.sequences) == len(report.gained)
            self.tokens += int(report.gained.sum())
            self.expected += int(report.lengths.sum() if report.prefill else len(report.gained) + report.drafted.sum())

    seen = Seen()
    pipe = harness.pipeline(TARGET, DRAFT, executor=local, observers=[seen], batch_size=2)
    results = [*pipe.generate(PROMPTS, 9)]
    assert seen.tokens == sum(len(result.token_ids) for result in results)
    assert seen.models == {"target", "draft"}
    assert seen.real == seen.expected
    assert pipe.report.filler_share == pytest.approx(seen.filler / pipe.report.tokens_computed)


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:.*called for one row alone")
def test_an_error_is_that_of_its_request(pipes: tuple[Pipeline, Pipeline]) -> None:
    """A processor that raises ends its own prompt with an error, and so does one that no worker can be sent; the others go on."""
    how = [Sampling()] * len(PROMPTS)
    how[3] = Sampling(processors=(Raising(),))
    how[6] = Sampling(processors=(type("Workers", (Raising,), {})(),))
    found = [*pipes[0].generate(PROMPTS, 14, sampling=how)]
    expected = [*pipes[1].generate(PROMPTS, 14)]
    assert [result.index for result in found] == [*range(len(PROMPTS))]
    assert facts(r for r in found if r.index not in (3, 6)) == facts(r for r in expected if r.index not in (3, 6))
    assert (found[3].finish_reason, found[3].error) == ("error", "no such thing")
    assert found[6].finish_reason == "error"
    assert "the request cannot go to a worker process" in str(found[6].error)
    assert pipes[0].report.errors == 2


@pytest.mark.slow  # begins a third process
def test_a_worker_that_is_killed_is_replaced(pipes: tuple[Pipeline, Pipeline]) -> None:
    """Every result comes once, with the tokens of one process, and no piece of a stream comes twice."""
    asked = PROMPTS * 3
    expected = facts(pipes[1].generate(asked, 40))
    before, tokens, results = workers(), dict[int, list[int]](), []
    for number, chunk in enumerate(pipes[0].stream(asked, 40)):
        tokens.setdefault(chunk.index, []).extend(chunk.token_ids)
        results += [chunk.result] if chunk.result else []
        if number == 2:
            os.kill(before[0], signal.SIGKILL)
    assert facts(sorted(results, key=lambda result: result.index)) == expected
    assert tokens == {result.index: result.token_ids for result in results}
    assert facts(pipes[0].generate(PROMPTS, 9)) == facts(pipes[1].generate(PROMPTS, 9))
    assert workers()[0] != before[0]
    assert workers()[1] == before[1]


def test_workers_get_the_weights_as_they_are(local: Workers) -> None:
    """A loaded model that was written to between two runs is copied to the workers again."""
    target = zoo.build("llama")
    pipe = harness.pipeline(target, executor=local, batch_size=2, draft_length=3, drafter="prompt-lookup")
    prompts, copies = harness.random_prompts((6, 9), zoo.VOCABULARY), list[int]()
    for seed in (0, 0, 8):
        for one, other in zip(target.parameters(), zoo.build("llama", seed=seed).parameters(), strict=True):
            one.data.copy_(other)
        found = [one.token_ids for one in pipe.generate(prompts, 8)]
        assert found == [reference_decode(target, prompt, 8, {zoo.EOS}) for prompt in prompts]
        assert local._processes
        copies.append(local._processes._recipes)
    assert copies[0] == copies[1], "they were not written to"


@pytest.mark.wide
def test_workers_have_one_run_at_a_time(local: Workers) -> None:
    """Two pipelines that share an executor cannot decode at the same time."""
    first, second = (harness.pipeline(TARGET, DRAFT, executor=local) for _ in range(2))
    running = first.as_completed(PROMPTS, 9)
    next(running)
    with pytest.raises(OptionError, match="expected workers that are free"):
        next(second.as_completed(PROMPTS, 9))
    running.close()
    assert len([*second.as_completed(PROMPTS, 9)]) == len(PROMPTS)


@pytest.mark.wide
def test_what_cannot_be_pickled_is_refused() -> None:
    """A strategy that cannot go to another process is refused before a process begins."""
    drafter = fakes.always_right([])
    drafter.right = lambda index, generated: 3
    before = workers()
    told = r"drafter: expected a name, or an object that can be pickled.*ScriptedDrafter"
    with pytest.raises(OptionError, match=told):
        Pipeline(TARGET, drafter, executor="workers,count=3")
    assert workers() == before


@pytest.mark.wide
@pytest.mark.parametrize("given", [0, -1, 2.5, "two", True])
def test_a_number_of_workers(given: Any) -> None:
    """A number of workers is a whole number of at least 1."""
    with pytest.raises(OptionError, match=r"count: expected a whole number (of at least 1 or 'auto'|or a text), got "):
        Pipeline(TARGET, DRAFT, executor=f"workers,count={given}")


@pytest.mark.wide
@pytest.mark.parametrize(
    "error", [InvariantError("cache", 3, 1, 0, "slot 7"), UnknownNameError("drafter", "x", ["y"]), OptionError("no")]
)
def test_errors_of_a_run_come_back_as_they_are(error: Any) -> None:
    """An error of a worker's run is raised with its class, its sentence and its attributes."""
    made = Broken.by(error).error
    assert (type(made), str(made), vars(made)) == (type(error), str(error), vars(error))


def told(ticket: int, ids: list[int], ended: bool = False) -> Round:
    """Return a worker's round of one row."""
    one, count = np.ones(1, dtype=np.int64), len(ids)
    end = [Ended(ticket, "length", [1, 2, 3, 4, 5], SequenceMetrics(), None)] if ended else []
    return Round(
        tickets=[ticket],
        prefill=False,
        depth=count,
        lengths=one,
        drafted=one * count,
        accepted=one * (count - 1),
        tokens=[ids],
        ended=end,
        forwards=[("target", 1, 1)],
        fed=[("target", 1, 1)],
        stages={},
        peak_kv_bytes=0,
        state_bytes=0,
    )


def test_what_was_told_is_not_told_again() -> None:
    """Of a request that is decoded again a report has the new tokens alone; what was not sent is not made up."""
    job = Job(7, Sequence(Request(0, [9], 5), 6))
    jobs = {7: job}
    first = report_of(told(7, [1, 2, 3]), jobs, 1)
    assert (first.tokens, first.gained.tolist()) == ([[1, 2, 3]], [3])
    assert (first.drafted.tolist(), first.accepted.tolist(), first.transfer) == ([3], [2], None)
    with pytest.raises(LookupError, match="no draft and no acceptance, since another process has decoded the round"):
        _ = first.draft
    job.had = 0
    assert report_of(told(7, [1, 2]), jobs, 2) is None
    again = report_of(told(7, [3, 4, 5], ended=True), jobs, 3)
    assert again.tokens == [[4, 5]]
    assert (again.finished[0].token_ids, job.told) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert report_of(told(8, [1, 2]), jobs, 4) is None


class Mortal:
    """A worker that can be sent messages."""

    fate = "by signal 9"

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class DyingProcesses:
    """Workers that send what they are made to send, the first one unless a message says which; a None is a death."""

    def __init__(self, messages: list[Any], count: int = 1) -> None:
        self.run, self.processes, self._messages, self._count = 1, [Mortal()], messages, count

    def begin(self, recipe: Any, parts: Any) -> int:
        return 1

    @property
    def missing(self) -> int:
        return self._count - len(self.processes)

    def stay(self) -> None:
        self._count = len(self.processes)

    def add(self) -> Mortal:
        self.processes.append(Mortal())
        return self.processes[-1]

    def open(self, *_: Any) -> None:
        pass

    def replace(self, process: Any) -> Any:
        self.processes = [Mortal()]
        return self.processes[0]

    def listen(self, timeout: float | None) -> tuple[Any, Any]:
        message = self._messages.pop(0)
        return (self.processes[message[0]], message[1]) if isinstance(message, tuple) else (self.processes[0], message)

    def dismiss(self) -> None:
        self.run = 0

    release = dismiss


def dispatching(messages: list[Any], count: int = 1, asked: int = 0, new: int = 9) -> tuple[DispatchingEngine, Any]:
    """Return an engine that has so many requests, and the workers that it gives them to."""
    pipe = harness.pipeline(TARGET, DRAFT, batch_size=2)
    processes: Any = DyingProcesses(messages, count)
    engine = DispatchingEngine(pipe.recipe, pipe.parts, [], HandClock(), processes)
    for index in range(asked):
        engine.add(Request(index, [1, 2, 3], new))
    return engine, processes


def dealt(worker: Mortal) -> list[list[int]]:
    """Return the requests that a worker was sent."""
    return [[ticket for ticket, _ in one.requests] for one in worker.sent]


@pytest.mark.wide(but=["while they decode"])
@pytest.mark.parametrize(
    ("between", "errors"), [([], 0), ([Ready()], 1)], ids=["while they begin", "while they decode"]
)
def test_deaths_that_a_request_is_blamed_for(between: list[Any], errors: int) -> None:
    """Three workers that die with a request end it; workers that die before they are ready have begun none."""
    engine, _ = dispatching([Ready(), None, *between, None, *between, None, *between], asked=1, new=5)
    reports = [engine.step() for _ in range(3 + 2 * len(between))]
    failed = [sequence.error for report in reports if report for sequence in report.finished]
    assert failed == ["3 worker processes have died with this request, the last one by signal 9"] * errors
    assert engine.idle is bool(errors)


def test_workers_are_begun_as_requests_come() -> None:
    """There are no more workers than requests, and none has a request before it is ready."""
    engine, processes = dispatching([Ready(), *[told(0, [7])] * 3, (1, Ready()), told(0, [7])], count=2)
    assert engine.remote == 4
    engine.add(Request(0, [1, 2, 3], 9))
    engine.step()
    assert len(processes.processes) == 1
    for index in range(1, 6):
        engine.add(Request(index, [1, 2, 3], 9))
    engine.step()
    first, second = processes.processes
    assert second.sent == []
    for _ in range(3):
        engine.step()
    assert [[*itertools.chain(*dealt(worker))] for worker in (first, second)] == [[0, 1, 2], [3, 4, 5]]
    assert len(processes.processes) == 2


@pytest.mark.wide
def test_a_worker_that_cannot_be_begun_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system begins no further process, the requests go to the workers there are, and a warning says so once."""
    engine, processes = dispatching([Ready(), *[told(0, [7])] * 2], count=3, asked=3)

    def fail() -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(processes, "add", fail)
    said = "^no more than 1 workers can be begun: .*Cannot allocate memory"
    with pytest.warns(SpecframeWarning, match=said) as found:
        reports = [engine.step() for _ in range(2)]
    assert all(reports)
    assert len(found) == 1
    assert dealt(processes.processes[0]) == [[0, 1, 2]]


@pytest.mark.wide(but=["models"])
@pytest.mark.parametrize(
    ("cores", "gigabytes", "models", "count"),
    [(4, 100.0, 0, 4), (4, 0.5, 0, 1), (4, 2.9, 0, 2), (1, 100.0, 0, 1), pytest.param(9, 12.0, 1, 3, id="models")],
)
def test_the_number_of_workers_is_that_of_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: float, models: int, count: int
) -> None:
    """As many workers as threads, or as four fifths of the memory available hold models and a process each, and one at least."""
    pipe = harness.pipeline(TARGET, DRAFT)
    weights = [SimpleNamespace(nbytes=models * 2**30)]
    model = SimpleNamespace(parameters=lambda: weights, buffers=lambda: [])
    monkeypatch.setattr(executor.torch, "get_num_threads", lambda: cores)
    memory = SimpleNamespace(available=gigabytes * 2**30)
    monkeypatch.setattr(executor.psutil, "virtual_memory", lambda: memory)
    parts: Any = SimpleNamespace(target=model, draft=model) if models else pipe.parts
    assert executor.most_workers(pipe.recipe, parts) == count


@pytest.mark.slow  # begins three processes
def test_a_number_of_workers_that_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `count=auto` results are those of one process, and one prompt is decoded by one worker."""
    monkeypatch.setattr(executor, "most_workers", lambda recipe, parts: 2)
    left_open, before = Workers("auto"), workers()
    pipe = harness.pipeline(TARGET, DRAFT, executor=left_open, batch_size=2, seed=4)
    try:
        for count, expected in ((1, 1), (len(PROMPTS), 2)):
            alone = harness.pipeline(TARGET, DRAFT, batch_size=2, seed=4)
            assert facts(pipe.generate(PROMPTS[:count], 14)) == facts(alone.generate(PROMPTS[:count], 14))
            assert len(multiprocessing.active_children()) == len(before) + expected
    finally:
        left_open.dismiss()


def test_aborts_reach_the_worker_that_decodes_and_what_waits_is_never_dealt() -> None:
    """A worker receives its requests that were aborted; one that no worker has yet is given to none."""
    engine, processes = dispatching([Ready(), Ready(), Ready()], asked=5, new=5)
    engine.step()
    (worker,) = processes.processes
    sent = worker.sent
    assert dealt(worker) == [[0, 1, 2]]
    sent.clear()
    for index in (3, 0, 1, 2):
        assert engine.abort((index, 0)) is not None
    assert sent == [Abort(0), Abort(1), Abort(2)]
    sent.clear()
    engine.step()
    assert dealt(worker) == [[4]]


class Loud(Observer):
    """An observer that raises at the end of a round, or of a stage."""

    def __init__(self, member: str) -> None:
        setattr(self, member, self.fail)

    def fail(self, *_: Any) -> None:
        raise ValueError("planted")


@pytest.mark.wide(but=["forward"])
@pytest.mark.parametrize("member", ["forward", "leave", "round"])
def test_an_observers_error_comes_after_the_round_of_a_worker(member: str) -> None:
    """What a worker's round has ended is reported before an error of the observer that receives it."""
    engine, _ = dispatching([Ready(), told(0, [1, 2, 3, 4, 5], ended=True)], asked=1, new=5)
    engine._watch = Watch([Loud(member)])
    report = engine.step()
    assert [one.token_ids for one in report.finished] == [[1, 2, 3, 4, 5]]
    assert not engine.idle
    with pytest.raises(ValueError, match="planted"):
        engine.step()
    assert engine.idle


@pytest.mark.wide
def test_a_strategys_error_in_a_worker_comes_once_and_loses_no_result(local: Workers) -> None:
    """Results that a worker has reported come first; the error names the strategy, and the workers are free again."""
    asked, found = harness.requests(PROMPTS[:6], [2, 2, 2, 9, 9, 9]), []
    completed = harness.pipeline(TARGET, Tiring(), executor=local, batch_size=2).decode(asked)
    with pytest.raises(ContractError, match=r"^drafter Tiring: propose\(\) raised ValueError: planted"):
        found.extend(completed)
    assert len({one.index for one in found}) == len(found)
    harness.check(harness.pipeline(TARGET, Twigs(), executor=local, batch_size=2), asked)


def test_workers_decode_with_constraints(local: Workers) -> None:
    """Worker processes keep states of their own, and the error of a row comes back with its sentence."""
    wanted, options = constraints.expected("digit-sum"), {"batch_size": 2, "draft_length": 3, "constraint": DigitSum()}
    pipe = harness.pipeline(constraints.TARGET, constraints.DRAFT, executor=local, **options)
    assert constraints.tokens(harness.decode(pipe, constraints.asked(None))) == wanted
    results = harness.decode(pipe, constraints.asked(Failing("advance")))
    failed = results.pop(2)
    assert "advance() raised RuntimeError: no grammar" in str(failed.error)
    assert [result.token_ids for result in results] == [one for i, one in enumerate(wanted) if i != 2]
