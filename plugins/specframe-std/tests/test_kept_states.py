"""Blocks that are kept by their content, and states at them: prompts that begin alike are read from where they part."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import architectures
import pytest
import torch
from specframe_std.kv.block_allocator import contents
from specframe_std.kv.kept_states import KeptStates
from specframe_std.kv.paged import PagedStore
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import fakes, harness, states, zoo

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Sequence
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling

HYBRIDS = ("qwen3_5_text", "nemotron_h", "lfm2", "zaya", "jamba", "minimax", "kimi_linear", "falcon_h1")
KINDS = (*HYBRIDS, *filter(architectures.known, ("inkling_text", "inkling2_text")))
"""A hybrid model of each kind of state; four whose layers have both a state, or several, and attention."""

TARGET = states.fake_state_target()
COMMON = harness.random_prompts([14], 61, seed=4)[0]
ALIKE = [[*COMMON, 5, 6], [3], [*COMMON, 7], [*COMMON, 5], [*COMMON[:9], 8], COMMON[:3]]


COLLECT = gc.collect

pytestmark = pytest.mark.filterwarnings("ignore:the device's memory ran out")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gc, "collect", lambda: 0)
    with states.known():
        yield


def pipeline(draft: Any = None, kv: str = "", target: Any = TARGET, **options: Any) -> Pipeline:
    """Return a pipeline whose store keeps states."""
    given = {"batch_size": 3, "draft_length": 3, **options}
    return harness.pipeline(target, draft, kv=f"paged,block=2,share=on{kv}", **given)


def hits(pipe: Pipeline, prompts: list[list[int]], new: int = 6) -> int:
    """Return how many tokens of prompts were not fed; tokens are the reference's."""
    harness.check(pipe, harness.requests(prompts, new))
    return pipe.report.prefix_hit_tokens


def drafts() -> dict[str, Any]:
    """Return drafters, by their name."""
    return {
        "plain": None,
        "a draft model with states": fakes.fake_draft(TARGET),
        "a draft model without": fakes.fake_draft(fakes.fake_target()),
        "prompt-lookup": "prompt-lookup",
        "trees": "suffix",
    }


@pytest.mark.wide
@pytest.mark.parametrize("draft", drafts().values(), ids=drafts())
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_what_prompts_have_in_common_is_read_once_with_states(batch_size: int, draft: Any) -> None:
    """Who waits for another begins where they part; later runs, of other sizes, begin at the last block before the last token."""
    pipe = pipeline(draft, batch_size=batch_size)
    assert hits(pipe, ALIKE) <= 14 + 14 + 8 + 2
    again = 14 + 0 + 14 + 14 + 8 + 2
    assert hits(pipe, ALIKE) == again
    pipe.batch_size = 2
    assert hits(pipe, ALIKE, 30) == again, "longer sequences in fewer rows"
    assert hits(pipe, [[3] * 15]) == 0
    pipe.close()
    assert hits(pipe, [[*COMMON, 5]]) == 0


def test_a_stride_of_less_than_a_block_is_a_block() -> None:
    """Copies are taken after a block, two, four and so on."""
    pipe, long = pipeline(kv=",stride=1,blocks=64", batch_size=1), harness.random_prompts([15], 61, seed=5)[0]
    assert [hits(pipe, [one]) for one in (long, [*long[:5], 9, 9])] == [0, 4]


def test_models_begin_where_each_has_a_state() -> None:
    """Where the draft model lacks the copy that the target has, both begin where both have one."""
    pipe = pipeline(fakes.fake_draft(TARGET), batch_size=2)
    asked = [[*COMMON, *range(1, 6)], [*COMMON, 7]]
    assert hits(pipe, asked) == 0, "the second has waited for a copy of the target's states alone"
    assert hits(pipe, asked) == 18 + 14


