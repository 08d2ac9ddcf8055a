"""Strategies at fault: each fault of each role is one sentence that names the strategy, its distribution and the member.

A fault is planted in a standard strategy and offered by a distribution, so that it is met by a pipeline, by the command line and
by the suite of its role, which must all say the same: what the contract asks for, and what was got.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import torch
from command_line import invoke
from specframe_std import watchdog
from specframe_testing import conformance, fakes, harness

from specframe.contracts.attention import Attend
from specframe.contracts.cache import DenseView
from specframe.contracts.drafts import Acceptance, Budget, Draft, Scores, StoppingRule
from specframe.contracts.roles import Layout, Observer
from specframe.contracts.round import Batch
from specframe.engine.guards import guard_table
from specframe.engine.guards.guard import RUNNING
from specframe.errors import ContractError, PluginError, SpecframeError, SpecframeWarning
from specframe.models.pairs import choose
from specframe.plugins.compose import OPTIONS
from specframe.plugins.entries import OTHERS, ROLES
from specframe.plugins.protocols import OFFERED, PROTOCOLS, members_of
from specframe.plugins.registry import Registry, add_entry, registry

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)

BASES = {
    "drafter": "prompt-lookup",
    "verifier": "chain",
    "acceptance rule": "greedy",
    "alignment": "eqspec",
    "scheduler": "continuous",
    "KV backend": "dynamic",
    "draft-length policy": "fixed,length=4",
    "attention backend": "flex",
}
"""The standard strategy that each role's faults are planted in."""

AROUND: dict[str, dict[str, Any]] = {"KV backend": {"align": "eqspec"}}
"""What a role's faulty strategy is combined with."""


@attrs.frozen
class Fault:
    """What is wrong with one member of a strategy, and the sentence that has to be said of it."""

    role: str
    member: str
    wrong: Callable[..., Any]
    """(what the member returned, its arguments) -> what it returns instead."""
    said: str
    """A pattern for what follows the strategy's name."""


def raises(error: BaseException) -> Callable[..., Any]:
    """Return what raises an error."""

    def wrong(*_: Any) -> Any:
        raise error

    return wrong


def writes(name: str) -> Callable[..., Any]:
    """Return what writes to one of the batch's tensors."""

    def wrong(returned: Any, batch: Batch, *_: Any) -> Any:
        getattr(batch, name).add_(1)
        return returned

    return wrong


