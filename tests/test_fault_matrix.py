"""Whatever is called at a step of a run fails at its first, a middle and its last call: every request has exactly one result.

What is called are the members of all strategies, of their layouts and stores, of observers, and the models' forwards. The members
are those of the protocols, so that a new one is covered without an edit here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import pytest
import torch

from specframe.contracts import cache, layout
from specframe.contracts.requests import Result
from specframe.engine.arrivals import HandClock
from specframe.engine.engine import Engine
from specframe.engine.guards.guard import members_of
from specframe.errors import ContractError, SpecframeError
from specframe.observe.watch import Watcher
from specframe.pipeline import in_order
from specframe.plugins.members import members
from specframe.plugins.offers import ROLES
from specframe.testing import fakes, harness, where

pytestmark = pytest.mark.filterwarnings("ignore::specframe.errors.SpecframeWarning")

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
ASKED = harness.requests(harness.random_prompts((5, 1, 3), 61), [4, 7, 3])
PIPE = harness.pipeline(TARGET, DRAFT, draft_length=3, batch_size=2)
USUAL = PIPE.composition

FAULTS: dict[str, Callable[[], BaseException]] = {
    "memory": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "error": lambda: ValueError("planted"),
    "exit": lambda: SystemExit(3),
}
FIELDS = {
    "drafter": "drafter",
    "verifier": "verifier",
    "acceptance rule": "rule",
    "alignment": "alignment",
    "scheduler": "scheduler",
    "KV backend": "kv",
    "draft-length policy": "policy",
}
"""The roles' names in a composition."""

Point = tuple[str, str, str]
"""A role, what it makes that is called ("" for itself), and the member called."""

POINTS: list[Point] = [
    *(
        (role, "", name)
        for role in ROLES
        if role != "attention backend"  # fakes do not attend
        for name, kind in members(role).items()
        if kind == "method"
    ),
    *(("alignment", "layout", name) for name in ("arrange", "place", "settle")),
    *(
        ("KV backend", "open", name)
        for name in members_of(cache.KVStore)
        if name != "move" and not isinstance(vars(cache.KVStore)[name], property)
    ),
]
assert {"arrange", "place", "settle"} <= {*members_of(layout.Layout)}

Act = Callable[[Any, Callable[[], Any]], Any]
"""What a call does: of the object called and what it would do."""


class Acting:
    """An object of which one member does something else at one call."""

    def __init__(self, inner: Any, member: str, at: int, act: Act) -> None:
        self._inner, self._member, self._at, self._act, self.calls = inner, member, at, act, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._member:
            return found

        def call(*given: Any, **named: Any) -> Any:
            return self.called(lambda: found(*given, **named))

        return call

    def called(self, usual: Callable[[], Any]) -> Any:
        """Count a call, and act at its turn."""
        self.calls += 1
        return self._act(self._inner, usual) if self.calls == self._at else usual()


class Making(Acting):
    """A strategy that makes objects of which one member does something else at one call of all."""

    def __init__(self, inner: Any, maker: str, member: str, at: int, act: Act) -> None:
        super().__init__(inner, member, at, act)
        self._maker = maker

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._maker:
            return found

        def make(*given: Any) -> Any:
            made = found(*given)
            usual = getattr(type(made), self._member)

            def member(store: Any, *given: Any, **named: Any) -> Any:
                return self.called(lambda: usual(store, *given, **named))

            member.__code__ = member.__code__.replace(co_name=self._member)
            more = {"static": False} if self._member == "settle" else {}  # a static layout needs no settling of chains
            made.__class__ = type("Made", (type(made),), {self._member: member, "__module__": __name__, **more})
            return made

        return make


def planted(point: Point, at: int, act: Act) -> Acting:
    """Put what acts at a point into the pipeline, and return it."""
    role, maker, member = point
    inner = getattr(USUAL, FIELDS[role])
    acting = Making(inner, maker, member, at, act) if maker else Acting(inner, member, at, act)
    PIPE.parts.composition = attrs.evolve(USUAL, **{FIELDS[role]: acting})
    return acting


