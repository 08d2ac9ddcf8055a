"""Five broken alignments, and others: the invariant checks name each, and ``verify`` finds each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import architectures
import attrs
import pytest
import torch
from specframe_heads import head
from specframe_lab.grid import checked, expand
from specframe_lab.verify import verify
from specframe_std.acceptance.greedy import Greedy
from specframe_std.alignments.eqspec import EqSpec, LeftPadded
from specframe_std.alignments.masking import MaskedColumns, Masking
from specframe_std.alignments.ragged import Ragged
from specframe_std.drafters import translated as drafters
from specframe_std.kv.ragged_layout import RaggedLayout
from specframe_std.kv.slab import Slab, SlabStore
from specframe_testing import fakes, harness, zoo
from specframe_testing.heads import checkpoints as heads
from specframe_testing.instrumentation.invariant_error import InvariantError

from specframe import hookimpl
from specframe.contracts.cache import DenseView, KVStore, Placement
from specframe.contracts.drafts import Acceptance, Block, Draft, Scores, Transfer
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Batch, Kept
from specframe.plugins.hookspecs import Register
from specframe.plugins.registry import offer, registry


def misplacing(
    change: Callable[[Placement, bool], Placement], right: type = Ragged, layout: type = RaggedLayout
) -> type:
    """Return an alignment whose layout changes each placement: ``change`` is given it, and whether a prompt is read."""

    class Layout(layout):
        def place(self, batch: Batch, block: Block) -> Placement:
            return change(super().place(batch, block), batch.prefill)

    class Misplacing(right):
        def layout(self, store: KVStore, *sizes: int) -> Any:
            return Layout(store, *sizes[: 2 if layout is RaggedLayout else 1])

    return Misplacing


def off_by_one(placement: Placement, prefill: bool) -> Placement:
    """Count the bonus token twice: positions are one too high as soon as tokens are drafted."""
    return attrs.evolve(placement, positions_BT=placement.positions_BT + (not prefill))


def shortsighted(placement: Placement, prefill: bool) -> Placement:
    """Hide every row's first token."""
    slots_1S = torch.arange(placement.key_index_BS.shape[1])[None]
    return attrs.evolve(placement, key_index_BS=placement.key_index_BS.where(slots_1S > 0, -1))


def foresight(placement: Placement, prefill: bool) -> Placement:
    """Let every query see all tokens that are there."""
    return attrs.evolve(placement, index_BT=placement.index_BT.amax(1, keepdim=True).expand_as(placement.index_BT))


def overwriting(placement: Placement, prefill: bool) -> Placement:
    """Write the padding before a prompt to the slot of its first token, which is written after it on a CPU."""
    return attrs.evolve(placement, slots_BT=placement.index_BT.clamp(min=0))


def claiming(placement: Placement, prefill: bool) -> Placement:
    """Say of rows with padding on the left that each token's slot is its place, as kernels without masks need it."""
    return attrs.evolve(placement, in_order=True)


def claiming_even(placement: Placement, prefill: bool) -> Placement:
    """Say of rows of unequal length that all are as long as the longest."""
    return attrs.evolve(placement, even_of=(placement.slots_BT, placement.index_BT, placement.key_index_BS))


class Stale(EqSpec):
    """Keeps the keys and values of rejected tokens."""

    class Layout(LeftPadded):
        def commit(self, batch: Batch, kept: Kept) -> None:
            if kept.on_host is None:  # what a drafter says, and not the acceptance result
                super().commit(batch, kept)

    def layout(self, store: KVStore, rows: int, capacity: int) -> LeftPadded:
        return self.Layout(store, rows)


def with_another_bonus(acceptance: Acceptance) -> Acceptance:
    """Return an acceptance result whose bonus tokens are other ones."""
    place_B1 = acceptance.accepted_B[:, None]
    bonus_B1 = (acceptance.tokens_BT.gather(1, place_B1) + 1) % 61
    return Acceptance(acceptance.accepted_B, acceptance.tokens_BT.scatter(1, place_B1, bonus_B1))


class WrongBonus(Ragged):
    """Emits another token than the target's own."""

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        return transfer.of(with_another_bonus(transfer.acceptance))


class Endless(Ragged):
    """Lets rows go on after their stop tokens."""

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        for sequence in batch.sequences:
            sequence.request = attrs.evolve(sequence.request, stop_token_ids=frozenset())
        return transfer


