"""Drafts of the target without some sublayers, by its first layers, or on a part of its keys: lossless on its own cache."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specframe_std.drafters.early_exit import EarlyExit
from specframe_std.drafters.layer_skip import LayerSkip, every_second
from specframe_std.drafters.self_drafting import SelfDrafter
from specframe_std.drafters.window import Window
from specframe_std.kv.dynamic import Dynamic
from specframe_std.partial.sublayers import Sublayer, read_sublayers, without_sublayers, write_sublayers
from specframe_std.partial.window_runner import narrow
from specframe_testing import fakes, harness, suite_device, zoo
from specframe_testing.device.device_memory import MEMORY
from transformers import DynamicCache, PreTrainedModel

from specframe.contracts.cache import KVShape, Placement
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch
from specframe.errors import CompositionError, ModelError, OptionError

LENGTHS, NEW = (5, 1, 17, 9, 3, 8), 10
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
ADDS = {
    "attn": ("self_attn.o_proj", "self_attn.out_proj", "attn.c_proj"),
    "mlp": ("mlp.down_proj", "mlp.experts.down_proj", "mlp.c_proj", "fc2"),
}
"""The modules by which each kind of sublayer adds to the hidden states."""
OWN = ("layer-skip,skip=attn:0+mlp:1", "window,sink=2,recent=4", "early-exit,layers=1")
"""The drafters that run a part of the target, or on a part of its keys, on its own cache."""


@functools.cache
def target(name: str) -> PreTrainedModel:
    return zoo.build(name)


@functools.cache
def emptied(name: str, skip: str, share: float = 0.0) -> PreTrainedModel:
    """Return a model of which some sublayers have a share of the weights by which they add: with none they add nothing."""
    model = copy.deepcopy(target(name))
    for one in read_sublayers("skip", skip):
        weights = [
            weight
            for path, weight in model.named_parameters()
            if f".{one.layer}." in path and any(f".{one.layer}.{part}" in path for part in ADDS[one.kind])
        ]
        assert weights
        with torch.no_grad():
            for weight in weights:
                weight.mul_(share)
    return model


def asked(new: int = NEW) -> list[Request]:
    """Return ragged requests with eos ids, which are pad ids, inside prompts."""
    prompts = harness.random_prompts(LENGTHS, zoo.VOCABULARY, seed=1)
    prompts[2][3] = prompts[0][-1] = prompts[4][0] = zoo.EOS
    return harness.requests(prompts, new, {zoo.EOS, 3})


def piped(model: PreTrainedModel, drafter: Any = OWN[0], **options: Any) -> Any:
    return harness.pipeline(model, None, drafter=drafter, **{"batch_size": 3, "draft_length": 3, **options})


LATER = "attn:1+mlp:1"
"""The second layer, which an exit after the first one leaves out."""
BY_ARCHITECTURE = {
    "layer-skip": (("layer-skip,skip=attn:0", "layer-skip,skip=attn:1+mlp:0"), zoo.NAMES),
    "window": (("window,sink=2,recent=3", "window,sink=0,recent=1"), zoo.NAMES),
    "early-exit": (("early-exit,layers=1",) * 2, ("qwen3", "gemma3", "mistral", "gpt2", "opt", "qwen3-moe")),
}
"""Two drafters of each kind, and the architectures that they are tried on."""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "place", "name"),
    [
        pytest.param(kind, place, name, marks=[pytest.mark.slow] * (place % 2))
        for kind, (_, names) in BY_ARCHITECTURE.items()
        for place, name in enumerate(names)
    ],
)
def test_equals_the_reference(kind: str, place: int, name: str) -> None:
    """Every architecture, under two alignments each and with all checks on, gives the reference decoder's tokens."""
    # the first layer often foresees what both say
    model = emptied(name, LATER, 0.3) if kind == "early-exit" else target(name)
    for drafter, align in zip(
        BY_ARCHITECTURE[kind][0], (ALIGNMENTS[place % 4], ALIGNMENTS[(place + 1) % 4]), strict=True
    ):
        pipe = piped(model, drafter, align=align, check=True, batch_size=(1, 3, 8)[place % 3])
        harness.check(pipe, asked())
        assert pipe.report.num_draft_tokens > 0


NOTHING_ADDED = [
    ("qwen3", "attn:0"),
    ("gpt2", "mlp:0+attn:1"),
    ("gemma3", "attn:0-2"),
    ("qwen3", LATER),
    ("gpt2", LATER),
]
"""Models and what is left out of them; the last two by an exit after the first layer."""