def raising(fault: str) -> Act:
    """Return what raises an error."""

    def act(inner: Any, usual: Callable[[], Any]) -> Any:
        raise FAULTS[fault]()

    return act


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Take out what was planted; leave what there is out of the collections that free memory."""
    gc.freeze()
    yield
    gc.unfreeze()
    PIPE.parts.composition = USUAL


def calls(point: Point) -> int:
    """Return how often a point is called."""
    acting = planted(point, 0, raising("error"))
    harness.check(PIPE, ASKED)
    return acting.calls


def turns(count: int) -> list[int]:
    """Return the first, a middle and the last call."""
    return sorted({1, (count + 1) // 2, count})


def collected(results: Iterable[Result]) -> tuple[list[Result], str]:
    """Return the results until an error, and its sentence."""
    found: list[Result] = []
    try:
        for one in results:
            found.append(one)
    except SpecframeError as error:
        return found, str(error)
    return found, ""


def assert_once(results: list[Result], complete: bool) -> None:
    """Assert that no request has two results, that they have the target's tokens, and that all have one where that is asked."""
    asked = [one for one in ASKED if one.index in {result.index for result in results}]
    harness.assert_exact(TARGET, asked, sorted(results, key=lambda one: one.index))
    assert not complete or len(asked) == len(ASKED)


@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_every_member_may_fail_at_any_call(point: Point) -> None:
    """A shortage of memory that passes changes no token; any other fault is told with the strategy's role."""
    count = calls(point)
    assert count, f"{point} is never called"
    for at in turns(count):
        for fault in FAULTS:
            planted(point, at, raising(fault))
            results, told = collected(PIPE.decode(ASKED))
            assert_once(results, complete=fault == "memory")
            if fault == "memory":
                assert told == "", at
                continue
            assert told.startswith(point[0]), (fault, at, told)
            assert f"{point[2]}() raised" in told, (fault, at, told)


def opened(asked: Any = ASKED, observers: Any = ()) -> Engine:
    """Return an engine that has taken requests."""
    engine = Engine(PIPE.recipe, PIPE.parts, observers, HandClock(), PIPE.executor)
    for one in asked:
        engine.add(one)
    return engine


def stepped(engine: Engine) -> tuple[dict[int, list[int]], int]:
    """Step an engine by hand over all errors; return the tokens of what has ended, and the number of errors."""
    ended, errors = dict[int, list[int]](), 0
    while not engine.idle:
        try:
            report = engine.step()
        except SpecframeError:
            errors += 1
            continue
        for sequence in report.finished if report else ():
            assert sequence.request.index not in ended
            ended[sequence.request.index] = sequence.token_ids
    return ended, errors


def wanted() -> dict[int, list[int]]:
    """Return the target's tokens of all requests."""
    return {one.index: harness.expected(TARGET, one)[0] for one in ASKED}


@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_an_engine_goes_on_after_any_error(point: Point) -> None:
    """Stepped on after an error it has the target's tokens for every request, each reported once: a round counts whole or not."""
    for at in turns(calls(point)):
        planted(point, at, raising("error"))
        engine = opened()
        assert stepped(engine) == (wanted(), 1), at
        engine.close()
        assert engine.idle


