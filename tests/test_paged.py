"""Pages, shared by rows that begin alike, and attention that reads them: what is decoded is exact."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from planting import noting
from specframe_testing import fakes, harness, paged_fake, zoo
from specframe_testing.conformance import AttentionBackendSuite
from specframe_testing.instrumentation.invariant_error import InvariantError
from specframe_testing.paged_fake import Gathering, PagedFakeStore, Pages

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.requests import Request
from specframe.contracts.roles import Drafter
from specframe.contracts.round import Batch, Sequence
from specframe.errors import CompositionError, ContractError, ModelError
from specframe.model import padding_free
from specframe.model.runner import ModelRunner
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling

COMMON = harness.random_prompts([14], zoo.VOCABULARY, seed=4)[0]
PROMPTS = [COMMON, [*COMMON, 5, 6, 7], [3], [*COMMON[:9], 1, 2], COMMON]


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many pages are shared whenever a batch is arranged."""
    return noting(monkeypatch, PagedFakeStore, "arrange", lambda _, store, sequences: store.shared)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("options", [{}, {"schedule": "fixed"}], ids=str)
def test_tokens_are_exact(name: str, options: dict[str, Any], sharing: list[int]) -> None:
    """Prompts that share a beginning, and pages with it, decode to the reference's tokens."""
    target = zoo.build(name)
    pipe = harness.pipeline(
        target, zoo.good_draft(target), kv=Pages(), attention=Gathering(), batch_size=3, draft_length=3, **options
    )
    harness.check(pipe, harness.requests(PROMPTS, [9, 14, 3, 12, 7], {zoo.EOS}))
    assert max(sharing) >= 2


class Astray(PagedFakeStore):
    """Says of every prompt's tokens but the last that they are cached, which they are not."""

    def reserve(self, sequence: Any, tokens: int) -> int:
        """Return a number that is too large."""
        super().reserve(sequence, tokens)
        return tokens - 1


@pytest.mark.wide
def test_checks_find_tokens_that_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that reports more tokens than it holds is found out."""
    monkeypatch.setattr(paged_fake, "PagedFakeStore", Astray)
    pipe = harness.pipeline(zoo.build("llama"), None, kv=Pages(), attention=Gathering(), batch_size=2, check=True)
    with pytest.raises(InvariantError):
        harness.decode(pipe, harness.requests(PROMPTS, 5))


def fed_for_prompts(drafter: Any, prompts: list[list[int]], **options: Any) -> list[tuple[int, int]]:
    """Return (rows, tokens) of each forward of the target that read prompts, and check what is decoded."""
    target, feeds = zoo.build("llama"), harness.Feeds()
    draft = zoo.good_draft(target) if drafter is None else drafter
    pipe = harness.pipeline(
        target, draft, kv=Pages(), attention=Gathering(), batch_size=2, draft_length=3, observers=[feeds], **options
    )
    harness.check(pipe, harness.requests(prompts, [30, 3, 9]))
    return [fed for round in feeds.rounds if round.report.prefill for fed in round.target]


class Reader(Drafter):
    """Receives the target's features, and drafts nothing."""

    needs = frozenset({"hidden"})
    offers = frozenset({"chain"})

    def start(self, run: Any) -> None:
        """Ask for the states after the first layer."""
        run.target.capture((1,))

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return an empty draft."""
        return Draft(batch.tokens_BS[:, :0])


def test_tokens_that_are_cached_are_not_read_again() -> None:
    """A prompt that begins like one being decoded is read from the first token on whose page is not shared."""
    prompts = [[*COMMON, 5], [*COMMON, 6, 7], [*COMMON, 8, 9, 10]]
    assert fed_for_prompts(None, prompts) == [(2, 16), (1, 17 - 12)]
    assert fed_for_prompts(None, [prompts[0], [3], [*COMMON, 9]]) == [(2, 15), (1, 15 - 12)]
    assert fed_for_prompts(None, prompts, schedule="continuous,piece=3")[-1] == (1, 2)  # after a piece of 3
    assert fed_for_prompts(Reader(), prompts) == [(2, 16), (1, 17)]  # hidden states are not cached


@pytest.mark.wide(but=["{}-in one row"])
@pytest.mark.parametrize("laid", [True, False], ids=["in one row", "a rectangle"])
@pytest.mark.parametrize("options", [{}, {"check": True}, {"schedule": "continuous,piece=6"}], ids=str)
def test_a_cached_beginning_is_not_fed_for_a_neighbour(
    options: dict[str, Any], laid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a row whose first tokens are cached only the others are computed and written, in a batch with an uncached row."""
    monkeypatch.setattr(padding_free, "LAYING_OUT", 0 if laid else 10**12)
    target = zoo.build("llama")
    prompts = [[*COMMON, 5], [3], [4], [*COMMON, 6, 7], OWN[0]]
    pipe = harness.pipeline(target, None, kv=Pages(), attention=Gathering(), batch_size=3, **options)
    slots = noting(monkeypatch, PagedFakeStore, "expect", lambda _, store, placement: placement.slots_BT.tolist())
    computed = noting(
        monkeypatch,
        ModelRunner,
        "_padding_free",
        lambda found, runner, block: found.tokens if found else block.ids_BT.numel(),
    )
    harness.check(pipe, harness.requests(prompts, [30, 3, 3, 5, 5]))
    reading = [forward for forward in slots if len(forward) == 2 and len(forward[0]) > 1]
    written = [{slot for forward in reading for slot in forward[row] if slot < 16} for row in (0, 1)]
    assert sorted(map(sorted, written)) == [[*range(9)], [*range(12, 16)]], "of one row 12 tokens are cached"
    assert 13 in computed or not laid or "schedule" in options