@pytest.mark.wide(but=["qwen3-attn:0-rollback"])
@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize(("name", "skip"), NOTHING_ADDED)
def test_the_cache_is_never_wrong(name: str, skip: str, align: str) -> None:
    """Where what is left out adds nothing, every draft is accepted, however rows are moved and left out."""
    schedule = "same-length,window=5" if align == "exspec" else "continuous"
    drafter = "early-exit,layers=1" if skip == LATER else f"layer-skip,skip={skip}"
    pipe = piped(emptied(name, skip), drafter, align=align, schedule=schedule)
    harness.check(pipe, harness.requests([one.prompt_ids for one in asked()], NEW, set()))
    assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0


Noted = list[tuple[list[int], list[int]]]
"""Each row's tokens, and the draft that follows them."""


def noting(drafter: SelfDrafter) -> Noted:
    """Have a drafter note what it drafts; return the notes."""
    noted, propose = Noted(), drafter.propose

    def proposed(batch: Batch, budget: Budget) -> Draft:
        draft = propose(batch, budget)
        for row, drafted in enumerate(draft.tokens_BN.tolist()):
            noted.append((batch.tokens[row, : batch.lengths[row]].tolist(), drafted))
        return draft

    drafter.propose = proposed  # type: ignore[method-assign]
    return noted


def drafted_by(drafter: SelfDrafter, name: str, least: int, **options: Any) -> Noted:
    """Return more than so many drafts, each after its row's tokens."""
    noted = noting(drafter)
    harness.check(piped(target(name), drafter, schedule=None, **options), asked())
    drafted = [(given, made) for given, made in noted if made]
    assert len(drafted) > least
    return drafted


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "eqspec"])
@pytest.mark.parametrize(("name", "skip"), [("qwen3", "attn:0"), ("opt", "mlp:0"), ("glm4", "attn:1+mlp:1")])
def test_drafts_are_those_of_a_model_without_the_sublayers(name: str, skip: str, align: str) -> None:
    """A plain model whose sublayers add nothing says the same tokens after the target's own keys and values."""
    for given, made in drafted_by(LayerSkip(skip), name, 10, align=align):
        assert continued(target(name), emptied(name, skip), given, len(made)) == made


@torch.inference_mode()
def continued(model: PreTrainedModel, draft: PreTrainedModel, given: list[int], count: int) -> list[int]:
    """Return the tokens that one model chooses after another has read all given ones but the last."""
    cache, made, fed = DynamicCache(config=model.config), list[int](), torch.tensor([given])
    if len(given) > 1:
        model(input_ids=fed[:, :-1], past_key_values=cache, use_cache=True)
    fed = fed[:, -1:]
    for _ in range(count):
        fed = draft(input_ids=fed, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        made.append(int(fed))
    return made


DRAFTED = [
    ("qwen3", "ragged", "slab", 2, 3),
    ("qwen3", "eqspec", "dynamic", 1, 4),
    ("gemma3", "ragged", "paged,block=4,share=on", 0, 1),
    ("qwen3", "exspec", "pool", 0, 5),
    ("opt", "rollback", "slab", 3, 9),
    ("gpt2", "ragged", "pool", 2, 3),
    ("gemma3", "eqspec", "slab", 2, 6),
]
"""Models, alignments, stores, sinks and recent tokens; the first three by default."""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "align", "kv", "sink", "recent"),
    [pytest.param(*case, marks=() if place < 3 else pytest.mark.slow) for place, case in enumerate(DRAFTED)],
)
def test_drafts_are_those_of_a_model_with_this_window(name: str, align: str, kv: str, sink: int, recent: int) -> None:
    """A plain model under a mask of the first and the last tokens says the same tokens after the target's own keys and values."""
    for given, made in drafted_by(Window(sink, recent), name, 7, align=align, kv=kv)[::2]:
        assert windowed(target(name), sink, recent, given, len(made)) == made


@torch.inference_mode()
def windowed(model: PreTrainedModel, sink: int, recent: int, given: list[int], count: int) -> list[int]:
    """Return the tokens that a model chooses with a window after it has read all given ones but the last without one."""
    cache, made, least = DynamicCache(), list[int](), torch.finfo(torch.float32).min
    sliding = getattr(model.config, "sliding_window", None)
    mixed = len({*(getattr(model.config, "layer_types", None) or ())}) > 1

    def fed(first: int, ids: list[int], narrow: bool) -> int:
        query_T1, key_S = torch.arange(first, first + len(ids))[:, None], torch.arange(first + len(ids))
        seen_TS = key_S <= query_T1
        if narrow:
            seen_TS = seen_TS & ((key_S < sink) | (key_S > query_T1 - recent))
        seen = {"full_attention": seen_TS, "sliding_attention": seen_TS & (key_S > query_T1 - (sliding or len(key_S)))}
        masks = {kind: torch.zeros(one.shape).masked_fill(~one, least)[None, None] for kind, one in seen.items()}
        told: Any = masks if mixed else masks["full_attention"]
        output = model(
            input_ids=torch.tensor([ids]),
            attention_mask=told,
            position_ids=query_T1.T,
            past_key_values=cache,
            use_cache=True,
        )
        return int(output.logits[0, -1].argmax())

    if len(given) > 1:
        fed(0, given[:-1], narrow=False)
    for place in range(len(given) - 1, len(given) - 1 + count):
        made.append(fed(place, made[-1:] or given[-1:], narrow=True))
    return made