@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_aborts_and_a_close_from_inside_any_call(point: Point) -> None:
    """A request that is aborted from inside ends once, as the abort says, and the others go on; a closed engine is idle."""
    for at in turns(calls(point)):
        for gone in (*ASKED, None):
            held: list[Engine] = []
            aborted = list[Any]()

            def act(
                inner: Any, usual: Callable[[], Any], gone: Any = gone, held: Any = held, aborted: Any = aborted
            ) -> Any:
                aborted.append(held[0].close() if gone is None else held[0].abort(gone.key))
                return usual()

            planted(point, at, act)
            held.append(opened())
            ended, errors = stepped(held[0])
            assert errors == 0, (at, gone)
            if gone is None:
                assert held[0].idle
                assert held[0].step() is None
                continue
            if (left := aborted[0]) is not None:
                assert left.token_ids == wanted()[gone.index][: len(left.token_ids)]
                assert gone.index not in ended
                ended[gone.index] = wanted()[gone.index]
            assert ended == wanted(), (at, gone)
            held[0].close()


@pytest.mark.parametrize("entry", ["generate", "stream"])
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_results_come_before_an_error(point: Point, entry: str) -> None:
    """What has ended before an error is returned by every entry, in the order asked or as chunks, and then the error."""
    at = turns(calls(point))[-1]
    planted(point, at, raising("error"))
    decoded, _ = collected(PIPE.decode(ASKED))
    planted(point, at, raising("error"))
    completed = PIPE.decode(ASKED)
    if entry == "stream":
        completed = (one.result for one in PIPE._stream(ASKED, ()) if one.result)
    else:
        completed = in_order(completed, sorted(one.key for one in ASKED))
    results, told = collected(completed)
    assert told.startswith(point[0])
    assert sorted(one.index for one in results) == sorted(one.index for one in decoded)
    assert_once(results, complete=False)


class Aborting:
    """A stop check that aborts a request, or closes the engine, at one of its calls."""

    def __init__(self, at: int, gone: Any, held: list[Engine]) -> None:
        self._left, self._gone, self._held = at, gone, held
        self.aborted: Any = None

    def first(self, ids: Any, prompt_length: int, fresh: int) -> None:
        """Count a call, and act at its turn."""
        self._left -= 1
        if self._left == 0:
            self.aborted = self._held[0].close() if self._gone is None else self._held[0].abort(self._gone.key)


@pytest.mark.parametrize("gone", [*ASKED, None])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_aborts_and_a_close_from_inside_a_stop_check(at: int, gone: Any) -> None:
    """A stop check that aborts its own row or another ends it once; the round is decoded again for the others."""
    held: list[Engine] = []
    check = Aborting(at, gone, held)
    held.append(opened([attrs.evolve(ASKED[0], stop_checks=(check,)), *ASKED[1:]]))
    ended, errors = stepped(held[0])
    assert errors == 0
    if gone is None:
        assert held[0].step() is None
        return
    if (left := check.aborted) is not None:
        assert gone.index not in ended
        assert left.finish_reason == "abort"
        assert left.token_ids == wanted()[gone.index][: len(left.token_ids)]
        ended[gone.index] = wanted()[gone.index]
    assert ended == wanted()


