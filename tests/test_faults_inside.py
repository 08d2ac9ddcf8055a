"""What strategies call in their turn fails at its first, a middle and its last call: observers, models, attention, devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import torch
from planting import (
    FAULTS,
    WRONG,
    Acting,
    assert_once,
    collected,
    opened,
    plant,
    raising,
    shapes,
    stepped,
    turns,
    wanted,
)
from specframe_testing import fakes, harness, paged_fake, suite_device, zoo

from specframe.contracts.requests import Result
from specframe.contracts.roles import Observer
from specframe.engine.result_factory import in_order
from specframe.errors import ContractError
from specframe.plugins.compose import FIELDS
from specframe.plugins.protocols import members

pytestmark = pytest.mark.filterwarnings("ignore::specframe.errors.SpecframeWarning")

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
ASKED = harness.requests(harness.random_prompts((5, 1, 3), 61), [4, 7, 3])
PIPE = harness.pipeline(TARGET, DRAFT, draft_length=3, batch_size=2)
WANTED = wanted(TARGET, ASKED)


class Quiet(Observer):
    """Does nothing."""


@pytest.mark.wide(but=["enter", "leave"])
@pytest.mark.parametrize("member", [one for one in members("observer") if one != "spent"])  # told of other processes
def test_an_observer_that_raises_is_heard_after_the_results(member: str) -> None:
    """Whoever gave an observer hears its own error, no strategy is blamed, and no result is lost."""
    counting = Acting(Quiet(), member, 0, raising("error"))
    short, expected = ASKED[::2], {index: WANTED[index] for index in (0, 2)}
    stepped(opened(PIPE, short, observers=[counting]))
    some = turns(counting.calls)
    every = range(1, counting.calls + 1)  # stages that end a round are few among those that end
    for at in every if member == "leave" else some:
        for fault in ("error", "exit") if at in some else ("error",):
            engine, ended = (
                opened(PIPE, short, observers=[Acting(Quiet(), member, at, raising(fault))]),
                dict[int, list[int]](),
            )
            heard = list[BaseException]()
            while not engine.idle:
                try:
                    report = engine.step()
                except (ValueError, SystemExit) as error:
                    heard.append(error)
                else:
                    ended |= {one.request.index: one.token_ids for one in (report.finished if report else ())}
            assert ended == expected, at
            assert len(heard) == 1
            assert not isinstance(heard[0], ContractError)


@pytest.mark.wide(but=["target-exit"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_models_forward_may_fail(role: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without memory is fed again; any other error is reported as that of the strategy that fed it."""
    model = PIPE.target_model if role == "target" else PIPE.draft_model
    acting = Acting(model, "forward", 0, raising(fault))
    usual, weight = type(model).forward, next(model.parameters())

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        its_own = next(self.parameters()) is weight  # of its twin, too
        return acting.called(lambda: usual(self, *given, **named)) if its_own else usual(self, *given, **named)

    harness.check(PIPE, ASKED)  # models are tried, which no later run does
    monkeypatch.setattr(type(model), "forward", forward)
    harness.check(PIPE, ASKED)
    for at in turns(acting.calls):
        acting._at, acting.calls = at, 0
        results, told = collected(PIPE.decode(ASKED))
        assert_once(TARGET, ASKED, results, complete=fault == "memory")
        assert told.startswith("" if fault == "memory" else "verifier" if role == "target" else "drafter")
        assert bool(told) == (fault != "memory")


NUMBERS = itertools.count()


class Gathering(paged_fake.Gathering):
    """An attention backend for plain keys and values that acts at one call of one of its members, or of its plans' ``attend``."""

    needs = frozenset[str]()
    offers = frozenset({"dense", "tree", "window"})

    def __init__(self, member: str = "", at: int = 0, act: Any = None) -> None:
        self._member, self.acting = member, Acting(self, "", at, act)
        self._number = next(NUMBERS)  # a model is tried anew with each

    def _called(self, member: str, usual: Callable[[], Any]) -> Any:
        return self.acting.called(usual) if member == self._member else usual()

    def suits(self, facts: Any) -> bool:
        """Return whether it can attend for a model."""
        return bool(self._called("suits", lambda: True))

    def plan(self, placement: Any) -> Any:
        """Return the attention of one forward."""
        return self._called("plan", lambda: Gathered(self, placement))