def test_the_rule_of_a_narrow_placement() -> None:
    """Slots in any order, padding and branches: a query sees what it saw before, as far as it is in the window or was just fed."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        sink, recent, width = (int(torch.randint(*ends, (), generator=generator)) for ends in ((0, 4), (1, 5), (1, 4)))
        lengths = torch.randint(0, 12, (3,), generator=generator).tolist()
        extent = max(*lengths, sink + recent) + 2 * width + 3
        key_index_BS, slots_BT, index_BT = torch.full((3, extent), -1), *torch.zeros(2, 3, width, dtype=torch.long)
        tree = bool(torch.randint(2, (), generator=generator))
        for row, length in enumerate(lengths):
            slots = torch.randperm(extent, generator=generator)
            key_index_BS[row, slots[:length]] = torch.arange(length)
            padding = 0 if tree else int(torch.randint(width + 1, (), generator=generator))
            depth_T = torch.arange(width).clamp(max=1) if tree else torch.arange(width) - padding
            index_BT[row] = (length + depth_T).where(depth_T >= 0, -1)
            slots_BT[row] = slots[length : length + width].where(depth_T >= 0, extent)  # beyond all, as layouts have it
            held = depth_T >= 0
            key_index_BS[row, slots_BT[row][held]] = index_BT[row][held]
        sees_TT = torch.eye(width, dtype=torch.bool)
        sees_TT[:, 0] = True
        whole = Placement(index_BT, slots_BT, index_BT, key_index_BS, sees_BTT=sees_TT[None] if tree else None)
        of_store, short = narrow(whole, sink, recent)
        assert of_store.attended_BS.shape == short.key_index_BS.shape == (3, sink + recent - 1 + width)
        assert not short.in_order
        assert not short.even
        for window in (None, 3):
            wide_BTS, narrow_BTN = whole.seen(window), short.seen(window)
            for row, step in itertools.product(range(3), range(width)):
                if index_BT[row, step] < 0:
                    continue
                inside_S = (key_index_BS[row] < sink) | (key_index_BS[row] > lengths[row] - recent)
                seen = wide_BTS[row, step] & inside_S
                found = of_store.attended_BS[row][narrow_BTN[row, step]].tolist()
                assert sorted(found) == seen.nonzero()[:, 0].tolist()


def test_recordings_for_rows_of_any_length_keep_to_the_window() -> None:
    """Where a target attends by lengths, one captured graph serves all: drafts are those of forwards that are not captured."""
    with suite_device.running_on("sim"):
        model = zoo.build("qwen3", head_dim=16, num_attention_heads=4, num_key_value_heads=2).to(torch.bfloat16)
        drafted = []
        for graphs in ("off", "on"):
            drafter = Window(1, 3)
            noted = noting(drafter)
            pipe = piped(model, drafter, attention="packed", graphs=graphs, accept="gumbel")
            harness.decode(pipe, asked()[:3])
            assert pipe.report.host_syncs == 2, "one wait of the loop, one for the notes"
            drafted.append(noted)
        assert drafted[0] == drafted[1]


def test_memory_can_be_bounded() -> None:
    """Memory profiling has no numbers to show whether a layer does more than add its sublayers to its input; the run itself has."""
    harness.check(piped(target("qwen3"), memory="8MB", batch_size=1), asked()[:1])


@pytest.mark.wide
@pytest.mark.parametrize("own", OWN)
def test_memory_that_runs_out_halves_the_batch(own: str) -> None:
    """A halved batch begins again with the same part of the target on the new cache."""
    with suite_device.running_on("sim"):
        pipe = piped(target("qwen3"), own, batch_size=6)
        gc.collect()  # what earlier tests have left would be freed later, and the limit be too high
        MEMORY.peak[0] = MEMORY.used[0]
        harness.check(pipe, asked())
        pipe.close()  # the stores that stay open for the next run
        gc.collect()
        used, peak = MEMORY.used[0], MEMORY.peak[0]
        with MEMORY.limited(used + (peak - used) * 2 // 3), pytest.warns(RuntimeWarning, match="memory ran out"):
            harness.check(pipe, asked())


def test_layers_of_a_growing_cache_may_lack_what_a_draft_left_out() -> None:
    """Columns that one layer has and another lacks are moved where they are, and dropped before the next ones are written."""
    store = Dynamic().open([KVShape(1, 1, 1, torch.float32)] * 2, 1, 8, torch.device("cpu"))
    sequences: Any = [SimpleNamespace(gone=False, parent=None)]
    store.arrange(sequences)

    def placed(columns: int) -> Placement:
        last = torch.tensor([[columns - 1]])
        return Placement(last, last, last, torch.arange(columns)[None])

    def written(column: int, layers: tuple[int, ...]) -> None:
        told = placed(column + 1)
        store.expect(told)
        for layer in layers:
            value = torch.full((1, 1, 1, 1), float(column))
            store.write(layer, value, value)

    for column in range(2):
        written(column, (0, 1))
    written(2, (1,))
    store.move(torch.tensor([[1, 2]]))
    told = placed(2)
    assert [tensor.flatten().tolist() for tensor in store._tensors[2:]] == [[1.0, 2.0]] * 2
    store.expect(told)
    one = torch.full((1, 1, 1, 1), 9.0)
    assert [store.write(layer, one, one).keys.flatten().tolist() for layer in (0, 1)] == [[1.0, 9.0]] * 2


def test_the_target_is_left_as_it_is() -> None:
    """The model without the sublayers is made of the target's own modules, and the target keeps all that it has."""
    model: Any = copy.deepcopy(target("gpt2"))
    ids = torch.tensor([[5, 6, 7]])
    before, modules = model(ids).logits, [*model.modules()]
    made: Any = without_sublayers(model, read_sublayers("skip", "attn:1+mlp:0"), "the target")
    assert [*model.modules()] == modules
    assert not any("forward" in vars(module) for module in modules)
    assert torch.equal(model(ids).logits, before)
    assert not torch.allclose(made(ids).logits, before)
    assert made.transformer.h[0].attn is model.transformer.h[0].attn
    assert made.transformer.h[1].attn.c_attn is model.transformer.h[1].attn.c_attn
    assert made.lm_head is model.lm_head


