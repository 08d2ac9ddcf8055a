"""Drafts of the target on the first and the last keys of its own cache: lossless, by the window's rule, and few keys are read."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from specframe_std.drafters.window import Window
from specframe_std.partial.window_runner import narrow
from specframe_testing import harness, suite_device, zoo
from transformers import DynamicCache, PreTrainedModel

from specframe.contracts.cache import Placement
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch

LENGTHS, NEW = (5, 1, 17, 9, 3, 8), 7
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")


@functools.cache
def target(name: str) -> PreTrainedModel:
    return zoo.build(name)


def asked(new: int = NEW) -> list[Request]:
    """Return ragged requests with eos ids, which are pad ids, inside prompts."""
    prompts = harness.random_prompts(LENGTHS, zoo.VOCABULARY, seed=1)
    prompts[2][3] = prompts[0][-1] = prompts[4][0] = zoo.EOS
    return harness.requests(prompts, new, {zoo.EOS, 3})


def piped(model: PreTrainedModel, **options: Any) -> Any:
    return harness.pipeline(
        model, None, **{"drafter": "window,sink=2,recent=4", "batch_size": 3, "draft_length": 3, **options}
    )


SAMPLE = ("gpt2",)
"""Those that are tried by default; tests below have others."""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(place, name, marks=() if name in SAMPLE else pytest.mark.slow)
        for place, name in enumerate(zoo.NAMES)
    ],
)
def test_equals_the_reference(place: int, name: str) -> None:
    """Every architecture, under two alignments each and with all checks on, gives the reference decoder's tokens."""
    for align, window in ((ALIGNMENTS[place % 4], "sink=2,recent=3"), (ALIGNMENTS[(place + 1) % 4], "sink=0,recent=1")):
        pipe = piped(target(name), drafter=f"window,{window}", align=align, check=True, batch_size=(1, 3, 8)[place % 3])
        harness.check(pipe, asked())
        assert pipe.report.num_draft_tokens > 0


class Noting(Window):
    """Notes each row's tokens and the draft that follows them."""

    def __init__(self, sink: int, recent: int) -> None:
        super().__init__(sink, recent)
        self.noted: list[tuple[list[int], list[int]]] = []

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a draft within the budget."""
        draft = super().propose(batch, budget)
        for row, drafted in enumerate(draft.tokens_BN.tolist()):
            self.noted.append((batch.tokens[row, : batch.lengths[row]].tolist(), drafted))
        return draft


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
    drafter = Noting(sink, recent)
    harness.check(piped(target(name), drafter=drafter, align=align, kv=kv, schedule=None), asked())
    drafted = [(given, made) for given, made in drafter.noted if made]
    assert len(drafted) > 7
    for given, made in drafted[::2]:
        assert continued(target(name), sink, recent, given, len(made)) == made


@torch.inference_mode()
def continued(model: PreTrainedModel, sink: int, recent: int, given: list[int], count: int) -> list[int]:
    """Return the tokens that a model chooses with a window after it has read all given ones but the last without one."""
    cache, made, least = DynamicCache(), list[int](), torch.finfo(torch.float32).min
    sliding = getattr(model.config, "sliding_window", None)
    mixed = len({*(getattr(model.config, "layer_types", None) or ())}) > 1

    def fed(first: int, ids: list[int], windowed: bool) -> int:
        query_T1, key_S = torch.arange(first, first + len(ids))[:, None], torch.arange(first + len(ids))
        seen_TS = key_S <= query_T1
        if windowed:
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
        fed(0, given[:-1], windowed=False)
    for place in range(len(given) - 1, len(given) - 1 + count):
        made.append(fed(place, made[-1:] or given[-1:], windowed=True))
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
        assert of_store.attended_BS is not None
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
            drafter = Noting(1, 3)
            pipe = piped(model, drafter=drafter, attention="packed", graphs=graphs, accept="gumbel")
            harness.decode(pipe, asked()[:3])
            assert pipe.report.host_syncs == 2, "one wait of the loop, one for the notes"
            drafted.append(drafter.noted)
        assert drafted[0] == drafted[1]
