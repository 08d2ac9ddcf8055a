"""Heads where stores keep what rows begin with, or come back to: drafts are those of rows that read all."""

from __future__ import annotations

import functools
import gc
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from head_drafts import in_runs
from specframe_std.kv.paged import PagedStore
from specframe_std.kv.slot_tables import Slots
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import harness, zoo
from specframe_testing.heads import block_heads, checkpoints, mtp, stepwise
from specframe_testing.heads.scripted import Drafted, steered

from specframe.contracts.requests import Request
from specframe.engine import memory_limits
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.model import padding_free
from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.text.sampling import Sampling

TARGET = zoo.build("llama")
UNTRAINED: dict[str, Any] = {"prompts": [[1, 2]], "tokens": 4, "steps": 1}
SAVE: dict[str, Any] = {
    "eagle": lambda folder: checkpoints.eagle3(folder, TARGET, drafted=70, layers=1),
    "medusa": lambda folder: stepwise.overfitted(folder, "medusa", TARGET, **UNTRAINED),
    "hydra": lambda folder: stepwise.overfitted(folder, "hydra++", TARGET, **UNTRAINED),
    "clover2": lambda folder: stepwise.overfitted(folder, "clover2", TARGET, **UNTRAINED),
    "mtp": lambda folder: mtp.save_file_of(folder, TARGET),
    "dflash": lambda folder: block_heads.speculators(folder, TARGET, drafted=70),
    "dspark": lambda folder: block_heads.speculators(folder, TARGET, kind="dspark", head="rnn"),
    "peagle": lambda folder: block_heads.peagle(folder, TARGET, drafted=70),
    "pard": lambda folder: block_heads.pard(folder, TARGET),
}
"""What saves a head for the target, by its drafter."""
KEPT = "paged,block=4,share=on"
COMMON = harness.random_prompts([14], zoo.VOCABULARY, seed=4)[0]
BEGINNING_ALIKE = [[*COMMON, 5, 6], [3], [*COMMON, 7], [*COMMON, 5], [*COMMON[:12], 8], COMMON[:12], COMMON[:13]]


@functools.cache
def saved(name: str) -> Path:
    """Return the folder of a head, the same one every time."""
    folder = Path(tempfile.mkdtemp(prefix="head")) / name
    SAVE[name](folder)
    return folder


def pipe_of(
    name: str, kv: str, shape: str = ",tree=chain", **options: Any
) -> tuple[Pipeline, dict[tuple[int, ...], Drafted]]:
    """Return a pipeline with a head, some of whose drafted tokens are made right, and what takes its own drafts."""
    drafts: dict[tuple[int, ...], Drafted] = {}

    def truth(request: Request) -> list[int]:
        return harness.continuation(TARGET, request.prompt_ids, 40)

    made: Any = strategy(registry(), "drafter", f"{name},checkpoint={saved(name)}{shape}")
    options = {"batch_size": 3, "draft_length": 3 if shape == ",tree=chain" else "auto", "kv": kv, **options}
    return harness.pipeline(TARGET, steered(made, drafts, truth, in_runs), **options), drafts


FORMS = [(name, shape) for name in SAVE for shape in (",tree=chain", ",branch=2/2", ",tree=dynamic,nodes=6")]
FAST = {("eagle", ",tree=chain"), ("dflash", ",tree=chain")}