class Swapped(Ragged):
    """Moves the keys and values of the batch's rows into each other's place after the prompts."""

    class Layout(RaggedLayout):
        def arrange(self, batch: Batch) -> None:
            self._store.arrange(batch.sequences if batch.prefill else batch.sequences[::-1])

    def layout(self, store: KVStore, rows: int, capacity: int) -> RaggedLayout:
        return self.Layout(store, rows, capacity)


FIVE: dict[str, tuple[type, str]] = {
    "off-by-one": (misplacing(off_by_one), "position"),
    "stale": (Stale, "cache"),
    "wrong-bonus": (WrongBonus, "bonus"),
    "endless": (Endless, "stop"),
    "swapped": (Swapped, "row"),
}
"""The alignments that have to be caught, and the invariant that each breaks."""


class SwappedVerdicts(Ragged):
    """Gives rows each other's tokens."""

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        return transfer.of(Acceptance(transfer.acceptance.accepted_B.flip(0), transfer.acceptance.tokens_BT.flip(0)))


class SwappedInPlace(Ragged):
    """Gives rows each other's tokens, by writing to the acceptance result it was handed."""

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        acceptance = transfer.acceptance
        acceptance.accepted_B.copy_(acceptance.accepted_B.flip(0))
        acceptance.tokens_BT.copy_(acceptance.tokens_BT.flip(0))
        return transfer


class Reordered(Ragged):
    """Turns the batch's list of sequences round."""

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        batch.sequences.reverse()
        return transfer


class Greedier(Ragged):
    """Keeps a rejected token."""

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        tokens_BT = torch.cat([draft.tokens_BN, transfer.acceptance.tokens_BT[:, -1:]], dim=1)
        return transfer.of(Acceptance(torch.full_like(transfer.acceptance.accepted_B, draft.nodes), tokens_BT))


class Overlong(Ragged):
    """Moves the rows' ends."""

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        if batch.prefill:
            for sequence in batch.sequences:
                sequence.limit += 2
        return transfer


class Unmasked(Masking):
    """Leaves rejected tokens in the cache for all to see."""

    class Layout(MaskedColumns):
        def commit(self, batch: Batch, kept: Kept) -> None:
            self._rows(batch)

    def layout(self, store: KVStore, rows: int, capacity: int) -> MaskedColumns:
        return self.Layout(store, rows, True)


OTHERS: dict[str, tuple[type, str]] = {
    "overwriting": (misplacing(overwriting), "slot"),
    "claiming": (misplacing(claiming, EqSpec, LeftPadded), "slot"),
    "claiming-even": (misplacing(claiming_even), "slot"),
    "swapped-verdicts": (SwappedVerdicts, "row"),
    "swapped-in-place": (SwappedInPlace, "row"),
    "reordered": (Reordered, "row"),
    "greedier": (Greedier, "bonus"),
    "overlong": (Overlong, "stop"),
    "unmasked": (Unmasked, "cache"),
    "shortsighted": (misplacing(shortsighted), "mask"),
    "foresight": (misplacing(foresight), "mask"),
}
"""More ways to be wrong."""

BROKEN = FIVE | OTHERS


class BrokenPlugin:
    """Offers the broken alignments."""

    @hookimpl
    def specframe_register_alignments(self, register: Register) -> None:
        for name, (factory, _) in BROKEN.items():
            register(name, factory)


@pytest.fixture(autouse=True)
def _broken_plugin() -> Iterator[None]:
    """The broken alignments are registered as any plugin's are."""
    registry.cache_clear()
    offer(registry(), BrokenPlugin(), "broken-alignments")
    yield
    registry.cache_clear()


TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts([7, 1, 13, 2, 7, 19], 61)


def stop_ids() -> frozenset[int]:
    """Return a token that ends several of the continuations early."""
    second = [harness.continuation(TARGET, prompt, 4)[2] for prompt in PROMPTS]
    return frozenset(second[:3])


def asked(new: int = 12) -> list[Request]:
    return harness.requests(PROMPTS, new, stop_ids())


def decode(target: Any = TARGET, draft: Any = DRAFT, **options: Any) -> list[harness.Result]:
    pipe = harness.pipeline(target, draft, check=True, **{"batch_size": 3, "draft_length": 4, **options})
    return harness.decode(pipe, asked())


