"""Memory profiling of a run, compared with what an allocation counter finds when it is decoded."""

from __future__ import annotations

import math
from typing import Any

import architectures
import attrs
import numpy as np
import pytest
import torch
from planned import CASES, Case, Paused
from specframe_memory.allocations import Allocations
from specframe_memory.footprint import CACHE, LOGITS, MASKS, STATES, TARGET, Workload
from specframe_memory.full_drafts import Steady
from specframe_memory.meta_models import META
from specframe_memory.profiled_rounds import uncollected
from specframe_std.policies.fixed_length import FixedLength
from specframe_testing import zoo

from specframe import Sampling
from specframe.contracts.drafts import Budget
from specframe.contracts.requests import Request, SamplingPlan
from specframe.contracts.round import Batch
from specframe.devices import kinds
from specframe.model.runner import ModelRunner


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", ["slab", "columns", pytest.param("windows", marks=pytest.mark.slow), "experts", "biases", "states"]
)
def test_memory_is_told_beforehand(name: str) -> None:
    """Caches take the profiled bytes, to the byte, and all together no more, and less by 3% at most."""
    if name == "biases" and not architectures.known("inkling_text"):
        pytest.skip("the transformers installed has no Inkling, or another one")
    case, counter = CASES[name], Allocations()
    told = case.planned()
    report = case.counted(counter).report
    assert told.kv_bytes == report.peak_kv_bytes
    assert counter.peak.total <= told.total <= 1.03 * counter.peak.total
    assert sum(told.parts.values()) == told.total
    assert {CACHE, TARGET} <= told.parts.keys()
    states = name in ("biases", "states")
    if not states:  # most bytes are in use before masks are made there, unless earlier runs have left one
        assert (MASKS in told.parts) == (name != "columns")  # the same there
    assert told.parts[TARGET] == sum(one.nbytes for one in [*case.models[0].parameters(), *case.models[0].buffers()])
    assert (STATES in told.parts) == states
    assert told.parts.get(LOGITS, 0) < told.total / 10


def test_what_a_trial_has_noted_goes_with_it() -> None:
    """A model's self-test holds no state of a layer afterwards, whether garbage is collected or not."""
    runner = ModelRunner(zoo.build("qwen3.5"), "target")
    with uncollected(), Allocations() as counter:
        counter.hold([*runner.module.parameters(), *runner.module.buffers()], TARGET)
        before = counter.used
        assert runner.kv_shapes
        assert counter.used - before < 1000


def test_a_pool_holds_no_more_than_is_told() -> None:
    """The bytes of a store whose rows grow in any order are given as a bound."""
    case = attrs.evolve(CASES["slab"], options={"draft_length": 3, "kv": "pool"})
    told, pipe = case.require_told()
    assert pipe.report.peak_kv_bytes <= told.kv_bytes <= 1.4 * pipe.report.peak_kv_bytes


class Unequal(FixedLength):
    """A draft-length policy that gives every other row half of a draft of 7 tokens."""

    offers = frozenset()

    def budget(self, batch: Batch) -> Budget:
        """Return the budget."""
        return Budget(7, depths_B=np.where(np.arange(len(batch)) % 2, 3, 7)) if len(batch) > 1 else self.maximum


def test_drafts_of_unequal_lengths_take_no_more_than_is_told() -> None:
    """Where forwards leave out padding, logits are there twice for a moment: as the model returned them, and by rows."""
    case = Case("llama", "draft", Workload(12, 4, 18), {"draft_length": Unequal(7), "kv": "slab"})
    _, pipe = case.require_told()
    assert pipe.report.draft_forwards > 0


def test_unequal_drafts_have_as_little_filler_as_is_left_out() -> None:
    """Logits are there twice wherever padding is left out: most bytes are in use where that is the least."""
    for maximum, depths in ((Budget(12), [12, 11, 0, 0]), (Budget(3, 12), [3, 0, 0, 0])):
        steady = Steady(maximum, None, lambda places, tokens: tokens <= places - 25)
        four: Any = [None] * 4
        assert steady.budget(four).depths_B is None
        steady.uneven = True
        found_B = steady.budget(four).depths_B
        assert found_B.tolist() == depths
        assert steady.budget(four[:2]).depths_B is None, "two rows have less"