def test_a_copy_that_a_row_waits_to_begin_with_stays() -> None:
    """What is read meanwhile gives up others, or is not copied."""
    run = harness.open_run(TARGET, 3, 40, kv="paged,block=2,share=on,states=1")
    pool = harness.open_pool(harness.requests([COMMON, COMMON, [9] * 14], 4))
    first, again, other = pool.admit(3)

    def read(sequence: Sequence, begins: int) -> None:
        assert run.reserve(sequence, 14) == begins
        sequence.uncached = 14 - begins
        run.target.read(pool.batch([sequence]), left=1)

    read(first, 0)
    assert run.reserve(again, 14) == 12
    read(other, 0)
    run.target.follow(pool.batch([again]))
    assert run.reserve(again, 14) == 12


@pytest.mark.wide(but=["kimi_linear"])
@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_state(name: str) -> None:
    """Rows that begin after unlike numbers of tokens are read together, by every kind, in chunks and in mixed batches."""
    target = architectures.build(name)
    prompts = [[token % zoo.VOCABULARY for token in prompt] for prompt in [*ALIKE, [*COMMON, *COMMON, *COMMON]]]
    for options in ({}, {"schedule": "continuous,piece=4"}):
        pipe = pipeline("prompt-lookup", target=target, batch_size=8, **options)
        found = [hits(pipe, prompts, 4) for _ in range(2)]
        assert found[1] == 52 + 40


@pytest.mark.wide
def test_a_model_without_attention() -> None:
    """Where no layer attends there is nothing but states to begin with."""
    pipe = pipeline("prompt-lookup", kv=",stride=4", target=architectures.build("mamba2"))
    prompts = [[token % zoo.VOCABULARY for token in prompt] for prompt in ALIKE]
    assert [hits(pipe, prompts) for _ in range(2)][1] == 52
    assert hits(pipe, [[*prompts[0][:9], 4, 4, 4]]) == 8


@pytest.mark.wide
def test_the_least_recently_used_go_first() -> None:
    """There are no more copies than was said, and none are given up that a row waits to begin with."""
    pipe = pipeline(kv=",states=2,stride=99,blocks=64", batch_size=1)
    first, second, third = harness.random_prompts([9, 9, 9], 61, seed=6)
    assert [hits(pipe, [one]) for one in (first, second, first, third, first)] == [0, 0, 8, 0, 8]
    assert hits(pipe, [second]) == 0
    none = pipeline(kv=",states=0", batch_size=1)
    assert [hits(none, [first]) for _ in range(2)] == [0, 0]
    crowd = pipeline(kv=",states=1", batch_size=8)
    for _ in range(2):
        hits(crowd, [*harness.random_prompts([9] * 4, 61, seed=7), *ALIKE])


@pytest.mark.wide
def test_samples_of_a_prompt_that_was_read_before() -> None:
    """Forks start from a parent that began with a kept state, and draw what they draw alone."""
    how = Sampling(temperature=40.0, samples=3)
    pipe, alone = pipeline(accept="gumbel", batch_size=8), pipeline(accept="gumbel", batch_size=1, kv=",states=0")
    wanted = [one.token_ids for one in alone.generate(ALIKE[:3], 5, sampling=how)]
    for _ in range(2):
        assert [one.token_ids for one in pipe.generate(ALIKE[:3], 5, sampling=how)] == wanted
    assert pipe.report.prefix_hit_tokens > 0


PLAIN = fakes.fake_target()
PLAIN_DRAFT = fakes.fake_draft(PLAIN)


def plain_pipeline(kv: str, draft: Any = PLAIN_DRAFT, **options: Any) -> Pipeline:
    """Return a pipeline of the fakes."""
    return harness.pipeline(PLAIN, draft, kv=kv, **{"batch_size": 3, "draft_length": 3, **options})


