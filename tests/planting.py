"""Faults that tests plant in one call of one member, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest
import torch
from specframe_testing import harness

from specframe.contracts.requests import Request, Result
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.errors import SpecframeError, SpecframeWarning
from specframe.pipeline import Pipeline
from specframe.plugins.compose import Composition

FAULTS: dict[str, Callable[[], BaseException]] = {
    "memory": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "error": lambda: ValueError("planted"),
    "exit": lambda: SystemExit(3),
}

Point = tuple[str, str, str]
"""A role, what it makes that is called ("" for itself), and the member called."""

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
            # a static layout needs no committing of chains
            more = {"static": False} if self._member == "commit" else {}
            made.__class__ = type("Made", (type(made),), {self._member: member, "__module__": __name__, **more})
            return made

        return make


def raising(fault: str) -> Act:
    """Return what raises an error."""

    def act(inner: Any, usual: Callable[[], Any]) -> Any:
        raise FAULTS[fault]()

    return act


def plant(pipe: Pipeline, usual: Composition, point: Point, at: int, act: Act) -> Acting:
    """Put what acts at a point, whose role is named by its field, into a composition of a pipeline, and return it."""
    field, maker, member = point
    inner = getattr(usual, field)
    acting = Making(inner, maker, member, at, act) if maker else Acting(inner, member, at, act)
    pipe.parts.composition = attrs.evolve(usual, **{field: acting})
    return acting


def assert_survived(pipe: Pipeline, asked: list[Request], point: Point, reported: range) -> None:
    """Assert that at whatever call of a point memory runs out or it fails, no token is lost or comes twice.

    ``reported``: how many errors an engine that goes on may report.
    """
    usual, expected = pipe.parts.composition, wanted(pipe.target_model, asked)
    counted = plant(pipe, usual, point, 0, raising("error"))
    harness.check(pipe, asked)
    for at in turns(counted.calls):
        plant(pipe, usual, point, at, raising("memory"))
        with pytest.warns(SpecframeWarning, match="memory"):
            harness.check(pipe, asked)
        plant(pipe, usual, point, at, raising("error"))
        ended, errors = stepped(opened(pipe, asked))
        assert ended == expected
        assert errors in reported
        plant(pipe, usual, point, at, raising("error"))
        results, told = collected(pipe.decode(asked))
        assert bool(told) == bool(errors)
        assert all(one.token_ids == expected[one.index] for one in results)


def noting(patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any]) -> list[Any]:
    """Return a list that gets, after each call of a member, what ``note`` makes of its result and arguments but None."""
    found, usual = list[Any](), getattr(owner, name)

    def noted(*given: Any, **named: Any) -> Any:
        result = usual(*given, **named)
        if (one := note(result, *given, **named)) is not None:
            found.append(one)
        return result

    patch.setattr(owner, name, noted)
    return found


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


def opened(pipe: Pipeline, asked: Any, observers: Any = ()) -> LocalEngine:
    """Return an engine that has taken requests."""
    engine = LocalEngine(pipe.recipe, pipe.parts, observers, HandClock(), pipe.executor)
    for one in asked:
        engine.add(one)
    return engine


def stepped(engine: LocalEngine) -> tuple[dict[int, list[int]], int]:
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


def wanted(target: Any, asked: list[Request]) -> dict[int, list[int]]:
    """Return the target's tokens of all requests."""
    return {one.index: harness.expected(target, one)[0] for one in asked}


def assert_once(target: Any, asked: list[Request], results: list[Result], complete: bool) -> None:
    """Assert that no request has two results, that they have the target's tokens, and that all have one where that is asked."""
    given = [one for one in asked if one.index in {result.index for result in results}]
    harness.assert_exact(target, given, sorted(results, key=lambda one: one.index))
    assert not complete or len(given) == len(asked)