@pytest.mark.wide
def test_views_that_nobody_reads_are_refused() -> None:
    """An attention backend and a KV backend that do not fit end in one sentence, before anything is decoded."""
    said = (
        "attention backend 'Gathering' reads paged views and KV backend 'slab' hands out dense views: expected one that"
    )
    with pytest.raises(CompositionError, match=said):
        harness.pipeline(zoo.build("llama"), None, attention=Gathering())


@pytest.mark.wide(but=["auto-llama"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("attention", ["auto", "masked", "flex"])
@pytest.mark.filterwarnings("ignore:attention 'flex' holds all scores")
def test_attention_that_reads_no_pages_has_them_gathered(attention: str, name: str) -> None:
    """Under masks and without, pages become plain tensors: chains and trees are exact."""
    target, asked = zoo.build(name), harness.requests(PROMPTS, [9, 14, 3, 12, 7], {zoo.EOS})
    for drafter in (zoo.good_draft(target), fakes.ScriptedTree(harness.truth(target, asked))):
        harness.check(
            harness.pipeline(target, drafter, kv=Pages(), attention=attention, batch_size=3, draft_length=3), asked
        )


@pytest.mark.wide(but=["test_equals_reference[default]"])
class TestGathering(AttentionBackendSuite):
    """The fake attention backend keeps what every attention backend keeps."""

    companions = {"kv": Pages()}

    def make(self) -> Gathering:
        """Return a new attention backend."""
        return Gathering()


@pytest.mark.wide
@pytest.mark.parametrize("name", ["masked", "flex", "packed"])
def test_the_backends_of_specframe_are_strangers_too(name: str) -> None:
    """Each comes through the hook, and keeps what every attention backend keeps."""

    class Suite(AttentionBackendSuite):
        def make(self) -> str:
            return name

    Suite().test_reads_a_view()
    if name != "packed":
        for window in (None, 4):
            Suite().test_equals_masks(0, 4, window, "dense")
        Suite().test_trees(0)


def with_room_for(rows: int, target: Any, asked: list[Request], **options: Any) -> tuple[Pipeline, harness.Feeds]:
    """Return a pipeline whose cache has pages for ``rows`` rows that share nothing, and what its rounds feed."""
    feeds = harness.Feeds()
    longest = max(len(one.prompt_ids) + one.max_new_tokens for one in asked)
    pages = rows * -(-(longest + 3 + 2) // 4)  # with the draft beyond its end, the last token and the spare slot
    options = {"kv": Pages(pages=pages), "attention": Gathering(), "batch_size": 4, "draft_length": 3} | options
    return harness.pipeline(target, None, drafter="prompt-lookup", observers=[feeds], **options), feeds


OWN = harness.random_prompts([9, 5, 12, 1, 7], zoo.VOCABULARY, seed=3)


@pytest.mark.wide(but=["2-continuous,piece=4"])
@pytest.mark.parametrize("schedule", ["continuous", "continuous,piece=4", "fixed"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_requests_wait_for_room(rows: int, schedule: str) -> None:
    """No more rows are live than there are pages for, whatever the batch size; all requests are decoded, in their order."""
    target = zoo.build("llama")
    asked = harness.requests(OWN, [9, 14, 3, 12, 7], {zoo.EOS})
    pipe, feeds = with_room_for(rows, target, asked, schedule=schedule, check=True)
    with warnings.catch_warnings(action="error"):  # nobody is admitted without room, to be preempted again
        harness.check(pipe, asked)
    assert max(one.rows for one in feeds.rounds) == rows
    begun = [sequence.request.index for one in feeds.reading for sequence in one.report.sequences]
    assert sorted(begun) == [0, 1, 2, 3, 4]
    if rows == 1:
        assert begun == [0, 1, 2, 3, 4], "a request that found no room keeps its place"


@pytest.mark.wide(but=["16"])
@pytest.mark.parametrize("pages", [6, 11, 16, None])
def test_samples_wait_for_room(pages: int | None) -> None:
    """Samples for which there is no room with their first wait, and the others begin with its last page, too."""
    target = zoo.build("llama")
    prompts = [OWN[4], OWN[2][:6]]  # their last pages hold tokens before the last one
    alone = harness.pipeline(target, None, accept="gumbel", batch_size=1)
    feeds = harness.Feeds()
    options: dict[str, Any] = {
        "kv": Pages(pages=pages),
        "attention": Gathering(),
        "batch_size": 4,
        "observers": [feeds],
    }
    pipe = harness.pipeline(target, None, accept="gumbel", **options)
    found = [
        [one.token_ids for one in each.generate(prompts, 7, sampling=Sampling(temperature=1.0, samples=3))]
        for each in (alone, pipe)
    ]
    assert found[0] == found[1]
    assert max(one.rows for one in feeds.rounds) == {6: 1, 11: 2, 16: 3, None: 4}[pages], (
        "six pages a row, of which samples share one"
    )


@pytest.mark.wide(but=["True"])
@pytest.mark.parametrize("cached", [-1, 10, True, "3", 2.0], ids=repr)
def test_a_number_of_cached_tokens_that_cannot_be(cached: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store says of a sequence's cached tokens is a number of them, or None; anything else is reported as the backend's."""
    monkeypatch.setattr(PagedFakeStore, "reserve", lambda *_: cached)
    pipe = harness.pipeline(zoo.build("llama"), None, kv=Pages(), attention=Gathering(), batch_size=2)
    expected = (
        r"KV backend Pages of specframe-testing: store\.reserve\(\) must return a number of tokens from 0 to 9, or None"
    )
    with pytest.raises(ContractError, match=expected):
        harness.decode(pipe, harness.requests([OWN[0]], 7))


def test_no_room_for_one_is_one_sentence() -> None:
    """Where not even one sequence has room, the run ends with a sentence, and not without an end."""
    pipe = harness.pipeline(zoo.build("llama"), None, kv=Pages(pages=3), attention=Gathering(), batch_size=2)
    expected = r"^KV backend: a store has no room for a sequence of 16 tokens, and no other is decoded .*: expected more memory, or"
    with pytest.raises(ModelError, match=expected):
        harness.decode(pipe, harness.requests([OWN[0]], 7))


def test_a_cache_without_room_has_the_others_let_go() -> None:
    """Where the draft model's cache has no room for a sequence, the target's keeps nothing of it."""
    target = zoo.build("llama")
    run = harness.open_run(target, 2, 20, kv=Pages(), draft=zoo.good_draft(target))
    draft = run.open_cache(zoo.good_draft(target))
    one = Sequence(harness.requests([OWN[0]])[0], 18)
    draft.store.reserve = lambda *_: None  # type: ignore[method-assign]
    assert run.reserve(one, 9) is None
    assert not any(run.target.store._users)  # type: ignore[attr-defined]
    del draft.store.reserve
    assert run.reserve(one, 9) == 0
    assert sum(run.target.store._users) == 6  # type: ignore[attr-defined]
    run.forget(one)
    assert not any(run.target.store._users)  # type: ignore[attr-defined]
