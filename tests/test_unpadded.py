"""Forwards without padding: the real tokens of all rows are put into one row, and nothing else changes."""

from __future__ import annotations

from typing import Any

import architectures
import attrs
import numpy as np
import pytest
import torch
from planting import noting
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.graphs.captured_forward import CapturedForward, in_bucket
from specframe_std.graphs.graph_cache import EagerGraph
from specframe_std.verifiers.chain import ChainVerifier
from specframe_testing import fakes, harness, zoo

from specframe.contracts.drafts import Block, Budget, Draft
from specframe.model import padding_free
from specframe.model.model_checks import Reordered, Scratch
from specframe.model.runner import ModelRunner

LENGTHS = (1, 30, 9, 2, 40, 17, 5)
PROMPTS = harness.random_prompts(LENGTHS, zoo.VOCABULARY, seed=2)


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the ids that targets are fed."""

    def shape(_: Any, runner: ModelRunner, ids_BT: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if runner.role != "target" or isinstance(arguments[2], Reordered | Scratch):
            return None
        laid = arguments[-1].padding_free
        return tuple(ids_BT.shape) if laid is None else (1, laid.tokens)

    return noting(monkeypatch, ModelRunner, "call", shape)


@pytest.mark.wide
@pytest.mark.parametrize("name", zoo.NAMES)
def test_prompts_of_unequal_length(name: str, fed: list[tuple[int, ...]]) -> None:
    """Every architecture reads the real tokens alone, and decodes what the reference decoder does."""
    target = zoo.build(name)
    pipe = harness.pipeline(target, zoo.good_draft(target), align="ragged", batch_size=3, draft_length=3)
    harness.check(pipe, harness.requests(PROMPTS, 8, {zoo.EOS}))
    assert fed[0] == (1, sum(LENGTHS[:3]))


@pytest.mark.wide(but=["{'check': True}"])
@pytest.mark.parametrize(
    "options",
    [
        {"align": "eqspec"},
        {"align": "exspec", "batch_size": 4},
        {"attention": "flex"},
        {"bitwise": True},
        {"graphs": "on"},
        {"kv": "dynamic", "align": "eqspec"},
        {"schedule": "continuous,piece=6"},
        {"check": True},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:attention 'flex' holds all scores")
def test_whatever_attends_and_stores(options: dict[str, Any], fed: list[tuple[int, ...]]) -> None:
    """Stores, layouts and attention backends see the rectangle of rows, as ever."""
    target = zoo.build("gemma3")
    options = {"align": "ragged", "batch_size": 3, "draft_length": 3, **options}
    harness.check(harness.pipeline(target, zoo.good_draft(target), **options), harness.requests(PROMPTS, 8, {zoo.EOS}))
    assert any(rows == 1 and tokens > 40 for rows, tokens in fed) or "piece" in str(options)


UNEVEN = Budget(4)
TREE = Budget(3, 9)


def drafting(fed: list[tuple[int, ...]]) -> list[int]:
    """Return the tokens of the forwards that were fed one row, but for those of prompts, which are long here."""
    return [tokens for rows, tokens in fed if rows == 1 and tokens < 20]


@pytest.mark.wide
@pytest.mark.parametrize("name", zoo.NAMES)
def test_drafts_of_unequal_length(name: str, fed: list[tuple[int, ...]]) -> None:
    """Every architecture verifies the tokens alone that rows were to draft, and decodes what the reference decoder does."""
    target, policy = zoo.build(name), fakes.Uneven(UNEVEN)
    pipe = harness.pipeline(target, zoo.good_draft(target), align="ragged", batch_size=4, draft_length=policy)
    harness.check(pipe, harness.requests(PROMPTS[1:], 30))
    wanted = [4 + int(said.depths_B.sum()) for said in policy.said if said.depths_B is not None and said.depths_B.any()]
    assert len({*wanted} & {*drafting(fed)}) > 3


WAYS: list[tuple[dict[str, Any], str]] = [
    ({"align": "eqspec"}, "tree"),
    ({"align": "exspec"}, "chain"),
    ({"attention": "flex"}, "tree"),
    ({"bitwise": True}, "chain"),
    ({"graphs": "on"}, "both"),
    ({"kv": "dynamic", "align": "eqspec"}, "chain"),
    ({"layers": "traced"}, "none"),
    ({"check": True}, "tree"),
    ({"accept": "gumbel"}, "tree"),
    ({"accept": "rejection"}, "chain"),
]
"""What attends, stores and accepts, and with which drafts it runs by default; the others are slow."""


@pytest.mark.wide(but=["tree-{'graphs': 'on'}"])
@pytest.mark.parametrize(
    ("options", "tree"),
    [
        pytest.param(
            options,
            shape == "tree",
            marks=[] if quick in (shape, "both") else pytest.mark.slow,
            id=f"{shape}-{options}",
        )
        for options, quick in WAYS
        for shape in ("chain", "tree")
    ],
)
@pytest.mark.filterwarnings("ignore:attention 'flex' holds all scores")
def test_drafts_of_unequal_length_with_whatever_attends_and_judges(
    options: dict[str, Any], tree: bool, fed: list[tuple[int, ...]]
) -> None:
    """Chains and trees of unequal length are verified alike by every store, attention backend and rule."""
    target = zoo.build("gemma3")
    drafter = {"drafter": ModelDrafter(branch="3/1/1")} if tree else {}
    options = {"align": "ragged", "batch_size": 4, "draft_length": fakes.Uneven(TREE if tree else UNEVEN), **options}
    pipe = harness.pipeline(target, zoo.good_draft(target), **drafter, **options)
    harness.check(pipe, harness.requests(PROMPTS, 16, {zoo.EOS}))
    assert len({*drafting(fed)}) > 2


@pytest.mark.wide(but=["chain"])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_scores_of_real_nodes_do_not_depend_on_filler(tree: bool, fed: list[tuple[int, ...]]) -> None:
    """Logits and hidden states of the nodes that are meant are those of the whole rectangle, in their places."""
    target, found = zoo.build("qwen3"), []
    asked = harness.requests(harness.random_prompts((5, 9, 7, 6), zoo.VOCABULARY), 3)
    counts = np.array([4, 0, 1, 2])
    tokens_BN = torch.tensor(harness.random_prompts((4, 4, 4, 4), zoo.VOCABULARY, seed=9))
    parents_BN = torch.tensor([[-1, -1, 0, 1]]) if tree else None
    for known in (None, counts):
        run, pool = harness.open_run(target, 4, 28, align="ragged"), harness.open_pool(asked)
        run.target.capture((1,))
        batch = pool.batch(pool.admit(4))
        run.target.read(batch, left=1)
        verifier = ChainVerifier()
        verifier.start(run)
        draft = Draft(tokens_BN, parents_BN=parents_BN, counts=known, depth=2 if tree else 4)
        found.append(verifier.score(attrs.evolve(batch, prefill=False), draft))
    assert fed[-1] == (1, 4 + 7)
    assert fed[-3] == (4, 5)
    for row, count in enumerate(counts.tolist()):
        for one, other in ((found[0].logits_BTV, found[1].logits_BTV), (found[0].hidden[1], found[1].hidden[1])):
            assert one.shape == other.shape
            torch.testing.assert_close(one[row, : count + 1], other[row, : count + 1])


@pytest.mark.wide(but=["laid-chain"])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("leaves_out", [False, True], ids=["rectangle", "laid"])
def test_recorded_forwards_take_drafts_of_any_counts(fed: list[tuple[int, ...]], leaves_out: bool, tree: bool) -> None:
    """A graph is captured of the rectangle, or of a bucket of tokens; each draft gets its own scores, whatever its counts are."""
    asked = harness.requests(harness.random_prompts((7, 9, 8, 6), zoo.VOCABULARY), 3)
    run, pool = harness.open_run(zoo.build("qwen3"), 4, 28, align="ragged"), harness.open_pool(asked)
    cached, hidden = run.target, (1,)
    cached.read(pool.batch(pool.admit(4)), left=1)
    batch = pool.batch(pool.live[:3])
    cached.follow(batch)
    blocks = [block.whole for block in cached.store._blocks]  # type: ignore[attr-defined]
    others = [block[:, 3, :-1].clone() for block in blocks]
    assert cached.store.slots is not None
    rows, slots = cached.store.rows, cached.store.slots
    recorded = CapturedForward(cached._forward, rows, slots, EagerGraph, leaves_out=lambda places, tokens: leaves_out)
    parents_BT = torch.tensor([[-1, 0, 0, 1, 1]]) if tree else None
    for seed, counts in enumerate(([5, 1, 1], [1, 5, 1], [1, 1, 5], [1, 1, 4])):
        ids_BT = torch.tensor(harness.random_prompts((5, 5, 5), zoo.VOCABULARY, seed=seed))
        whole = Block(ids_BT, -1, parents_BT)
        expected = cached._forward(whole, cached.place(batch, whole), 5, hidden)
        block = Block(ids_BT, -1, parents_BT, counts=np.array(counts))
        found = recorded(block, cached.place(batch, block), 5, hidden)
        for one, other in ((found.logits_BTV, expected.logits_BTV), (found.hidden[1], expected.hidden[1])):
            torch.testing.assert_close(one[torch.from_numpy(block.real)], other[torch.from_numpy(block.real)])
    assert len(recorded.graphs) == 1
    replayed = (1, 8) if leaves_out else (4, 5 if tree else 8)
    shapes = [(3, 5), (1, 7), *[(3, 5), replayed] * 3]  # a shape is recorded the second time it comes up
    assert fed[-8:] == shapes
    assert all(block[:, 3, :-1].equal(other) for block, other in zip(blocks, others, strict=True))


def test_rows_that_pad_a_bucket_have_a_place_for_their_token() -> None:
    """A captured graph computes the real tokens and one of each row of padding."""
    block = Block(torch.zeros(3, 5, dtype=torch.long), -1, counts=np.array([5, 2, 1]))
    recorded = CapturedForward(lambda *_: None, 4, 9, EagerGraph, leaves_out=lambda *_: True)  # type: ignore[arg-type, return-value]
    assert recorded._tokens(block, 3, 5) == 8
    assert recorded._tokens(block, 4, 5) == 16


def test_rows_that_pad_a_bucket_are_their_own() -> None:
    """Rows that pad the bucket of a captured graph are spread from tokens of their own: another row's may be nan."""
    block = Block(torch.zeros(3, 4, dtype=torch.long), -1, counts=np.array([2, 1, 3]))
    laid, before = in_bucket(block, (5, 4, 11), 0), in_bucket(block, (5, 6, 11), 1)
    assert laid is not None
    assert before is not None
    row_BT = torch.arange(5)[:, None].expand(-1, 4)
    assert laid.row(row_BT).tolist() == [[0, 0, 1, 2, 2, 2, 3, *[4] * 4]]
    assert laid.rectangle(laid.row(row_BT)).equal(row_BT)
    place_BT = torch.arange(6).repeat(5, 1)
    assert before.row(10 * torch.arange(5)[:, None] + place_BT).tolist() == [[0, 12, 13, 22, 32, 33, 34, *[40] * 4]]
    assert before.rectangle(before.row(place_BT))[1].tolist() == [2, 2, 2, 3, 3, 3]


