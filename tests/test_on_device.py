"""Everything runs on the simulated accelerator: with the tokens of the CPU, one wait per round and few copies."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from specframe_std.attention import kernel_check, varlen
from specframe_std.attention.varlen import Packed
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_std.graphs import captured_forward, graph_cache
from specframe_std.policies.fixed_length import FixedLength
from specframe_testing import fakes, harness, suite_device, zoo
from specframe_testing.device.captured_graphs import SimRecording, tape
from specframe_testing.device.counters import ALLOCATION, COUNTERS
from specframe_testing.device.device_memory import MEMORY
from specframe_testing.paged_fake import Pages
from torch.nn.attention.varlen import varlen_attn
from transformers import LogitsProcessor, PreTrainedModel
from turns import ByTurns

from specframe import Pipeline
from specframe.contracts.cache import DenseView, Placement
from specframe.contracts.drafts import Block, Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.devices import kinds
from specframe.devices.held import Held
from specframe.devices.kinds import on_device
from specframe.model import padding_free
from specframe.model.attention import interface
from specframe.model.run import Run
from specframe.text.sampling import Sampling

LENGTHS, NEW = (5, 1, 17, 9, 3, 8), 12
STOPS = frozenset({zoo.EOS, 3})

takes_lengths = pytest.mark.skipif(
    "seqused_k" not in inspect.signature(varlen_attn).parameters,
    reason="torch's public function takes the rows' lengths, and pages, since 2.12",
)


pytestmark = pytest.mark.usefixtures("on_sim")


@functools.cache
def pair(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a small model on the CPU and a good draft."""
    target = fakes.fake_target() if name == "fake" else zoo.build(name)
    return target, fakes.fake_draft(target) if name == "fake" else zoo.good_draft(target)


def asked(name: str = "fake", new: int = NEW) -> list[Request]:
    """Return ragged requests with eos ids, which are pad ids, inside prompts."""
    prompts = harness.random_prompts(LENGTHS, pair(name)[0].config.vocab_size, seed=1)
    prompts[2][3] = prompts[0][-1] = prompts[4][0] = zoo.EOS
    return harness.requests(prompts, new, STOPS)


def piped(name: str, **options: Any) -> Pipeline:
    """Return a pipeline on copies of a pair on the device."""
    target, draft = pair(name)
    given = {"batch_size": 3, "draft_length": 3, **options}
    return harness.pipeline(target, None if given.get("drafter") == "none" else draft, **given)


def test_figures() -> None:
    """A report has waits and copies per decoding round; a run on a CPU has none."""
    pipe = piped("fake", rounds="synchronous")
    for _ in range(2):
        harness.decode(pipe, asked())
    figures = pipe.report.figures()
    assert figures["host_syncs"] == 1
    assert 0 < figures["h2d_copies"] < 3
    with suite_device.running_on("cpu"):
        pipe = piped("fake")
        harness.decode(pipe, asked())
        assert (pipe.report.host_syncs, pipe.report.h2d_copies) == (None, None)