def shapes(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value whose tensors are changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if attrs.has(type(value)):
        fields = {one.name: getattr(value, one.name) for one in attrs.fields(type(value)) if one.init}
        changed = {name: change(one) for name, one in fields.items() if isinstance(one, torch.Tensor)}
        return attrs.evolve(value, **changed) if changed else value
    return value


WRONG: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda value: None,
    "no rows": lambda value: shapes(value, lambda one: one[:0]),
    "one column less": lambda value: shapes(value, lambda one: one[..., :-1]),
    "one dimension more": lambda value: shapes(value, lambda one: one[None]),
    "another type": lambda value: shapes(value, lambda one: one.long() if one.is_floating_point() else one.double()),
    "nan": lambda value: shapes(value, lambda one: one * float("nan") if one.is_floating_point() else one),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("point", POINTS, ids=" ".join)
def test_a_wrong_value_is_told_or_does_nothing(point: Point, wrong: str) -> None:
    """What a member returns is right, harmless, told as its strategy's, or the end of the sequences that it leaves undecided."""
    for at in turns(calls(point)) if point[2] != "write" else [1]:  # of a store's views the first alone is looked at
        planted(point, at, lambda inner, usual: WRONG[wrong](usual()))
        results, told = collected(PIPE.decode(ASKED))
        if told:
            assert told.startswith(point[0]), (at, told)
            continue
        failed = [one for one in results if one.finish_reason == "error"]
        assert all("logits are no distribution" in str(one.error) for one in failed)
        assert len(results) == len(ASKED)
        assert_once([one for one in results if one.finish_reason != "error"], complete=not failed)


@pytest.mark.parametrize("member", members("observer"))
def test_an_observer_that_raises_is_heard_after_the_results(member: str) -> None:
    """Whoever gave an observer hears its own error, no strategy is blamed, and no result is lost."""
    counting = Acting(Watcher(), member, 0, raising("error"))
    stepped(opened(observers=[counting]))
    for at in turns(counting.calls):
        for fault in ("error", "exit"):
            engine, ended = opened(observers=[Acting(Watcher(), member, at, raising(fault))]), dict[int, list[int]]()
            heard = list[BaseException]()
            while not engine.idle:
                try:
                    report = engine.step()
                except (ValueError, SystemExit) as error:
                    heard.append(error)
                else:
                    ended |= {one.request.index: one.token_ids for one in (report.finished if report else ())}
            assert ended == wanted(), at
            assert len(heard) == 1
            assert not isinstance(heard[0], ContractError)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_models_forward_may_fail(role: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without memory is fed again; any other error is told as that of the strategy that fed it."""
    model = PIPE.target_model if role == "target" else PIPE.draft_model
    acting = Acting(model, "forward", 0, raising(fault))
    usual = type(model).forward

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        return acting.called(lambda: usual(self, *given, **named)) if self is model else usual(self, *given, **named)

    monkeypatch.setattr(type(model), "forward", forward)
    harness.check(PIPE, ASKED)
    for at in turns(acting.calls):
        acting._at, acting.calls = at, 0
        results, told = collected(PIPE.decode(ASKED))
        assert_once(results, complete=fault == "memory")
        assert told.startswith("" if fault == "memory" else "verifier" if role == "target" else "drafter")
        assert bool(told) == (fault != "memory")


ELSEWHERE = [
    ("drafter", "propose", None),
    ("drafter", "propose", "logits_BNV"),
    ("verifier", "score", None),
    ("acceptance rule", "choose", None),
    ("acceptance rule", "judge", None),
]


@pytest.mark.parametrize(("role", "member", "field"), ELSEWHERE)
def test_a_value_on_another_device_is_told(role: str, member: str, field: str | None) -> None:
    """On an accelerator a tensor of the host is told as its strategy's: not as that of the next one, which it fails in."""

    def act(inner: Any, usual: Callable[[], Any]) -> Any:
        value = usual()
        if field is None:
            return shapes(value, lambda one: one.cpu())
        return attrs.evolve(value, **{field: torch.zeros(*value.tokens_BN.shape, 61)})

    with where.running_on("sim"):
        pipe = harness.pipeline(TARGET, DRAFT, draft_length=3, batch_size=2)
        inner = getattr(pipe.composition, FIELDS[role])
        pipe.parts.composition = attrs.evolve(pipe.composition, **{FIELDS[role]: Acting(inner, member, 1, act)})
        results, told = collected(pipe.decode(ASKED))
    assert results == []
    assert told.startswith(role), told
    assert told.endswith("on sim:0, as the batch, got cpu"), told


def test_results_that_wait_for_one_that_an_error_ends_come_before_it() -> None:
    """Results are given in their order; those after one that does not come are given before the error."""

    def completed() -> Iterator[Result]:
        results = {one.index: one for one in PIPE.decode(ASKED)}
        yield results[2]
        yield results[1]
        raise ContractError("planted")

    results, told = collected(in_order(completed(), [one.key for one in ASKED]))
    assert [one.index for one in results] == [1, 2]
    assert told == "planted"