@pytest.mark.wide
@pytest.mark.parametrize("text", ["", "3", "attn", "attn:", "attn:5-3", "ffn:3", "attn:-1", "mlp:10000", "attn:1+", 3])
def test_another_text_is_refused(text: object) -> None:
    """What is no text of sublayers is named in one sentence."""
    with pytest.raises(OptionError, match=r"^skip: expected layers of attn and mlp, as in attn:3-7\+9\+mlp:5, got "):
        LayerSkip(text)  # type: ignore[arg-type]


@pytest.mark.wide
def test_without_an_option_every_second_layer_is_left_out() -> None:
    """The first and the last layer stay, but for targets of two layers, which have no other."""
    assert write_sublayers(every_second(8)) == "attn:1+3+5+mlp:1+3+5"
    assert every_second(2) == {Sublayer("attn", 1), Sublayer("mlp", 1)}


def test_what_cannot_be_is_refused() -> None:
    """Layers that are not there, models that are not made of such layers, and an alignment that cannot share: one sentence each."""
    qwen3, later = target("qwen3"), zoo.build("opt", do_layer_norm_before=False)
    for model, drafter, said in (
        (
            qwen3,
            "layer-skip,skip=attn:1-3",
            "has layers 0 to 1: expected sublayers of these to be left out, got attn:2-3$",
        ),
        (later, "layer-skip,skip=attn:0", r"layer 0 of .* does more than add its attention and its MLP to its input"),
        (fakes.fake_target(), OWN[0], "does not keep its layers in one list"),
        (fakes.fake_target(), OWN[2], "does not keep its layers in one list"),
        (qwen3, "early-exit,layers=2", "drafter 'early-exit': expected layers below the 2 of the target .*, got 2"),
    ):
        with pytest.raises(ModelError, match=said):
            harness.check(piped(model, drafter), asked())
    with pytest.raises(OptionError, match=r"layers: expected .* at least 1.*, got 0"):
        EarlyExit(0)
    for drafter in (OWN[0], OWN[2]):
        told = "needs 'share' to be offered, and alignment 'masking' does not offer it"
        with pytest.raises(CompositionError, match=told):
            piped(qwen3, drafter, align="masking")