class Raise(LogitsProcessor):
    """A user's processor that looks at one position alone: it prefers a token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, 7] += 2
        return scores


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": ({}, {"temperature": 0.8}),
    "gumbel": ({"accept": "gumbel"}, {"temperature": 1.0, "top_k": 20}),
    "rejection": ({"accept": "rejection"}, {"temperature": 1.0, "top_p": 0.9}),
    "typical": ({"accept": "typical"}, {"temperature": 0.7}),
    "processors": ({}, {"repetition_penalty": 1.3, "presence_penalty": 0.2}),
    "own processor": ({}, {"processors": [Raise()]}),
    "words": ({}, {"bad_words_ids": [[5], [3, 4]], "suppress_tokens": [6], "min_new_tokens": 4}),
    "samples": ({}, {"samples": 3, "temperature": 1.0}),
    "greedy samples": ({"align": "exspec"}, {"samples": 2}),
    "logprobs": ({}, {"logprobs": 2}),
    "lookup": ({"drafter": "prompt-lookup,ngram=2"}, {}),
    "goodput": ({"draft_length": "goodput"}, {}),
    "pieces": ({"schedule": "continuous,piece=4"}, {}),
    "flex": ({"attention": "flex"}, {}),
    "checked": ({"check": True}, {}),
    "recorded": ({"graphs": "on", "batch_size": 8}, {}),
    "recorded, sampled": ({"graphs": "on", "accept": "gumbel"}, {"temperature": 1.0}),
}


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:attention 'flex'")
@pytest.mark.parametrize("kind", KINDS)
def test_as_on_the_cpu(kind: str) -> None:
    """Rules, processors, samples, log-probabilities, drafters and all else give on the device what they give on the CPU."""
    options, sampling = KINDS[kind]
    several = sampling.get("samples", 1) > 1  # so that batches are somewhere else than in the first rows
    prompts = [request.prompt_ids for request in asked("qwen3")][: None if several else 4]
    found = []
    for device in ("cpu", "sim"):
        with suite_device.running_on(device):
            pipe = piped("qwen3", seed=3, **options)
            results = list(pipe.generate(prompts, NEW if several else 8, sampling=Sampling(**sampling)))
            found.append([(one.index, one.sample, one.token_ids, one.finish_reason) for one in results])
    assert len(found[0]) == len(prompts) * sampling.get("samples", 1)
    assert found[0] == found[1]


@pytest.mark.wide
@pytest.mark.parametrize("align", ["ragged", "exspec"])
def test_memory_that_runs_out_halves_the_batch(align: str) -> None:
    """With less memory than a batch takes, the batch is halved, as on CUDA, and nothing is lost."""
    pipe = piped("qwen3", align=align, batch_size=6)
    gc.collect()  # what earlier tests have left would be freed later, and the limit be too high
    MEMORY.peak[0] = MEMORY.used[0]
    harness.check(pipe, asked("qwen3"))
    pipe.close()  # the stores that stay open for the next run
    gc.collect()
    used, peak = MEMORY.used[0], MEMORY.peak[0]
    with MEMORY.limited(used + (peak - used) * 2 // 3), pytest.warns(RuntimeWarning, match="memory ran out: going on"):
        harness.check(pipe, asked("qwen3"))
    assert pipe.report.sequences == len(LENGTHS)


def test_attention_is_kept_from_kernels_that_need_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """While models run torch does not ask cuDNN, which builds a plan for each length of a cache; after it, it does."""
    seen: list[bool] = []

    def look(query: torch.Tensor, *given: Any) -> torch.Tensor:
        if query.device.type == "sim":  # the reference decodes on the CPU
            seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attends(query, *given)

    attends = interface.masked_attention
    monkeypatch.setattr(interface, "masked_attention", look)
    target = zoo.build("qwen3")
    pipe = harness.pipeline(target, zoo.good_draft(target), graphs="off", batch_size=2, draft_length=2)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    asked = harness.requests(harness.random_prompts((5, 1), zoo.VOCABULARY), 4)
    harness.check(pipe, asked)
    seen.clear()  # a model is tried out in its first run
    harness.check(pipe, asked)
    assert seen
    assert not any(seen)
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_a_setting_holds_until_the_last_one_is_out() -> None:
    """Threads that leave in any order put back what was there before the first of them."""
    value, changes = ["before"], list[str]()

    def change() -> Callable[[], None]:
        before, value[0] = value[0], "held"
        changes.append(before)

        def put_back() -> None:
            value[0] = before

        return put_back

    held = Held(change)
    for _ in range(2):
        first, second = contextlib.ExitStack(), contextlib.ExitStack()
        for one in (first, second):
            one.enter_context(held)
        first.close()
        assert value == ["held"]
        second.close()
        assert value == ["before"]
    assert changes == ["before"] * 2


@pytest.fixture
def shelves(monkeypatch: pytest.MonkeyPatch) -> list[graph_cache.GraphCache]:
    """The shelves of captured forwards that are made in a test: target, draft."""
    made: list[graph_cache.GraphCache] = []

    class Noted(graph_cache.GraphCache):
        def __init__(self, record: Any) -> None:
            super().__init__(record)
            made.append(self)

    monkeypatch.setattr(captured_forward, "GraphCache", Noted)
    return made


def test_chains_are_recorded_by_buckets_of_rows(shelves: list[graph_cache.GraphCache]) -> None:
    """Drafts of any number of rows have captured graphs of 1, 2, 4 or all rows; rows outside of the batch are not written to."""
    target, draft = pair("fake")
    asked = harness.requests(harness.random_prompts([3] * 7, 61, seed=2), [8, 15, 22, 29, 36, 43, 50])
    harness.check(harness.pipeline(target, draft, batch_size=7, draft_length=3, graphs="on"), asked)
    assert {2, 4} <= {key[0] for key in shelves[1]._kept} <= {1, 2, 4, 7}
    schedule = "same-length,window=7"  # batches of three of seven rows
    harness.check(harness.pipeline(target, draft, batch_size=3, schedule=schedule, draft_length=3, graphs="on"), asked)
    assert 4 in {key[0] for key in shelves[3]._kept} <= {1, 2, 4}


def test_short_drafts_of_several_lengths_share_a_recording(shelves: list[graph_cache.GraphCache]) -> None:
    """A row's tokens are rounded up to a power of two where few rows have 64 of them at most, and are not beyond."""
    target, draft = pair("fake")
    asked = harness.requests(harness.random_prompts([3] * 12, 61), 40)
    for rows, widths in ((1, {1, 2, 4, 8}), (12, {1, 2, 4, 5, 6})):
        shelves.clear()
        options: dict[str, Any] = {"draft_length": ByTurns(3, 1, 5, 2, 4, 0), "graphs": "on", "batch_size": rows}
        harness.check(harness.pipeline(target, draft, **options), asked[:rows])
        assert {width for _, width, *_ in shelves[0]._kept} == widths