def drafted(change: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    """Return what gives another draft where there is one."""
    return lambda draft, batch, budget: Draft(change(draft.tokens_BN)) if budget.depth else draft


MUST = r"\(\) must return "
RAISED = r"\(\) raised "
TRANSFER = MUST + r"the specframe.contracts.drafts.Transfer it was given, or transfer.of\(acceptance\), got "
DEPTH = MUST + "a depth from 0 to its maximum of 4, got "

WRONG: dict[tuple[str, str], dict[str, tuple[Callable[..., Any], str]]] = {
    ("drafter", "start"): {
        "drafter has no draft model": (
            lambda _, run: run.open_cache(run.draft_model),
            RAISED + r"TypeError: run.open_cache: expected a model \(run.draft_model if one is named\), got None, at ",
        ),
    },
    ("drafter", "propose"): {
        "drafter returns None": (lambda *_: None, MUST + r"a specframe.contracts.drafts.Draft, got None"),
        "drafter returns a list in a draft": (drafted(torch.Tensor.tolist), MUST + r"tokens_BN as a tensor, got \[\["),
        "drafter returns floats": (
            drafted(torch.Tensor.float),
            MUST + r"tokens_BN of whole numbers, torch.int64, got torch.float32",
        ),
        "drafter returns too many tokens": (
            drafted(lambda tokens: tokens.repeat(1, 2)),
            MUST + r"tokens_BN of shape \(B, N\) = \(3, 4 at most\), got \(3, 8\)",
        ),
        "drafter returns logits of another shape": (
            lambda draft, *_: Draft(draft.tokens_BN, torch.zeros(1, 1, 61)),
            MUST + r"logits_BNV of shape \(B, N, V\) = \(3, 0, V\), got \(1, 1, 61\)",
        ),
        "drafter drafts while prompts are read": (
            lambda draft, batch, _: Draft(batch.tokens_BS[:, :2]),
            MUST + r"tokens_BN of shape \(B, N\) = \(3, 0\), got \(3, 2\)",
        ),
        "drafter raises": (raises(ValueError("no luck")), RAISED + r"ValueError: no luck, at .*test_plugin_faults"),
        "drafter writes tokens": (writes("tokens_BS"), r"\(\) must not write to the batch, and it did"),
    },
    ("verifier", "score"): {
        "verifier returns None": (lambda *_: None, MUST + r"a specframe.contracts.drafts.Scores, got None"),
        "verifier returns whole numbers": (
            lambda scores, *_: Scores(scores.logits_BTV.long()),
            MUST + r"logits_BTV of floats, got torch.int64",
        ),
        "verifier returns the last place alone": (
            lambda scores, *_: Scores(scores.logits_BTV[:, -1]),
            MUST + r"logits_BTV of shape \(B, N \+ 1, V\) = \(3, 1, V\), got \(3, 61\)",
        ),
    },
    ("acceptance rule", "accept"): {
        "rule returns a tuple": (
            lambda acceptance, *_: (acceptance.accepted_B, acceptance.tokens_BT),
            MUST + r"a specframe.contracts.drafts.Acceptance, got \(tensor",
        ),
        "rule returns no bonus token": (
            lambda acceptance, *_: Acceptance(acceptance.accepted_B, acceptance.tokens_BT[:, :-1]),
            MUST + r"tokens_BT of shape \(B, K \+ 1\) = \(3, 1\), got \(3, 0\)",
        ),
    },
    ("acceptance rule", "choose"): {
        "rule chooses for one row": (
            lambda chosen, *_: chosen[:1],
            MUST + r"token ids of shape \(B,\) = \(3,\), got \(1,\)",
        ),
    },
    ("alignment", "layout"): {
        "alignment has no layout": (lambda *_: None, MUST + r"a layout with arrange, commit, place, static, got None"),
    },
    ("alignment", "commit"): {
        "alignment commits nothing": (lambda *_: None, TRANSFER + "None"),
        "alignment commits a copy": (lambda stands, *_: attrs.evolve(stands), TRANSFER),
    },
    ("scheduler", "rows"): {
        "scheduler has no rows": (lambda *_: 0, MUST + r"a whole number of at least 1, got 0"),
    },
    ("scheduler", "next_batch"): {
        "scheduler gives up": (lambda *_: None, MUST + r"a batch while \d sequences are unfinished, got None"),
        "scheduler returns sequences": (
            lambda batch, pool: pool.live,
            MUST + r"a batch that pool.batch\(\) made, or None, got \[",
        ),
    },
    ("KV backend", "open"): {
        "KV backend opens nothing": (
            lambda *_: None,
            MUST + r"a store with arrange, expect, first, move, nbytes, release, reserve, rows, slots, write, got None",
        ),
    },
    ("attention backend", "suits"): {
        "attention backend suits perhaps": (lambda *_: "perhaps", MUST + r"true or false, got 'perhaps'"),
    },
    ("attention backend", "plan"): {
        "attention backend plans nothing that attends": (
            lambda *_: 5,
            MUST + r"an object with attend, or None, got 5",
        ),
    },
    ("draft-length policy", "budget"): {
        "policy says less than nothing": (lambda *_: Budget(-1), DEPTH + "-1"),
        "policy says true": (lambda *_: Budget(True), DEPTH + "True"),
    },
}
"""Of each member what it may do wrong, and the sentence, for three rows, four draft tokens and 61 token ids."""
FAULTS = {case: Fault(*key, *fault) for key, cases in WRONG.items() for case, fault in cases.items()}


def faulty(fault: Fault) -> type:
    """Return the class of a standard strategy with one member at fault."""
    name, _, options = BASES[fault.role].partition(",")
    base: Any = registry().entry(fault.role, name).factory

    class Faulty(base):
        """A strategy at fault."""

        def __init__(self) -> None:
            super().__init__(*([4] if options else []))

    right = getattr(base, fault.member)

    def wrong(self: Any, *arguments: Any) -> Any:
        return fault.wrong(right(self, *arguments), *arguments)

    setattr(Faulty, fault.member, wrong)
    return Faulty


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The registry of a process of its own, to which a test adds what it likes."""
    registry.cache_clear()
    yield registry()
    registry.cache_clear()


def pattern(fault: Fault) -> str:
    """Return the whole sentence that a fault has to be reported by."""
    return rf"^{re.escape(fault.role)} 'faulty' of faulty-dist: {fault.member}{fault.said}"


def options(fault: Fault) -> dict[str, Any]:
    """Return the options that choose the faulty strategy, and others that have it called."""
    around = {"drafter": DRAFT, "draft_length": 4, "batch_size": 3, **AROUND.get(fault.role, {})}
    return around | {OPTIONS[fault.role]: "faulty"}


def suite_of(role: str) -> Any:
    """Return the tests of a role's suite on the faulty strategy."""
    words = "".join(word[0].upper() + word[1:] for word in role.replace("-", " ").split())
    return type("Tests", (getattr(conformance, f"{words}Suite"),), {"make": lambda self: "faulty"})()


def test_guards_ask_what_is_called() -> None:
    """Every method of a guard is a member of the protocol that it guards: another one would never be called."""
    made = {"layout": Layout, "stopping rule": StoppingRule, "plan": Attend}
    for kind, asked in guard_table.TABLE.items():
        protocols = [made[kind]] if kind in made else [PROTOCOLS[kind], *OFFERED.get(kind, {}).values()]
        known = {name for protocol in protocols for name in members_of(protocol)}
        assert {one.__name__ for one in asked} <= known, kind


@pytest.mark.wide(but=["drafter has no draft model"])
@pytest.mark.parametrize("case", FAULTS)
def test_a_pipeline_names_the_fault(case: str, known: Registry) -> None:
    """A run ends with a sentence that names role, strategy, distribution and member, what is asked for and what was got."""
    fault = FAULTS[case]
    add_entry(known, "faulty-dist", fault.role, "faulty", faulty(fault))
    with pytest.raises(ContractError, match=pattern(fault)) as raised:
        harness.decode(
            harness.pipeline(TARGET, **options(fault)), harness.requests(harness.random_prompts([5, 9, 2], 61), 9)
        )
    assert "\n" not in str(raised.value)


@pytest.mark.wide(but=["alignment commits a copy"])
@pytest.mark.parametrize("case", {fault.role: case for case, fault in FAULTS.items()}.values())
def test_a_suite_names_the_fault(case: str, known: Registry) -> None:
    """A test of the role's suite fails with an assertion in the same words."""
    fault = FAULTS[case]
    add_entry(known, "faulty-dist", fault.role, "faulty", faulty(fault))
    with pytest.raises(AssertionError, match=pattern(fault)):
        suite_of(fault.role).test_equals_reference(surroundings=AROUND.get(fault.role, {}))


@pytest.mark.wide
def test_a_suite_finds_scores_that_are_no_numbers(known: Registry) -> None:
    """A verifier's suite looks at the scores themselves, which a run leaves on the device."""
    fault = Fault("verifier", "score", lambda scores, *_: Scores(scores.logits_BTV * torch.nan), "")
    add_entry(known, "faulty-dist", "verifier", "faulty", faulty(fault))

    said = r"^verifier 'faulty' of faulty-dist: score\(\) must return logits that are numbers, got NaN"
    with pytest.raises(AssertionError, match=said):
        suite_of("verifier").test_scores_are_the_targets()


@pytest.mark.wide
@pytest.mark.parametrize("role", ROLES)
def test_the_command_line_names_the_fault(role: str, known: Registry) -> None:
    """``specframe run`` with a strategy that raises ends with one sentence and status 2."""
    members = {"scheduler": "next_batch", "KV backend": "open", "draft-length policy": "budget"}
    member = {**members, "attention backend": "suits"}.get(role, "start")
    fault = Fault(role, member, raises(SystemExit(7)), "")
    add_entry(known, "faulty-dist", role, "faulty", faulty(fault))
    chosen = AROUND.get(role, {}) | {OPTIONS[role].replace("_", "-"): "faulty"}
    words = ["run", "import os", "--max-new-tokens=2", *(f"--{option}={value}" for option, value in chosen.items())]
    done = invoke(*words)
    assert done.exit_code == 2
    assert f"Error: {role} 'faulty' of faulty-dist: {member}() raised SystemExit: 7, at " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.wide
@pytest.mark.parametrize("role", [*ROLES, *OTHERS])
def test_what_is_no_factory_is_told_when_it_is_used(role: str, known: Registry) -> None:
    """What was registered in place of a class is named, and listed; everything else can be used."""
    add_entry(known, "faulty-dist", role, "faulty", 5)
    with pytest.raises(PluginError, match=rf"^{role} 'faulty' of faulty-dist: register\(\) takes a class, .*, got 5"):
        known.make(role, "faulty")
    done = invoke("plugins", "show", "faulty")
    assert done.exit_code == 0
    assert "cannot be used: " in done.stdout
    assert known.make("drafter", "none")


@pytest.mark.wide
@pytest.mark.parametrize("member", ["enter", "leave", "forward", "round"])
def test_a_broken_observer_of_a_plugin_is_dropped(member: str, known: Registry) -> None:
    """The run goes on, with one warning that names the observer and its distribution, and its tokens are right."""
    loud = type("Loud", (Observer,), {member: lambda self, *_: 1 / 0, "__module__": __name__})
    add_entry(known, "faulty-dist", "observer", "loud", loud)
    asked = harness.requests(harness.random_prompts([5, 9], 61), 9)
    with pytest.warns(SpecframeWarning) as warned:
        harness.check(harness.pipeline(TARGET, DRAFT), asked)
    said = [str(one.message) for one in warned]
    assert len(said) == 1
    assert said[0].startswith(
        f"observer 'loud' of faulty-dist receives nothing more: {member}() raised ZeroDivisionError: division by zero, at "
    )


@pytest.mark.wide
@pytest.mark.parametrize("given", [lambda: 1 / 0, lambda: None, 5], ids=["raises", "makes none", "no factory"])
def test_an_observer_that_cannot_be_made_is_left_out(given: Any, known: Registry) -> None:
    """A plugin's observer that cannot be made is warned of, and every run goes on without it."""
    add_entry(known, "faulty-dist", "observer", "loud", given)
    with pytest.warns(SpecframeWarning, match=r"^observer 'loud' of faulty-dist is left out: "):
        harness.check(harness.pipeline(TARGET, DRAFT), harness.requests([[5, 6]], 4))


STORED = {
    "nothing": (lambda view: None, r"a DenseView or PagedView of specframe.contracts.cache, got None"),
    "keys alone": (
        lambda view: view.keys,
        r"a DenseView or PagedView of specframe.contracts.cache, got a tensor of shape",
    ),
    "fewer rows": (
        lambda view: DenseView(view.keys[:1], view.values),
        r"keys of shape \(B, H, S, D\) = \(2, 1, 5, 2\), got \(1, 1, 5, 2\)",
    ),
    "fewer slots": (
        lambda view: DenseView(view.keys[:, :, 1:], view.values[:, :, 1:]),
        r"keys of shape \(B, H, S, D\) = \(2, 1, 5, 2\), got \(2, 1, 4, 2\)",
    ),
    "other values": (
        lambda view: DenseView(view.keys, view.keys),
        r"values of shape \(B, H, S, D\) = \(2, 1, 5, 1\), got \(2, 1, 5, 2\)",
    ),
}


@pytest.mark.wide(but=["fewer slots"])
@pytest.mark.parametrize("case", STORED)
def test_what_a_store_hands_out_is_looked_at(case: str, known: Registry) -> None:
    """Keys and values of another shape than the model's are reported as the KV backend's fault."""
    change, said = STORED[case]
    dynamic: Any = known.entry("KV backend", "dynamic").factory

    class Bent(dynamic):
        """A backend whose stores hand out something else."""

        def open(self, *arguments: Any) -> Any:
            store = super().open(*arguments)
            write = store.write
            store.write = lambda *given, **named: change(write(*given, **named))
            return store

    add_entry(known, "faulty-dist", "KV backend", "faulty", Bent)
    pipe = harness.pipeline(TARGET, DRAFT, align="eqspec", kv="faulty")
    with pytest.raises(
        ContractError, match=rf"^KV backend 'faulty' of faulty-dist: store.write\(\) must return {said}"
    ):
        harness.decode(pipe, harness.requests([[5, 6], [7, 8, 9, 1, 2, 3]], 4))


@pytest.mark.wide(but=["40-True"])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("moved", [40, -40])
def test_a_slot_that_there_is_not_is_told(known: Registry, moved: int, check: bool) -> None:
    """Slots beyond those of a row, or before its first, are reported as the alignment's before anything is written to them."""
    ragged: Any = known.entry("alignment", "ragged").factory

    class Astray(ragged):
        """An alignment that places tokens where no slots are."""

        def layout(self, *arguments: Any) -> Any:
            layout = super().layout(*arguments)
            place = layout.place
            layout.place = lambda *given: attrs.evolve(place(*given), slots_BT=place(*given).slots_BT + moved)
            return layout

    add_entry(known, "faulty-dist", "alignment", "faulty", Astray)
    said = r"^alignment 'faulty' of faulty-dist: layout.place\(\) must return slots_BT from 0 to \d+, got -?\d+$"
    with pytest.raises(ContractError, match=said):
        harness.decode(harness.pipeline(TARGET, DRAFT, align="faulty", check=check), harness.requests([[5, 6]], 9))


@pytest.mark.wide
def test_a_device_that_gave_up_is_explained() -> None:
    """Where a device's own assertion ended the run, the likely cause and the way to find whose it is are named."""
    drafter = fakes.always_right([[1]])
    drafter.propose = raises(RuntimeError("CUDA error: device-side assert triggered"))  # type: ignore[method-assign]
    with pytest.raises(ContractError, match=r"device-side assert triggered \(on CUDA a token id beyond the vocabulary"):
        harness.decode(harness.pipeline(TARGET, drafter), harness.requests([[5, 6]], 4))


@pytest.mark.wide
def test_a_batch_is_for_reading() -> None:
    """The host's copies that a batch shows cannot be written to, and writing to them ends the run with the writer's name."""

    class Writer(fakes.ScriptedDrafter):
        def propose(self, batch: Batch, budget: Budget) -> Draft:
            batch.lengths[:] = 1
            return super().propose(batch, budget)

    with pytest.raises(ContractError, match=r"Writer: propose\(\) raised ValueError: .*read-only"):
        harness.decode(harness.pipeline(TARGET, Writer([[1] * 9])), harness.requests([[5, 6]], 4))


@pytest.mark.wide
@pytest.mark.parametrize("error", [ZeroDivisionError("none"), SystemExit(3), KeyError("lost")], ids=repr)
def test_a_constructor_that_raises_is_told(error: BaseException, known: Registry) -> None:
    """What a strategy's constructor raises is reported with its name and distribution."""
    add_entry(known, "faulty-dist", "drafter", "faulty", raises(error))
    kind = type(error).__name__
    with pytest.raises(SpecframeError, match=rf"^drafter 'faulty' of faulty-dist could not be made: {kind}: "):
        known.make("drafter", "faulty")


def test_a_drafter_names_its_draft_model(known: Registry) -> None:
    """Any drafter with an option ``of`` has the model that is named there as its draft model; without it it is not made."""

    class Reader:
        def __init__(self, of: str) -> None:
            """Take the drafter that runs the model by itself."""

    add_entry(known, "reader-dist", "drafter", "reader", Reader)
    assert choose("tiny", "reader,of=tiny-draft") == ("tiny", "reader,of=model", "tiny-draft")
    with pytest.raises(SpecframeError, match=r"^drafter 'reader': expected 'reader,of=...', got no of$"):
        known.make("drafter", "reader")


def test_a_call_that_takes_long_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that has run for a minute is named once, with its strategy; a shorter one, and the next, are not."""
    now = 0.0
    dog = watchdog.Watchdog(lambda: now)
    running = guard_table.guard("drafter", registry().make("drafter", "prompt-lookup"))
    monkeypatch.setitem(RUNNING, 0, None)
    assert dog.look() is None
    monkeypatch.setitem(RUNNING, 0, (running, "propose", 5.0))
    now = 5.0 + watchdog.PATIENCE - 1
    assert dog.look() is None
    now += 1
    said = (
        "specframe: drafter 'prompt-lookup' of specframe-std: propose() has been running for 60 s; Ctrl-C ends the run"
    )
    assert [dog.look(), dog.look()] == [said, None]
    monkeypatch.setitem(RUNNING, 0, (running, "propose", now))
    assert dog.look() is None


def test_commands_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command runs inside the block of the watchdog."""
    seen = []

    @contextlib.contextmanager
    def watch() -> Iterator[None]:
        seen.append("begun")
        yield
        seen.append("over")

    monkeypatch.setattr(watchdog, "watch_calls", watch)
    registry.cache_clear()
    assert invoke("models", "list").exit_code == 0
    registry.cache_clear()
    assert seen == ["begun", "over"]


@pytest.mark.wide
def test_the_watchdog_ends_with_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """While a command runs its calls are looked at, and no thread is left after it."""
    told = threading.Event()
    monkeypatch.setattr(watchdog, "PACE", 0.001)
    monkeypatch.setattr(watchdog.Watchdog, "look", lambda self: told.set() or "a line")
    before = set(threading.enumerate())
    with watchdog.watch_calls():
        assert told.wait(1200)
        watching = set(threading.enumerate()) - before
    for thread in watching:
        thread.join(1200)
    assert len(watching) == 1
    assert not any(thread.is_alive() for thread in watching)
    assert "a line" in capsys.readouterr().err