class Gathered(paged_fake.Gathered):
    """The attention of one forward, which acts at one call of all."""

    def __init__(self, backend: Gathering, placement: Any) -> None:
        super().__init__(placement)
        self._backend = backend

    def attend(self, *given: Any) -> Any:
        """Return the values attended to."""
        usual = super().attend
        return self._backend._called("attend", lambda: usual(*given))


ATTENDING = zoo.build("llama", eos_token_id=None)
ATTENDED = harness.requests(harness.random_prompts((5, 1, 3), zoo.VOCABULARY), [4, 7, 3])


def attended(backend: Gathering) -> tuple[list[Result], str]:
    """Return the results with an attention backend until an error, and its sentence."""
    pipe = harness.pipeline(ATTENDING, ATTENDING, draft_length=3, batch_size=2, attention=backend)
    return collected(pipe.decode(ATTENDED))


@pytest.mark.wide(but=["attend"])
@pytest.mark.parametrize("member", ["suits", "plan", "attend"])
def test_an_attention_backend_may_fail_at_any_call(member: str) -> None:
    """The backend is named, in the middle of a model's forward as well, in its check and later; a lack of memory passes."""
    usual = Gathering(member)
    results, _ = attended(usual)
    assert_once(ATTENDING, ATTENDED, results, complete=True)
    for at in turns(usual.acting.calls):
        for fault in FAULTS:
            results, told = attended(Gathering(member, at, raising(fault)))
            assert_once(ATTENDING, ATTENDED, results, complete=fault == "memory")
            name = "plan.attend" if member == "attend" else member
            expected = "" if fault == "memory" else f"attention backend Gathering: {name}() raised"
            assert told.startswith(expected), (at, fault, told)
            assert bool(told) == (fault != "memory")


@pytest.mark.wide(but=["one column less"])
@pytest.mark.parametrize("wrong", [one for one in WRONG if one != "nan"])
def test_values_of_an_attention_backend_that_are_wrong_are_told(wrong: str) -> None:
    """What a layer's attention returns is looked at where it returns: the model, which would fail on it, is not blamed."""
    usual = Gathering("attend")
    attended(usual)
    for at in turns(usual.acting.calls):
        results, told = attended(Gathering("attend", at, lambda inner, usual: WRONG[wrong](usual())))
        assert told.startswith(
            "attention backend Gathering: plan.attend() must return values of shape (B, T, H, D) = "
        ), told
        assert_once(ATTENDING, ATTENDED, results, complete=False)


@pytest.mark.wide
def test_a_row_that_attention_leaves_undecided_ends_alone_or_the_backend_is_refused() -> None:
    """Nan in a check refuses the backend; later it ends the sequences of that forward with an error, and no other."""
    usual = Gathering("attend")
    attended(usual)
    trial, last = 1, usual.acting.calls
    _, told = attended(Gathering("attend", trial, lambda inner, usual: WRONG["nan"](usual())))
    assert "attention 'gathering' cannot be had" in told
    results, told = attended(Gathering("attend", last, lambda inner, usual: WRONG["nan"](usual())))
    assert told == ""
    failed = [one for one in results if one.finish_reason == "error"]
    assert failed
    assert all("logits are no distribution" in str(one.error) for one in failed)
    assert_once(ATTENDING, ATTENDED, [one for one in results if one not in failed], complete=False)


ELSEWHERE = [
    ("drafter", "propose", None),
    ("drafter", "propose", "logits_BNV"),
    ("verifier", "score", None),
    ("acceptance rule", "choose", None),
    ("acceptance rule", "accept", None),
]


@pytest.mark.wide(but=["drafter-propose-logits_BNV"])
@pytest.mark.parametrize(("role", "member", "field"), ELSEWHERE)
def test_a_value_on_another_device_is_told(role: str, member: str, field: str | None) -> None:
    """On an accelerator a tensor of the host is reported as its strategy's: not as that of the next one, which it fails in."""

    def act(inner: Any, usual: Callable[[], Any]) -> Any:
        value = usual()
        if field is None:
            return shapes(value, lambda one: one.cpu())
        return attrs.evolve(value, **{field: torch.zeros(*value.tokens_BN.shape, 61)})

    with suite_device.running_on("sim"):
        pipe = harness.pipeline(TARGET, DRAFT, draft_length=3, batch_size=2)
        plant(pipe, pipe.composition, (FIELDS[role], "", member), 1, act)
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