@pytest.mark.wide(but=["swapped", "overwriting", "claiming", "swapped-verdicts"])
@pytest.mark.parametrize("name", BROKEN)
def test_checks_name_what_is_broken(name: str) -> None:
    """A run with checks stops with an error that names the invariant, the round, the row and the prompt."""
    with pytest.raises(InvariantError) as caught:
        decode(align=name)
    error = caught.value
    assert error.invariant == BROKEN[name][1]
    assert error.round >= 1
    assert 0 <= error.row < 3
    assert 0 <= error.index < len(PROMPTS)
    start = f"round {error.round}, row {error.row} (prompt {error.index}): invariant {error.invariant!r} is broken: "
    assert str(error).startswith(start)


class AnotherBonus(Greedy):
    """Accepts drafts rightly, and follows the accepted tokens with another than the target's choice."""

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        acceptance = super().accept(batch, draft, scores)
        return with_another_bonus(acceptance) if draft.nodes else acceptance


def test_a_rules_wrong_bonus_token_is_named() -> None:
    """A rule's bonus token is the target's choice after the accepted tokens, not one of those before."""
    drafter = fakes.always_right(harness.truth(TARGET, asked()))
    with pytest.raises(InvariantError, match="the bonus token is not the target's choice"):
        decode(draft=drafter, accept=AnotherBonus())


@pytest.mark.wide
@pytest.mark.parametrize("name", ["falcon", "llama"])
def test_a_model_that_is_called_during_a_round_attends_as_ever(name: str) -> None:
    """Checks, observers and other threads get the model's own logits; Falcon compares the name of its attention with sdpa."""
    model, ids_BT = architectures.build(name), torch.tensor(PROMPTS[:1])
    found: list[torch.Tensor] = []

    class Calling(Observer):
        """Calls the model as it is before each of its forwards."""

        def forward(self, role: str, rows: int, tokens: int) -> None:
            found.append(model(input_ids=ids_BT, use_cache=False).logits)

    with torch.inference_mode():
        expected = model(input_ids=ids_BT, use_cache=False).logits
        harness.decode(harness.pipeline(model, None, observers=[Calling()]), harness.requests(PROMPTS[:1], 3))
    assert len(found) == 3
    assert all(torch.allclose(one, expected, atol=1e-4) for one in found)


@pytest.mark.wide
@pytest.mark.parametrize("name", FIVE)
def test_verify_finds_what_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``verify`` finds every one of the five without checks, and distinguishes each from a tie."""
    monkeypatch.setattr("specframe.models.loading.stop_token_ids", lambda *_: stop_ids())
    grid = checked(expand({"target": TARGET, "drafter": [DRAFT], "align": name, "batch_size": 3, "draft_length": 4}))
    (outcome,) = verify(grid, PROMPTS, 12)
    assert outcome.fault is None
    assert not outcome.sound
    assert outcome.batch_one.bugs > 0


@pytest.mark.wide
def test_verify_reports_a_broken_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    """With checks, a cell's fault is the invariant that broke, and the other cells go on."""
    cell = {"target": TARGET, "drafter": [DRAFT], "align": "stale,ragged", "batch_size": 3, "check": True}
    broken, good = verify(checked(expand(cell)), PROMPTS, 8)
    assert "invariant 'cache' is broken" in str(broken.fault)
    assert not broken.sound
    assert good.sound


@pytest.mark.wide
@pytest.mark.parametrize("schedule", ["fixed", "continuous", "same-length,window=4"])
@pytest.mark.parametrize(
    "align",
    [
        "ragged",
        "eqspec",
        "exspec",
        "rollback",
        "masking,positions=content",
        "padding,mask=content,positions=content,bonus=target",
    ],
)
def test_what_is_sound_passes(align: str, schedule: str) -> None:
    """Lossless combinations run to the end under the checks and decode what they decode without."""
    harness.assert_exact(TARGET, asked(), decode(align=align, schedule=schedule))


@pytest.mark.wide(but=["padding-position"])
@pytest.mark.parametrize(
    ("align", "invariant"),
    [
        ("masking", "position"),
        ("padding", "position"),
        ("padding,positions=content", "mask"),
        ("padding,mask=content,positions=content", "bonus"),
    ],
)
def test_published_flaws_are_named(align: str, invariant: str) -> None:
    """What is wrong with the alignments that reproduce published flaws is found by the checks."""
    with pytest.raises(InvariantError) as caught:
        decode(align=align)
    assert caught.value.invariant == invariant