def test_a_draft_model_that_catches_up_takes_no_more_than_is_told() -> None:
    """What it has missed while nothing was drafted may be longer than any prompt, and is read at once."""
    case = Case("qwen3", "draft", Workload(4, 3, 60), {"draft_length": Paused(51), "kv": "slab"})
    told, pipe = case.require_told()
    assert pipe.report.draft_forwards > 0
    always = attrs.evolve(case, options={"draft_length": 3, "kv": "slab"})
    assert always.planned().total < 0.9 * told.total, "one that drafts in every round misses nothing"


def test_drafters_in_turn_take_no_more_than_is_told() -> None:
    """Memory profiling's prompts are found everywhere, and a run's may be found nowhere: then the draft model takes all steps."""
    options = {"draft_length": 6, "kv": "slab", "accept": "rejection"}
    case = Case("qwen3", "first,of=suffix|model,weigh=off", Workload(4, 3, 18), options)
    counter, pipe = Allocations(), case.pipeline()
    case.hold(counter)
    prompts = [[7 * row + place for place in range(3)] for row in range(4)]
    with counter:
        list(pipe.generate(prompts, 15, sampling=Sampling(temperature=1.0)))
    assert pipe.report.draft_forwards >= 6
    assert counter.peak.total <= case.planned(Request(0, [0], 1, plan=SamplingPlan(greedy=False))).total


def test_a_span_has_its_own_peak_and_is_a_part_of_the_whole() -> None:
    """What was in use before a block counts in it, the most before it does not, and that of the block counts after it."""
    with Allocations() as counter:
        kept = torch.empty(100, dtype=torch.uint8)
        torch.empty(500, dtype=torch.uint8)
        with counter.span() as first:
            torch.empty(200, dtype=torch.uint8)
        assert (first[0].total, counter.peak.total) == (300, 600)
        with counter.span() as second:
            torch.empty(900, dtype=torch.uint8)
        assert (second[0].total, counter.peak.total) == (1000, 1000)
    assert len(kept) == 100


@pytest.mark.wide
def test_storages_are_counted_until_their_last_tensor_is_gone() -> None:
    """Views take nothing, a copy takes its bytes, and what is deleted is free."""
    with Allocations() as counter:
        held = torch.zeros(10)
        part = held[2:4]
        assert counter.used == 40
        copied = part.clone()
        assert counter.used == 48
        del held
        assert counter.used == 48
        del part, copied
        assert counter.used == 0
    assert counter.peak.total == 48


def test_operators_made_of_others_are_counted_piece_by_piece() -> None:
    """What a composed operator takes in between counts, inside of inference mode, too."""
    with torch.inference_mode(), Allocations() as counter:
        values = torch.zeros(4, 8, dtype=torch.bfloat16)
        values.softmax(-1, dtype=torch.float32)  # a copy in float32 first
    assert counter.peak.total == 64 + 128 + 128


def test_a_limit_raises_a_lack_of_memory() -> None:
    """More bytes than the limit raise what an allocator raises."""
    with (
        Allocations(limit=100) as counter,
        pytest.raises(torch.OutOfMemoryError, match="120 bytes were asked for, 0 of"),
    ):
        torch.zeros(30)
    assert counter.used == 0


def test_a_copy_on_the_host_takes_no_memory_of_the_device() -> None:
    """It has a shape, which is copied back as that of any other."""
    counter = Allocations(hollow=True)
    with counter:
        held = torch.zeros(64, 3, device=META)
        before = counter.used
        copied = kinds.of(META).to_host(held)
        assert counter.used - before <= held.itemsize
        held[1:].copy_(copied[1:].to(META))


@pytest.mark.wide
def test_copies_of_states_are_told() -> None:
    """Copies of states that are kept for other prompts count as the states of as many rows do, and a run has no more."""
    case = attrs.evolve(CASES["states"], options={"kv": "paged,share=on,states=7"})
    without = attrs.evolve(case, options={"kv": "paged,share=on,states=0"}).planned()
    state = sum(
        math.prod(size) * dtype.itemsize
        for layer in ModelRunner(case.models[0], "target").state_layers.values()
        for size, dtype in zip(layer.shape.sizes, layer.shape.dtypes, strict=True)
    )
    told, pipe = case.require_told()
    assert told.kv_bytes - without.kv_bytes == 7 * state
    assert pipe.report.state_bytes > 7 * state
    assert pipe.report.peak_kv_bytes <= told.kv_bytes
