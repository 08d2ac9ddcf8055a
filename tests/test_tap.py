"""The tap around strategies: what it tells and when, and that what is inside works as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from specframe_testing import fakes, harness

from specframe.contracts.drafts import Draft, Transfer, Verdict
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.probes.cache_checks import Ledger
from specframe.probes.tap import Listener, Tap, TappedAlignment, listeners

EVENTS = [name for name in vars(Listener) if not name.startswith("_")]


class Fake(Listener):
    """Notes each event with its arguments; listens to caches where it is told to."""

    def __init__(self, log: list[Any], caches: bool = True) -> None:
        self.log, self.caches = log, caches


def noting(event: str) -> Callable[..., Any]:
    def note(self: Fake, *given: Any, **named: Any) -> Fake | None:
        self.log.append((event, *given, *named.values()))
        return self if event == "opening" and self.caches else None

    return note


for _event in EVENTS:
    setattr(Fake, _event, noting(_event))


class Inner:
    """A strategy, layout or store with every member; notes its calls."""

    other = "as before"

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Callable[..., str | None]:
        def call(*given: Any, **named: Any) -> str | None:
            self.log.append((f"does {name}", *given, *named.values()))
            return None if name in ("start", "settle", "arrange", "move") else f"its {name}"

        return call


def parts(log: list[Any]) -> dict[str, Any]:
    """Return a tap around each of a rule, an alignment, its layout and its store, the latter as the layout has it."""

    class Laying(Inner):
        def layout(self, store: Any, rows: int, capacity: int) -> Any:
            inner = Inner(log)
            inner.store = store
            return inner

    alignment = TappedAlignment(Laying(log), Fake(log))
    layout = alignment.layout(Inner(log), 2, 9)
    log.clear()
    return {
        "rule": Tap(Inner(log), Fake(log), judge="judged"),
        "alignment": alignment,
        "layout": layout,
        "store": layout.store,
    }


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("part", "member", "given", "event"),
    [
        ("rule", "judge", ("batch", "draft", "scores"), "judged"),
        ("alignment", "start", ("run",), "started"),
        ("layout", "place", ("batch", "block"), "placed"),
        ("layout", "settle", ("batch", "kept"), "settled"),
        ("store", "arrange", ("sequences",), "arranged"),
        ("store", "move", ("sources", "targets"), "moved"),
    ],
)
def test_each_call_is_told_once(part: str, member: str, given: tuple[str, ...], event: str, named: bool) -> None:
    """A call goes inside with its arguments, comes back, and is told once, afterwards, with the same objects."""
    log: list[Any] = []
    call = getattr(parts(log)[part], member)
    returned = call(*given[:-1], last=given[-1]) if named else call(*given)
    assert returned == (f"its {member}" if member in ("judge", "place") else None)
    assert log == [(f"does {member}", *given), (event, *([returned] if returned else []), *given)]


@pytest.mark.parametrize("part", ["rule", "alignment", "layout", "store"])
def test_other_members_stay(part: str) -> None:
    """A tap has the members it says nothing of, and tells nobody of them."""
    log: list[Any] = []
    tap = parts(log)[part]
    assert tap.other == "as before"
    assert tap.choose("x") == "its choose"
    assert log == [("does choose", "x")]
    assert isinstance(tap.__wrapped__, Inner)


class Rewriting:
    """An alignment that writes to all it is handed."""

    def commit(self, batch: Any, draft: Any, transfer: Transfer) -> Transfer:
        batch.sequences.reverse()
        transfer.verdict.accepted_B.zero_()
        transfer.verdict.tokens_BT.zero_()
        return transfer


def test_the_verdict_told_is_the_one_handed_over() -> None:
    """A listener to a commit gets the batch's order and the verdict as they were before the alignment wrote to them."""
    log: list[Any] = []
    batch, verdict = type("Batch", (), {"sequences": ["a", "b"]})(), Verdict(torch.tensor([1]), torch.tensor([[5, 6]]))
    transfer: Any = Transfer(Draft(torch.tensor([[5]])), verdict)
    stands = TappedAlignment(Rewriting(), Fake(log)).commit(batch, transfer.draft, transfer)
    ((event, _, order, judged, told),) = log
    assert (event, order, batch.sequences) == ("committed", ["a", "b"], ["b", "a"])
    assert (judged.accepted_B.tolist(), judged.tokens_BT.tolist()) == ([1], [[5, 6]])
    assert told is stands is transfer
    assert stands.verdict.accepted_B.tolist() == [0]


def test_caches_that_nobody_listens_to_have_no_tap() -> None:
    """Where a listener wants to hear of no cache, the alignment lays out the store itself."""
    log: list[Any] = []
    assert TappedAlignment(Inner(log), Fake(log, caches=False)).layout("store", 2, 9) == "its layout"
    assert log == [("opening", 2), ("does layout", "store", 2, 9)]


TARGET = fakes.fake_target()
ASKED = harness.requests(harness.random_prompts([7, 1, 13, 4], 61), 9)


class Following(Fake):
    """Also notes who listens to the caches of a run."""

    def started(self, run: Any) -> None:
        super().started(run)
        self.heard = [[type(listener) for listener in listeners(cached.layout)] for cached in run.caches]


def told(align: str, **options: Any) -> Following:
    """Return what was told of an exact run."""
    fake = Following([])
    alignment = TappedAlignment(strategy(registry(), "alignment", align), fake)
    given = {"align": alignment, "batch_size": 2, "draft_length": 3, "schedule": "continuous", **options}
    harness.check(harness.pipeline(TARGET, fakes.fake_draft(TARGET), **given), ASKED)
    return fake


def names(fake: Fake) -> list[str]:
    """Return the events, in order."""
    return [event for event, *_ in fake.log]


@pytest.mark.parametrize("align", ["ragged", "eqspec", "masking,positions=content"])
def test_a_run_is_told(align: str) -> None:
    """Both caches of a pair are told of, every block and every round's commit; tokens are exact."""
    fake = told(align)
    events = names(fake)
    assert events[:3] == ["opening", "opening", "started"]
    assert set(events) >= {"arranged", "placed", "committed"}
    assert ("settled" in events) == (align != "ragged"), "a chain in a static layout needs no settling"
    assert ("moved" in events) == (align == "eqspec")
    blocks = [given for event, *given in fake.log if event == "placed"]
    assert all(placement.slots_BT.shape[1] == block.width for placement, _, block in blocks)
    assert fake.heard == [[Following], [Following]]


@pytest.mark.parametrize("align", ["ragged", "eqspec"])
def test_two_taps_around_one_alignment(align: str) -> None:
    """Under the checks, which have a tap of their own, a listener is told the same, and both listen to each cache."""
    checked = told(align, check=True)
    assert names(checked) == names(told(align))
    assert checked.heard == [[Ledger, Following], [Ledger, Following]]