class OwnStore(Slab):
    """A KV backend whose stores are of its class ``Store``."""

    def open(self, shapes: Any, rows: int, capacity: int, device: torch.device) -> SlabStore:
        return self.Store(shapes, rows, capacity + 1, device)


class Coarse(OwnStore):
    """Stores keys and values to one decimal place: whole numbers survive, real ones do not."""

    class Store(SlabStore):
        def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> DenseView:
            return super().write(layer, keys.round(), values.round())


class HalfShifted(OwnStore):
    """Realigns only the first layer's keys and values."""

    class Store(SlabStore):
        def move(self, sources_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> None:
            kept = [some[1:].clone() for some in self._moved]
            super().move(sources_BT, targets_BT)
            for some, rest in zip(self._moved, kept, strict=True):
                some[1:] = rest


@pytest.mark.wide(but=["Coarse"])
@pytest.mark.parametrize(
    ("kv", "align", "told"),
    [(Coarse, "auto", "computed without a cache"), (HalfShifted, "eqspec", "hold different tokens")],
    ids=["Coarse", "HalfShifted"],
)
def test_stores_that_keep_something_else_are_found(kv: type[Slab], align: str, told: str) -> None:
    """Other keys than were given show in the target's choices, and layers that were not moved where they differ."""
    target = zoo.build("qwen3")
    with pytest.raises(InvariantError, match=told) as caught:
        decode(target, zoo.good_draft(target), align=align, kv=kv())
    assert caught.value.invariant == "cache"


@pytest.mark.wide
def test_a_rule_that_picks_another_token_is_found() -> None:
    """A rule that claims to be lossless must give the target's own tokens."""
    rule = registry().make("acceptance rule", "synthetic,rate=1")
    rule.offers = frozenset({"lossless"})
    with pytest.raises(InvariantError, match="not the target's choice") as caught:
        decode(accept=rule)
    assert caught.value.invariant == "bonus"


@pytest.mark.wide
def test_a_rule_that_promises_nothing_is_left_alone() -> None:
    """Forced acceptance is checked for everything but whose tokens they are."""
    assert len(decode(accept="synthetic,rate=0.5")) == len(PROMPTS)


def translated(check: bool) -> Any:
    """Return a pipeline whose draft model has another tokenizer: its cache has a layout and rows of its own."""
    options = {"drafter": "translated", "batch_size": 2, "draft_length": 6, "check": check}
    pipe = harness.pipeline(TARGET, DRAFT, **options)
    pipe.parts.tokenizer, pipe.parts.draft_tokenizer = fakes.spelled_tokenizer(3), fakes.spelled_tokenizer(1)
    return pipe


def test_a_cache_of_another_vocabulary_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected tokens that stay in it change no token, and break an invariant."""
    texts = harness.requests(harness.random_prompts([4, 2], 61), 30)
    harness.check(translated(check=True), texts)
    monkeypatch.setattr(drafters, "common", lambda cached, ids: len(cached))
    harness.check(translated(check=False), texts)
    with pytest.raises(InvariantError, match=r"cache.*in the draft, slot \d+ holds token \d+"):
        harness.decode(translated(check=True), texts)


class Late(RaggedLayout):
    """Gives every token the position before its own."""

    def place(self, batch: Batch, block: Block) -> Placement:
        placement = super().place(batch, block)
        return attrs.evolve(placement, positions_BT=placement.positions_BT - 1)


@pytest.mark.wide
@pytest.mark.parametrize("shape", ["", ",tree=dynamic,nodes=8,top=2"], ids=["chain", "tree"])
def test_the_cache_of_a_head_is_checked(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head is fed rows without their first token into a slab of its own; wrong positions there are found."""
    target = zoo.build("qwen3")
    heads.eagle3(tmp_path, target, drafted=70, layers=2)
    options = {"drafter": f"eagle,checkpoint={tmp_path}{shape}", "batch_size": 3, "draft_length": 3, "check": True}
    asked = harness.requests(harness.random_prompts([3, 19, 1, 7], zoo.VOCABULARY), [9, 14, 3, 12], {zoo.EOS})
    harness.check(harness.pipeline(target, None, **options), asked)
    monkeypatch.setattr(head, "RaggedLayout", Late)
    with pytest.raises(InvariantError, match=r"position.*in the draft"):
        harness.decode(harness.pipeline(target, None, align="eqspec", **options), asked)
