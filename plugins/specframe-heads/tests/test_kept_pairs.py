"""Heads where the target's store keeps what rows begin with: no token of the past is read again, and drafts are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import harness, zoo
from specframe_testing.heads import block_heads, checkpoints, mtp, stepwise
from specframe_testing.heads.scripted import Drafted, steered

from specframe.contracts.requests import Request
from specframe.model import padding_free
from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry
from specframe.text.sampling import Sampling

TARGET = zoo.build("llama")
SAVE: dict[str, Any] = {
    "eagle": lambda folder: checkpoints.eagle3(folder, TARGET, drafted=70, layers=1),
    "medusa": lambda folder: stepwise.overfitted(folder, "medusa", TARGET, [[1, 2]], tokens=4, steps=1),
    "hydra": lambda folder: stepwise.overfitted(folder, "hydra++", TARGET, [[1, 2]], tokens=4, steps=1),
    "clover2": lambda folder: stepwise.overfitted(folder, "clover2", TARGET, [[1, 2]], tokens=4, steps=1),
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


def some_right(place: int) -> bool:
    """Return whether the token at a place of a draft is right: runs of none to five."""
    return place % 7 not in (0, 3) and place % 5 != 4


def pipe_of(name: str, folder: Path, kv: str, **options: Any) -> tuple[Pipeline, dict[tuple[int, ...], Drafted]]:
    """Return a pipeline with a head, some of whose drafted tokens are made right, and what takes its own drafts."""
    if not folder.exists():
        SAVE[name](folder)
    shape = options.pop("shape", ",tree=chain")
    drafts: dict[tuple[int, ...], Drafted] = {}

    def truth(request: Request) -> list[int]:
        return harness.continuation(TARGET, request.prompt_ids, 40)

    made: Any = strategy(registry(), "drafter", f"{name},checkpoint={folder}{shape}")
    length = {"draft_length": 3} if shape == ",tree=chain" else {"draft_length": "auto"}
    pipe = harness.pipeline(
        TARGET, steered(made, drafts, truth, some_right), kv=kv, **{"batch_size": 3, **length, **options}
    )
    return pipe, drafts


FORMS = [(name, shape) for name in SAVE for shape in (",tree=chain", ",branch=2/2", ",tree=dynamic,nodes=6")]
FAST = {("eagle", ",tree=chain"), ("dflash", ",tree=chain")}


@pytest.mark.parametrize(
    ("name", "shape"), [pytest.param(*one, marks=() if one in FAST else pytest.mark.slow) for one in FORMS]
)
def test_prompts_that_begin_alike_are_drafted_for_as_if_they_shared_nothing(
    name: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin with others' blocks, of the same batch and of runs before, have the drafts of rows that read all; what every
    query of target and head sees is checked. Of rows that read fewer tokens than others nothing else is computed."""
    monkeypatch.setattr(padding_free, "LAYING_OUT", 0)
    found = []
    for kv in (KEPT, "slab"):
        hits, taken = list[int](), dict[tuple[int, ...], Drafted]()
        for check in (True, False) if kv == KEPT else (False,):
            pipe, drafts = pipe_of(name, tmp_path / "head", kv, shape=shape, check=check)
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
def test_with_everything_else(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Prompts in chunks, blocks that run out and are given up, blocks of one token, and samples change no token and no draft."""
    found = []
    for kv in (options.get("kv", KEPT), "slab"):
        given = {key: value for key, value in options.items() if key not in ("kv", "samples")}
        pipe, drafts = pipe_of(name, tmp_path / "head", kv, seed=3, **given)
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
def test_what_a_draft_wrote_is_not_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        pipe, drafts = pipe_of(name, tmp_path / "head", kv, batch_size=2)
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
    """Later layers are fed what earlier ones give of every token: a target with several shares nothing, and whole rows are fed to
    its layers whatever padding is left out."""
    prompts = [*harness.random_prompts((5, 12, 8), zoo.VOCABULARY, seed=7), *BEGINNING_ALIKE[:4]]
    target, found = mtp.save_target(tmp_path / "target", mtp.deepseek(2), "after", 2), []
    for least in (0, 10**12):
        monkeypatch.setattr(padding_free, "LAYING_OUT", least)
        drafts: dict[tuple[int, ...], Drafted] = {}
        made: Any = strategy(registry(), "drafter", "mtp")
        drafter = steered(
            made, drafts, lambda request: harness.continuation(target, request.prompt_ids, 20), some_right
        )
        pipe = harness.pipeline(target, drafter, kv=KEPT, batch_size=3, draft_length=3)
        for _ in range(2):
            harness.check(pipe, harness.requests(prompts, 4))
            assert pipe.report.prefix_hit_tokens == 0
        found.append(drafts)
    assert found[0] == found[1]