@pytest.mark.parametrize(
    ("name", "shape"), [pytest.param(*one, marks=() if one in FAST else pytest.mark.slow) for one in FORMS]
)
def test_prompts_that_begin_alike_are_drafted_for_as_if_they_shared_nothing(
    name: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin with others' blocks, of the batch or of runs before, have the drafts of rows that read all."""
    monkeypatch.setattr(padding_free, "LAYING_OUT", 0)
    found = []
    for kv in (KEPT, "slab"):
        hits, taken = list[int](), dict[tuple[int, ...], Drafted]()
        for check in (True, False) if kv == KEPT else (False,):
            pipe, drafts = pipe_of(name, kv, shape, check=check)
            for new in (6, 6):
                harness.check(pipe, harness.requests(BEGINNING_ALIKE, new))
                hits.append(pipe.report.prefix_hit_tokens)
            taken |= drafts
        found.append((hits, taken))
    (hits, kept), (none, plain) = found
    assert min(hits) >= 12 + 8 + 8
    assert hits[3] > hits[2], "of the run before"
    assert not any(none)
    assert kept == plain


SCHEMES: tuple[dict[str, Any], ...] = (
    {"schedule": "continuous,piece=5,mixed=on"},
    {"kv": f"{KEPT},blocks=22"},
    {"schedule": "continuous,piece=5"},
    {"kv": "paged,block=1,share=on"},
    {"accept": "gumbel", "samples": 3},
)
"""Options of runs; the first two by default, for one drafter."""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=() if (name, number // 2) == ("eagle", 0) else pytest.mark.slow)
        for name in ("eagle", "dflash")
        for number, options in enumerate(SCHEMES)
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*memory ran out")
def test_with_everything_else(name: str, options: dict[str, Any]) -> None:
    """Prompts in chunks, blocks that run out and are given up, blocks of one token, and samples change no token and no draft."""
    found = []
    for kv in (options.get("kv", KEPT), "slab"):
        given = {key: value for key, value in options.items() if key not in ("kv", "samples")}
        pipe, drafts = pipe_of(name, kv, seed=3, **given)
        tokens = []
        for new in (6, 9):
            if "samples" in options:
                sampling = Sampling(temperature=0.9, samples=options["samples"])
                tokens += [one.token_ids for one in pipe.generate(BEGINNING_ALIKE, new, sampling=sampling)]
            else:
                harness.check(pipe, harness.requests(BEGINNING_ALIKE, new))
            assert pipe.report.prefix_hit_tokens or kv == "slab"
        found.append((tokens, drafts))
    (tokens, kept), (wanted, plain) = found
    assert tokens == wanted
    # rows that are read in other rounds end beside others, and draft less at their end
    both = kept.keys() & plain.keys()
    assert len(both) > 0.9 * len(plain)
    assert {key: kept[key] for key in both} == {key: plain[key] for key in both}


@pytest.mark.parametrize("name", ["dflash", pytest.param("eagle", marks=pytest.mark.slow)])
def test_what_a_draft_wrote_is_not_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory runs out between a draft and its verification, later prompts go on from what comes of the target's features."""
    score, calls, fails = ChainVerifier.score, list[int](), [4]

    def failing(self: Any, *given: Any) -> Any:
        calls.append(1)
        if len(calls) in fails:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(self, *given)

    monkeypatch.setattr(ChainVerifier, "score", failing)
    asked, found = harness.requests(harness.random_prompts((6, 9), zoo.VOCABULARY), 12), []
    for kv in ("paged,block=1,share=on", "slab"):
        pipe, drafts = pipe_of(name, kv, batch_size=2)
        calls.clear()
        with pytest.warns(RuntimeWarning, match="memory ran out"):
            first = harness.check(pipe, asked)
        drafts.clear()
        turns = [[*one.prompt_ids, *result.token_ids, 5, 6] for one, result in zip(asked, first, strict=True)]
        harness.check(pipe, harness.requests(turns, 8))
        assert pipe.report.prefix_hit_tokens > 6 + 9 + 10 or kv == "slab"
        found.append(dict(drafts))
    assert found[0] == found[1]


def test_several_mtp_layers_read_all_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target with several layers, which are fed what earlier ones give of every token, shares nothing."""
    prompts = [*harness.random_prompts((5, 12, 8), zoo.VOCABULARY, seed=7), *BEGINNING_ALIKE[:4]]
    target, found = mtp.save_target(tmp_path / "target", mtp.deepseek(2), "after", 2), []
    for least in (0, 10**12):
        monkeypatch.setattr(padding_free, "LAYING_OUT", least)
        drafts: dict[tuple[int, ...], Drafted] = {}
        made: Any = strategy(registry(), "drafter", "mtp")
        drafter = steered(made, drafts, lambda one: harness.continuation(target, one.prompt_ids, 20), in_runs)
        pipe = harness.pipeline(target, drafter, kv=KEPT, batch_size=3, draft_length=3)
        for _ in range(2):
            harness.check(pipe, harness.requests(prompts, 4))
            assert pipe.report.prefix_hit_tokens == 0
        found.append(drafts)
    assert found[0] == found[1]


ASKED = harness.requests(harness.random_prompts([9, 5, 11, 7], zoo.VOCABULARY, seed=3), [22, 26, 18, 24])
HEADS = [
    pytest.param(name, shape, marks=() if (name, shape) in FAST else pytest.mark.slow)
    for name in ("eagle", "medusa", "hydra", "dflash", "peagle")
    for shape in (",tree=chain", ",tree=dynamic,nodes=6")
]


@pytest.mark.filterwarnings("ignore:the device's memory ran out")
@pytest.mark.wide(but=["eagle-,tree=chain"])
@pytest.mark.parametrize(("name", "shape"), HEADS)
def test_an_abort_and_a_stop_while_rows_are_on_the_host(name: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is aborted on the host leaves nothing there, the others go on, and a stop leaves nothing at all."""
    monkeypatch.setattr(memory_limits, "CALM_FOR_ONE", 3)  # rows are let in again soon
    monkeypatch.setattr(gc, "collect", lambda: 0)  # it takes as long as there are objects of other tests
    stores, init = list[PagedStore](), PagedStore.__init__
    monkeypatch.setattr(PagedStore, "__init__", lambda self, *given: (stores.append(self), init(self, *given))[1])
    for closes in ("", "at once", "while others decode"):
        stores.clear()
        pipe, _ = pipe_of(name, "paged,block=4,blocks=18,host=1MB", shape, batch_size=4)
        engine = LocalEngine(pipe.recipe, pipe.parts, (), HandClock(), pipe.executor)
        for one in ASKED:
            engine.add(one)
        ended, gone = dict[int, list[int]](), dict[int, list[int]]()
        while not engine.idle:
            if (report := engine.step()) is not None:
                ended |= {one.request.index: one.token_ids for one in report.finished}
            waiting = [*engine._pool._returned]  # keys: copies stay as long as somebody has their sequence
            if waiting and not gone and (engine._pool.live or "while" not in closes):
                assert any(store.host and store.host.nbytes for store in stores)
                if closes:
                    with monkeypatch.context() as patched:  # nothing more goes there for nobody
                        patched.setattr(Slots, "to_host", None)
                        engine.close()
                    break
                aborted = engine.abort(waiting[0])
                gone[aborted.request.index] = aborted.token_ids
                assert not any(store.host and store.host.count(aborted) for store in stores)
        if not closes:
            ((index, tokens),) = gone.items()
            assert tokens == harness.expected(TARGET, ASKED[index])[0][: len(tokens)]
            assert ended == {one.index: harness.expected(TARGET, one)[0] for one in ASKED if one.index != index}
            engine.close()
        assert stores
        for store in stores:
            assert not store._rows
            assert store.blocks.used == 0
            assert store.host is None or not store.host._kept