def test_prompts_are_recorded_when_their_shape_came_up_often(shelves: list[graph_cache.GraphCache]) -> None:
    """A captured graph of prompts pays after some replays, so that prompts of a few shapes are not captured."""
    target, draft = pair("fake")
    recorded = []
    for count in (captured_forward.EAGER, captured_forward.EAGER + 1):
        shelves.clear()
        asked = harness.requests(harness.random_prompts([40] * count, 61), 4)
        harness.check(harness.pipeline(target, draft, draft_length=3, graphs="on", batch_size=1), asked)
        recorded.append({width for _, width, *_ in shelves[0]._kept if width > captured_forward.LONGEST})
    assert recorded == [set(), {64}]


@pytest.mark.wide(but=["gpt2-three rows", "gpt2-seven rows of eight bits"])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 1},
        {"batch_size": 3, "schedule": "continuous,mixed=off"},
        {"batch_size": 7, "schedule": "continuous,wait=0,mixed=off"},
        {"batch_size": 7, "schedule": "continuous,wait=0,mixed=off", "kv": "slab,dtype=int8"},
        {"batch_size": 3, "bitwise": True, "schedule": "continuous,mixed=off"},
        {"batch_size": 3, "align": "eqspec", "kv": "slab"},
        {"batch_size": 3, "align": "exspec", "kv": "slab"},
    ],
    ids=["one row", "three rows", "seven rows", "seven rows of eight bits", "bitwise", "eqspec", "exspec"],
)
@pytest.mark.parametrize(
    "name", ["qwen3", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "mistral"))]
)
def test_short_prompts_are_recorded(
    name: str, options: dict[str, Any], shelves: list[graph_cache.GraphCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of all lengths up to a power of two replay one captured graph, by target and draft, in whichever row they are.

    As much of the drafts is accepted as without.
    """
    monkeypatch.setattr(padding_free, "LAYING_OUT", 1000)
    monkeypatch.setattr(captured_forward, "EAGER", 1)
    target = zoo.build(name)
    lengths = (40, 90, 33, 61, 100, 44, 35, 64, 10, 55)
    prompts = harness.random_prompts(
        lengths * (4 if options["batch_size"] == 7 else 1 + ("align" in options)), zoo.VOCABULARY
    )
    asked = harness.requests(prompts, [2 + 7 * row % 13 for row in range(len(prompts))])
    counts, tokens = [], []
    for graphs_on in ("on", "off"):
        given = {"draft_length": 3, "graphs": graphs_on, "rounds": "synchronous", **options}
        pipe = harness.pipeline(target, zoo.good_draft(target), **given)
        found = harness.decode(pipe, asked)
        if options.get("kv") != "slab,dtype=int8":
            harness.assert_exact(target, asked, found)
        tokens.append([one.token_ids for one in found])
        counts.append([one.metrics for one in found])
    assert counts[0] == counts[1]
    assert tokens[0] == tokens[1]
    for shelf in shelves[:2]:
        recorded = [(key[0], key[1], key[6]) for key in shelf._kept if key[1] > captured_forward.LONGEST]
        assert {64} <= {width for _, width, _ in recorded} <= {64, 128} or (recorded and "align" in options)
        assert all((tokens or rows * width) <= captured_forward.PROMPTS for rows, width, tokens in recorded)
        if options["batch_size"] == 7:
            assert any(tokens for _, _, tokens in recorded)


def test_hidden_states_of_recorded_prompts(shelves: list[graph_cache.GraphCache]) -> None:
    """Those of padding are left out; they are what a forward that is not captured has."""
    run = harness.open_run(zoo.build("qwen3"), 2, 120, align="ragged")
    pool = harness.open_pool(harness.requests(harness.random_prompts((50, 41), zoo.VOCABULARY), 20))
    run.graphs = "on"
    cached, batch = run.open_cache(run.runner), pool.batch(pool.admit(2))
    cached.capture([0, 1, 2], past=False)
    found = [cached.feed(batch, Block(batch.last_tokens(width), -width), keep=4) for width in (50, 41, 41, 35)]
    assert {key[1] for key in shelves[0]._kept} == {64}
    for scores, width in zip(found, (50, 41, 41, 35), strict=True):
        assert {states_BTD.shape[1] for states_BTD in scores.hidden.values()} == {width}
        for number, states_BTD in scores.hidden.items():
            torch.testing.assert_close(states_BTD[0, -35:].cpu(), found[0].hidden[number][0, -35:].cpu())
        torch.testing.assert_close(scores.logits_BTV.cpu(), found[0].logits_BTV.cpu())


def test_no_graph_is_given_up_while_one_is_recorded() -> None:
    """Python does not look for unreachable graphs meanwhile."""
    values = torch.zeros(4, device="sim")

    def looked_for() -> tuple[torch.Tensor, ...]:
        if tape() is not None and gc.isenabled():
            gc.collect()
        return (values + 1,)

    cache, before = graph_cache.GraphCache(SimRecording), gc.get_threshold()
    gc.set_threshold(0)  # never by itself
    try:
        ring: list[Any] = [SimRecording(lambda: (values + 2,))]
        ring.append(ring)
        lost = weakref.ref(ring[0])
        del ring
        for _ in range(2):
            found = cache.take(("shape",), lambda: (None, looked_for))
        assert found is not None
        assert lost() is not None
        gc.collect()
        assert lost() is None
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()


@pytest.mark.wide(but=["chain"])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_drafts_of_unequal_length_are_recorded(tree: bool, shelves: list[graph_cache.GraphCache]) -> None:
    """Captured graphs of the target compute buckets of real tokens alone where rows draft unequally, and the tokens are exact."""
    target = pair("qwen3")[0]
    budget = Budget(3, 7) if tree else Budget(4)
    drafter = {"drafter": ModelDrafter(branch="3/1/1")} if tree else {}
    options = {
        "batch_size": 3,
        "draft_length": fakes.Uneven(budget),
        "graphs": "on",
        "schedule": "continuous,mixed=off",
    }
    asked = harness.requests(harness.random_prompts((3, 9, 5, 7), zoo.VOCABULARY), [14, 20, 16, 18])
    harness.check(harness.pipeline(target, zoo.good_draft(target), **drafter, **options), asked)
    assert {key[6] for key in shelves[0]._kept} > {None}


class Forgetful(harness.Feeds):
    """Has the constants that were sent to the device given back after every round, as others that are used more are kept."""

    def round(self, report: RoundReport) -> None:
        """Give them back."""
        kinds._constant.cache_clear()


@pytest.mark.wide(but=["gpt2"])
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_graphs_hold_the_constants_that_they_read(name: str) -> None:
    """What was sent once for many forwards stays where a graph reads it, when it is no longer among those used last."""
    replays = SimRecording.replays
    harness.check(piped(name, graphs="on", batch_size=3, observers=[Forgetful()]), asked(name, 8))
    assert SimRecording.replays > replays + 2


def test_new_shapes_are_told(shelves: list[graph_cache.GraphCache]) -> None:
    """A run reports how often a forward was slower since its shape was new or captured; replayed and uncaptured ones are not."""
    target = zoo.build("qwen3")
    draft, asked = zoo.good_draft(target), harness.requests(harness.random_prompts((5, 5), zoo.VOCABULARY), 14)
    told: dict[str, list[int]] = {"auto": [], "off": []}
    for mode, numbers in told.items():

        class Told(FixedLength):
            """Notes what its run reports after every round."""

            def start(self, run: Run) -> None:
                """Keep the run."""
                self.run = run

            def observe(self, report: RoundReport, numbers: list[int] = numbers) -> None:
                """Note the number of so far."""
                numbers.append(self.run.new_shapes)

        options: dict[str, Any] = {"graphs": mode, "batch_size": 2, "rounds": "synchronous"}
        harness.check(harness.pipeline(target, draft, draft_length=Told(3), **options), asked)
    first, second, *others = told["auto"]
    assert second - first == 2, "target and draft are new in the first round and recorded in the second"
    assert others[:2] == [second] * 2
    assert set(told["off"]) == {0}


def test_recordings_are_bounded(shelves: list[graph_cache.GraphCache], monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured graphs that were used last are kept, as many as the bound says; tokens stay exact while others are dropped."""
    monkeypatch.setattr(graph_cache, "MOST", 2)
    target, draft = pair("fake")
    asked = harness.requests(harness.random_prompts([3] * 7, 61, seed=2), [8, 15, 22, 29, 36, 43, 50])
    made = SimRecording.made
    harness.check(harness.pipeline(target, draft, batch_size=7, draft_length=3, graphs="on"), asked)
    assert [len(shelf) for shelf in shelves] == [2, 2]
    assert SimRecording.made - made > 4


@pytest.mark.wide
def test_packed_attention() -> None:
    """In half precision "auto" packs, as on CUDA; the tokens are those of masks, but for ties."""
    shape = {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    target = zoo.build("qwen3", **shape).to(torch.bfloat16)
    found = []
    for attention in ("masked", "packed", "auto"):
        pipe = harness.pipeline(target, zoo.good_draft(target), attention=attention, batch_size=3, draft_length=3)
        found.append([result.token_ids for result in harness.decode(pipe, asked("qwen3"))])
        facts = pipe.parts.runner.attention.facts
        assert Packed().suits(facts)
    assert found[1] == found[2]
    same = sum(one == other for one, other in zip(found[0], found[1], strict=True))
    assert same >= len(LENGTHS) - 2, "variable-length attention parts from masks in more rows than ties explain"


@takes_lengths
@pytest.mark.parametrize(("page", "reads"), [(256, True), pytest.param(16, False, marks=pytest.mark.slow)])
def test_packed_attention_reads_pages(page: int, reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a size that the kernel has are read where they lie; others are gathered. The tokens are those of a slab."""
    shape = {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    target = zoo.build("qwen3", **shape).to(torch.bfloat16)
    found, tables = [], list[Counter[bool]]()
    flash = varlen.flash

    def noted(*given: Any) -> torch.Tensor:
        tables[-1][given[6] is not None] += 1
        return flash(*given)

    for kv in ("slab", Pages(page=page), f"paged,block={page},view=blocks"):
        pipe = harness.pipeline(target, zoo.good_draft(target), kv=kv, attention="packed", batch_size=3, draft_length=3)
        harness.decode(pipe, asked("qwen3", 1)[:1])  # kernels are tried in the first run
        tables.append(Counter())
        with monkeypatch.context() as patched:
            patched.setattr(varlen, "flash", noted)
            found.append([result.token_ids for result in harness.decode(pipe, asked("qwen3", 3)[:3])])
    assert found[0] == found[1] == found[2]
    assert [bool(one[True]) for one in tables] == [False, reads, reads]


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "key_heads", "size"), [(4, 4, 8), (6, 3, 16), (8, 1, 64)])
def test_the_packed_kernel(dtype: torch.dtype, heads: int, key_heads: int, size: int) -> None:
    """The kernel equals masks, over windows and rows of any length, as the core's self-test asks of CUDA's."""
    assert kernel_check.error(Packed(), torch.device("sim"), dtype, heads, key_heads, size) < 3e-2


def flash_arguments(**changed: Any) -> dict[str, Any]:
    """Return arguments that the flash operator takes, with some changed."""
    given: dict[str, Any] = {
        "query": torch.zeros(4, 4, 16, dtype=torch.bfloat16, device="sim"),
        "key": torch.zeros(20, 2, 16, dtype=torch.bfloat16, device="sim"),
        "value": torch.zeros(20, 2, 16, dtype=torch.bfloat16, device="sim"),
        "cum_seq_q": on_device([0, 2, 4], torch.device("sim")).int(),
        "cum_seq_k": on_device([0, 10, 20], torch.device("sim")).int(),
        "max_q": 2,
        "max_k": 10,
        "dropout_p": 0.0,
        "is_causal": True,
        "return_debug_mask": False,
        "seqused_k": on_device([3, 10], torch.device("sim")).int(),
    }
    return {name: change(given[name]) if (change := changed.get(name)) else value for name, value in given.items()}


WRONG = {
    "precision": ({"query": torch.Tensor.float}, "float16 or bfloat16"),
    "double": (dict.fromkeys(("query", "key", "value"), torch.Tensor.double), "float16 or bfloat16, got torch.float64"),
    "two precisions": ({"key": torch.Tensor.half}, "one precision"),
    "long starts": ({"cum_seq_q": torch.Tensor.long}, "cu_seq_q in int32"),
    "long lengths": ({"seqused_k": torch.Tensor.long}, "seqused_k in int32"),
    "strided lengths": ({"seqused_k": lambda one: one.repeat(2)[::2]}, "seqused_k contiguous"),
    "odd heads": (
        {name: lambda one: one[..., :12].contiguous() for name in ("query", "key", "value")},
        "heads of a size",
    ),
    "heads": ({"query": lambda one: one[:, :3].contiguous()}, "number of heads"),
    "strides": (
        {"query": lambda one: one.transpose(-1, -2).contiguous().transpose(-1, -2)},
        "last dimension is contiguous",
    ),
    "too long": ({"max_k": lambda one: one - 1}, "max_k"),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", WRONG)
def test_the_packed_kernel_refuses(name: str) -> None:
    """Arguments that CUDA's kernel refuses are refused by the operator."""
    changed, expected = WRONG[name]
    torch.ops.aten._flash_attention_forward(**flash_arguments())
    with pytest.raises(RuntimeError, match=expected):
        torch.ops.aten._flash_attention_forward(**flash_arguments(**changed))


@takes_lengths
def test_packed_attention_makes_two_tensors() -> None:
    """A call of variable-length attention makes its output and the log sums: no state of random numbers is made and filled."""
    query, key = (torch.zeros(3, 5, heads, 16, dtype=torch.bfloat16, device="sim").transpose(1, 2) for heads in (4, 2))
    places = torch.arange(5, device="sim")[None]
    plan = Packed().plan(Placement(*(places.repeat(3, 1),) * 3, places, in_order=True))
    with torch.inference_mode(), COUNTERS.watched(ALLOCATION) as made:
        plan.attend(query, DenseView(key, key), None, None)
    assert made.total() == 2, made


@pytest.mark.wide
@takes_lengths
def test_pages_of_the_packed_kernel() -> None:
    """Keys in pages give what the same keys give in one piece; pages of another size than the kernel has are refused."""
    generator = torch.Generator().manual_seed(0)
    query, keys = (
        torch.randn(*shape, generator=generator).bfloat16().to("sim") for shape in ((4, 4, 16), (2, 512, 2, 16))
    )
    table = on_device([[1, 3], [0, 2]], torch.device("sim")).int()
    pages = torch.empty(4, 256, 2, 16, dtype=torch.bfloat16, device="sim")
    pages[table.long()] = keys.unflatten(1, (2, 256))
    starts = on_device([[0, 2, 4], [0, 512, 1024]], torch.device("sim")).int()
    options = {"seqused_k": on_device([300, 17], torch.device("sim")).int(), "window_size": (-1, 0), "enable_gqa": True}
    wanted = varlen_attn(query, keys.flatten(0, 1), keys.flatten(0, 1), *starts, 2, 512, num_splits=1, **options)
    found = varlen_attn(query, pages, pages, *starts, 2, 512, num_splits=1, block_table=table, **options)
    assert torch.equal(found.cpu(), wanted.cpu())
    with pytest.raises(RuntimeError, match="multiple of 256 slots"):
        varlen_attn(query, pages[:, :16], pages[:, :16], *starts, 2, 512, block_table=table, **options)


def test_streaming() -> None:
    """Chunks on the device add up to what the reference decoder gives."""
    pipe, tokens, ends = piped("qwen3"), {}, {}
    for chunk in pipe.stream([request.prompt_ids for request in asked("qwen3")], NEW):
        tokens.setdefault(chunk.index, []).extend(chunk.token_ids)
        if chunk.result:
            ends[chunk.index] = chunk.result.finish_reason
    for request in harness.requests([one.prompt_ids for one in asked("qwen3")], NEW):
        found = tokens[request.index]
        assert found == harness.expected(pair("qwen3")[0], request)[0][: len(found)]
        assert ends[request.index] == ("length" if len(found) == NEW else "eos")
        assert len(found) == NEW or found[-1] == zoo.EOS