@pytest.mark.wide(but=["falcon"])
@pytest.mark.parametrize("way", ["falcon", "eager"])
def test_a_model_that_attends_by_itself_keeps_the_rectangle(way: str, fed: list[tuple[int, ...]]) -> None:
    """What does not go through the attention interface is found by a check, and decodes as ever."""
    target = architectures.build("falcon") if way == "falcon" else zoo.build("qwen3")
    if way == "eager":
        target.set_attn_implementation("eager")
    harness.check(harness.pipeline(target, None, batch_size=3), harness.requests(PROMPTS, 4, {zoo.EOS}))
    assert (3, 30) in fed


@pytest.mark.wide(but=["[6, 6, 6, 2]-999999-False"])
@pytest.mark.parametrize(
    ("counts", "weights", "laid"),
    [
        ([6, 6, 6, 6], 10**9, False),
        ([6, 6, 6, 4], 10**9, False),
        ([6, 6, 6, 2], 10**9, True),
        ([6, 6, 6, 2], 1_000_000, True),
        ([6, 6, 6, 2], 999_999, False),
        ([1, 1, 1, 1], 400_000, True),
        ([0, 0, 0, 0], 10**9, False),
    ],
    ids=str,
)
def test_filler_is_left_out_where_that_pays(
    counts: list[int], weights: int, laid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There has to be much padding, and layers so large that it would take longer than to spread and gather."""
    monkeypatch.setattr(padding_free, "LAYING_OUT", 4_000_000)
    block = Block(torch.zeros(4, 6, dtype=torch.long), -1, counts=np.array(counts))
    assert padding_free.pays(24, block.tokens, weights) == laid