@pytest.mark.wide(but=["a draft model"])
@pytest.mark.parametrize("draft", [None, PLAIN_DRAFT], ids=["plain", "a draft model"])
def test_what_prompts_have_in_common_is_read_once(draft: Any) -> None:
    """Prompts of a batch and of later runs, longer ones and more of them, are read from the first block on that is not kept."""
    pipe = plain_pipeline("paged,block=4,share=on", draft, batch_size=2)
    assert hits(pipe, [[*COMMON, 5, 6], [*COMMON, 7]]) == 12, "the second waits for the first"
    assert hits(pipe, [[*COMMON, 5]]) == 12
    pipe.batch_size = 4
    longer = [[*COMMON, *range(30)], [*COMMON[:9], 8], [3], [*COMMON[:4], 1]]
    assert hits(pipe, longer, 40) == 12 + 8 + 4
    assert hits(pipe, [[3] * 15]) == 0
    assert hits(pipe, [COMMON[:13], COMMON[:12]]) == 12 + 8, "the last token of a prompt is always fed"
    pipe.close()
    assert hits(pipe, [[*COMMON, 5]]) == 0


@pytest.mark.wide
def test_drafted_tokens_are_not_kept() -> None:
    """What was drafted after a row's last token, and rejected, is no part of what later prompts find."""
    pipe = plain_pipeline("paged,block=1,share=on", fakes.fake_draft(PLAIN, 1), batch_size=1)
    free, _ = harness.expected(PLAIN, Request(0, COMMON, 12))
    (result,) = harness.decode(pipe, harness.requests([COMMON], 12, {free[6]}))
    assert 1 < len(result.token_ids) < 12
    assert hits(pipe, [[*COMMON, *result.token_ids, 9]]) > len(COMMON)


def test_blocks_that_others_need_are_given_up() -> None:
    """The least recently used blocks go first, the end of a prompt before its beginning; any number of runs fits."""
    pipe = plain_pipeline("paged,block=2,blocks=16,share=on", None, batch_size=1)
    first, second, third = harness.random_prompts([9, 9, 9], 61, seed=6)
    assert [hits(pipe, [one], 3) for one in (first, second, first)] == [0, 0, 8]
    assert hits(pipe, [third], 9) == 0
    assert hits(pipe, [first], 3) == 8, "used after the second"
    assert 0 < hits(pipe, [second], 3) < 8, "its last blocks are gone"


@pytest.mark.wide
def test_keys_tell_all_tokens_before() -> None:
    """Blocks of the same tokens after other tokens are other blocks; going on from a block gives what reading all gives."""
    ids = [1, 2, 3, 1, 2, 3, 9]
    keys = [*contents(ids, 3)]
    assert len(keys) == 2
    assert keys[0] != keys[1]
    assert [*contents(ids[3:], 3, keys[0])] == keys[1:]


class Reader:
    """Receives the target's features, and drafts nothing."""

    needs = frozenset({"hidden"})
    offers = frozenset({"chain"})

    def start(self, run: Any) -> None:
        """Ask for the states after the first layer."""
        run.target.capture((1,))

    def observe(self, outcome: Outcome) -> None:
        """Check that features of all tokens of a prompt are there."""
        if outcome.batch.prefill and outcome.transfer is not None:
            assert outcome.scores.hidden[1].shape[1] == outcome.lengths.max()

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return an empty draft."""
        return Draft(batch.tokens_BS[:, :0])


BEGINNING_ALIKE = [[*COMMON, 5, 6], [3], [*COMMON, 7], [*COMMON, 5], [*COMMON[:9], 8]]


def test_a_drafter_with_features_has_all_tokens_read() -> None:
    """Features are not kept with blocks, so no token is left out; rows that begin alike do not write to each other's blocks."""
    target = zoo.build("llama")
    pipe = harness.pipeline(target, Reader(), kv="paged,block=4,share=on", batch_size=3)
    prompts = [[token % zoo.VOCABULARY for token in prompt] for prompt in BEGINNING_ALIKE]
    for _ in range(2):
        assert hits(pipe, prompts) == 0


@pytest.mark.wide(but=["layer-skip,skip=attn:0+mlp:0-3"])
@pytest.mark.parametrize("place", [3, 5])
@pytest.mark.parametrize("drafter", ["layer-skip,skip=attn:0+mlp:0", "window,sink=0,recent=1"])
def test_what_a_draft_wrote_is_not_kept(drafter: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory runs out between a draft and its verification, later prompts go on from blocks that the target has written."""
    score, calls = ChainVerifier.score, list[int]()

    def failing(self: Any, batch: Batch, draft: Draft) -> Any:
        calls.append(1)
        if len(calls) == place:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(self, batch, draft)

    monkeypatch.setattr(ChainVerifier, "score", failing)
    pipe = harness.pipeline(zoo.build("llama"), drafter, kv="paged,block=1,share=on", batch_size=2, draft_length=3)
    asked = harness.requests(harness.random_prompts((6, 9), zoo.VOCABULARY), 12)
    with pytest.warns(RuntimeWarning, match="memory ran out"):
        found = harness.check(pipe, asked)
    turns = [[*one.prompt_ids, *result.token_ids, 5, 6] for one, result in zip(asked, found, strict=True)]
    assert hits(pipe, turns, 8) > 6 + 9 + 2 * 6


# ---- where memory runs out, a row is aborted or an engine is closed: no copy of a state is wrong


ASKED = harness.requests([[*COMMON, 5, 6], [3], [*COMMON, 7], [*COMMON[:9], 8], [*COMMON, 5]], [5, 3, 6, 4, 5])
MEMBERS = ("begin_after", "keep_after", "arrange", "_begin", "begin", "_note", "commit")
"""What is called while copies are found, planned, begun with, taken and kept."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[KeptStates]:
    """Note every store of states that is opened."""
    found, init = list[KeptStates](), KeptStates.__init__
    monkeypatch.setattr(KeptStates, "__init__", lambda self, *given: (found.append(self), init(self, *given))[1])
    return found


def few_states(kv: str = "", **options: Any) -> Pipeline:
    """Return a pipeline whose stores keep few states, so that they are given up for others."""
    kv = f"paged,block=2,share=on,states=3,stride=4{kv}"
    return harness.pipeline(TARGET, fakes.fake_draft(TARGET), kv=kv, **{"batch_size": 3, "draft_length": 3, **options})


def acting(member: str, at: int, act: Callable[[], None], late: bool) -> tuple[Any, list[int]]:
    """Return a member of a store of states that does something before or after one of its calls, and the calls."""
    usual, calls = getattr(KeptStates, member), list[int]()

    def called(self: KeptStates, *given: Any) -> Any:
        calls.append(1)
        acts = len(calls) == at
        if acts and not late:
            act()
        found = usual(self, *given)
        if acts and late:
            act()
        return found

    return called, calls


def out_of_memory() -> None:
    """Run out of memory."""
    raise torch.OutOfMemoryError("CUDA out of memory")


def waits(store: KeptStates) -> bool:
    """Return whether a row waits to begin with a copy."""
    return any(one.begins for sequence, one in store._reading.items() if not sequence.gone)


def assert_numbered(opened: list[KeptStates]) -> None:
    """Assert that every copy has one number, and that no row waits to begin with one.

    A sequence that was never admitted may be in the frames of the error that kept it out, until garbage is collected.
    """
    assert opened
    for store in opened:
        assert sorted([*store._free, *store._number.values(), *store._coming.values()]) == [*range(3)]
        if waits(store):
            COLLECT()
        assert not waits(store)


@pytest.mark.wide(but=["_note-after"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("member", MEMBERS)
def test_memory_that_runs_out(
    member: str, late: bool, opened: list[KeptStates], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any call tokens are the reference's, and so are those of a later run, which begins with the copies that there are."""
    at = 0
    while True:
        at += 1 if at < 4 else 5
        opened.clear()
        pipe = few_states()
        called, calls = acting(member, at, out_of_memory, late)
        with monkeypatch.context() as patched:
            patched.setattr(KeptStates, member, called)
            harness.check(pipe, ASKED)
        harness.check(pipe, ASKED)
        assert_numbered(opened)
        if len(calls) < at:
            break
    assert at > 1, "never called"


@pytest.mark.wide
@pytest.mark.parametrize("gone", [0, 2, 3, None])
@pytest.mark.parametrize("member", MEMBERS)
def test_aborts_and_a_close(
    member: str, gone: int | None, opened: list[KeptStates], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is aborted while a state is kept or begun with ends once; the others, and a later run, have their tokens."""
    wanted = {one.index: harness.expected(TARGET, one)[0] for one in ASKED}
    for at in (1, 2, 3, 5, 9):
        pipe, held = few_states(), list[Any]()

        def act(held: list[Any] = held) -> None:
            (engine,) = held
            held.append(engine.close() if gone is None else engine.abort((gone, 0)))

        called, _ = acting(member, at, act, late=True)
        with monkeypatch.context() as patched:
            patched.setattr(KeptStates, member, called)
            engine = LocalEngine(pipe.recipe, pipe.parts, (), HandClock(), pipe.executor)
            for one in ASKED:
                engine.add(one)
            held.append(engine)
            ended = dict[int, list[int]]()
            while not engine.idle:
                report = engine.step()
                ended |= {one.request.index: one.token_ids for one in (report.finished if report else ())}
        engine.close()
        if gone is not None:
            left = held[1] if len(held) > 1 else None
            if left is not None:
                assert gone not in ended
                ended[gone] = wanted[gone]
            assert ended == wanted
        harness.check(pipe, ASKED)
        assert_numbered(opened[-2:])


@pytest.mark.wide
@pytest.mark.parametrize("place", [1, 2, 4])
def test_samples_of_a_kept_state_where_memory_runs_out(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks of a row that began with a copy draw what they draw where memory suffices."""
    how, prompts = Sampling(temperature=40.0, samples=3), [one.prompt_ids for one in ASKED]
    free = few_states(",blocks=200", accept="gumbel", batch_size=8)
    wanted = [one.token_ids for one in free.generate(prompts, 5, sampling=how)]
    for member in ("_begin", "remember", "_note"):
        pipe = few_states(accept="gumbel", batch_size=6)
        assert [one.token_ids for one in pipe.generate(prompts, 5, sampling=how)] == wanted
        called, _ = acting(member, place, out_of_memory, late=False)
        with monkeypatch.context() as patched:
            patched.setattr(KeptStates, member, called)
            assert [one.token_ids for one in pipe.generate(prompts, 5, sampling=how)] == wanted
        assert [one.token_ids for one in pipe.generate(prompts, 5, sampling=how)] == wanted


def ran_out(share: str, blocks: int) -> int:
    """Return how often memory ran out for prompts that begin alike, without a copy of a state to begin with."""
    pipe = harness.pipeline(TARGET, kv=f"paged,block=2,states=0,share={share},blocks={blocks}", batch_size=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            harness.check(pipe, harness.requests([[*COMMON, 5], [*COMMON, 6], [*COMMON, 7], [*COMMON[:9], 3]], 6))
    return sum("gives its memory back" in str(one.message) for one in caught)


@pytest.mark.wide(but=["21"])
@pytest.mark.parametrize("blocks", [12, 15, 21, 27])
def test_blocks_that_are_read_again_are_counted_when_a_row_is_admitted(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that a row finds and has no state for are no use to it: it gets its own, and no more rows than fit without."""
    made, fit = list[int](), PagedStore._fit

    def fitted(self: PagedStore, *given: Any) -> None:
        fit(self, *given)
        made.append(self.blocks.made)

    monkeypatch.setattr(PagedStore, "_fit", fitted)
    assert ran_out("on", blocks) <= ran_out("off", blocks)
    assert max(made) <= blocks
