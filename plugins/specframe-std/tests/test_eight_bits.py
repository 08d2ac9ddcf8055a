"""Keys and values in 8 bits: what comes back, exactness against a reference with the same quantiser, and the bytes they take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specframe_std.kv.quantised import QuantisedStore
from specframe_std.kv.quantiser import QUANTISERS, Quantiser
from specframe_std.kv.slab import Slab
from specframe_testing import fakes, harness, states, zoo
from specframe_testing.instrumentation import cache_checks

from specframe.contracts.cache import KVShape
from specframe.errors import ModelError, OptionError
from specframe.model.runner import ModelRunner
from specframe.models.own_cache import OwnCache
from specframe.pipeline import Pipeline
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry

TARGET = fakes.fake_target()
DRAFT = fakes.fake_draft(TARGET)
PROMPTS = harness.random_prompts([5, 21, 1, 9, 40, 3, 14, 7], 61)
ASKED = harness.requests(PROMPTS, [9, 4, 17, 7, 12, 3, 25, 1], {7})
BOTH = "dtype={0},draft_dtype={0}"


DTYPES = ["int8", "fp8"]


def pipeline(kv: str, target: Any = TARGET, draft: Any = DRAFT, **options: Any) -> Pipeline:
    """Return a pipeline, of the fakes unless told otherwise."""
    return harness.pipeline(target, draft, kv=kv, **{"batch_size": 3, "draft_length": 3, **options})


@pytest.mark.wide(but=["dtype2-fp8"])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_head_comes_back_to_half_a_step(name: str, dtype: torch.dtype) -> None:
    """Numbers of any size, head by head, of sizes that are even and odd; zeros stay zeros and nothing becomes nan."""
    quantiser = QUANTISERS[name]
    step = {"int8": 1 / 127, "fp8": 1 / 14}[name]  # of fp8 the largest step: 32 of 448
    for size in (128, 5, 1):
        states = torch.randn(2, 3, 7, size, generator=torch.Generator().manual_seed(size))
        states = (states * torch.logspace(-6, 3, 7)[:, None]).to(dtype)
        states[0, 1, 2] = 0
        back, largest = quantiser.round(states), states.float().abs().amax(-1, keepdim=True)
        assert back.dtype == dtype
        assert torch.equal(back[0, 1, 2], states[0, 1, 2])
        short = (back.float() - states.float()).abs() / largest.clamp(min=1e-30)
        assert float(short.max()) < 0.5 * step + 2 * (torch.finfo(dtype).eps + torch.finfo(torch.bfloat16).eps)


@pytest.mark.wide
def test_a_device_without_the_dtype_is_told_in_a_sentence() -> None:
    """Codes that torch does not make on a device are refused when the store is opened."""
    lacking: Any = object()
    with pytest.raises(OptionError, match=r"fp8: expected a device whose torch turns numbers into .*, got cpu; int8"):
        Quantiser("fp8", lacking, 448).require(torch.device("cpu"))
    slab = Slab("fp8")
    slab._quantiser = Quantiser("fp8", lacking, 448)
    with pytest.raises(OptionError, match="fp8: expected a device"):
        slab.open([KVShape(1, 2, 2, torch.float32)], 2, 9, torch.device("cpu"))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kv", "dtype", "batch"),
    [("slab", "int8", 1), ("pool", "fp8", 3), ("paged,block=3", "int8", 8), ("paged,block=3,share=on", "fp8", 3)],
)
def test_tokens_are_those_of_a_reference_with_the_same_quantiser(kv: str, dtype: str, batch: int) -> None:
    """The fakes tell every number that is read: rows of all lengths, drafted and not, have the reference's tokens."""
    pipe = pipeline(f"{kv},{BOTH.format(dtype)}", batch_size=batch)
    harness.check(pipe, ASKED)
    assert pipe.report.num_accepted_draft_tokens
    harness.check(pipeline(f"{kv},dtype={dtype}", draft=None, batch_size=batch), ASKED)
    exact = [harness.expected(TARGET, one)[0] for one in ASKED]
    assert [one.token_ids for one in harness.decode(pipe, ASKED)] != exact, "the quantiser must change something here"


@pytest.mark.wide
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_real_models_are_exact(name: str) -> None:
    """Layers with heads of their own and sliding windows: greedy tokens are the reference's, checked in every round."""
    target = zoo.build(name)
    pipe = pipeline("slab,dtype=int8,draft_dtype=fp8", target, zoo.good_draft(target), check=True)
    prompts = harness.random_prompts([5, 14, 1, 9], zoo.VOCABULARY)
    harness.check(pipe, harness.requests(prompts, [9, 4, 12, 7], {zoo.EOS}))


def test_checks_compare_with_a_forward_that_rounds_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under check=True the target's choices are compared with those of a forward whose keys are rounded, too."""
    monkeypatch.setattr(cache_checks, "rounding", lambda kv: None, raising=False)
    monkeypatch.setattr("specframe_testing.instrumentation.checked_run.rounding", lambda kv: None)
    with pytest.raises(Exception, match="short of the best logit, computed without a cache"):
        harness.decode(pipeline("slab,dtype=int8", draft=None, check=True), ASKED)


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("kv", ["slab", "paged,block=3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_are_exact_on_cuda(dtype: str, kv: str, graphs: str) -> None:
    """On a CUDA device a combination gives the tokens of a reference with the same quantiser, too."""
    target = fakes.fake_target().cuda()
    pipe = pipeline(f"{kv},{BOTH.format(dtype)}", target, fakes.fake_draft(target).cuda(), graphs=graphs)
    harness.check(pipe, ASKED)


def test_a_rounded_target_is_marked() -> None:
    """The combination is lossless only where the target's keys and values are kept as they are."""
    marked = {kv: pipeline(kv).composition.lossless for kv in ("slab,dtype=int8", "paged,dtype=fp8", "pool")}
    assert marked == {"slab,dtype=int8": False, "paged,dtype=fp8": False, "pool": True}


def test_what_a_later_prompt_has_in_common_is_kept_in_bytes() -> None:
    """Blocks are found again by the next run, the draft's too, and tokens stay the reference's."""
    pipe, common = pipeline("paged,block=4,share=on,dtype=int8,draft_dtype=fp8"), PROMPTS[4][:14]
    harness.check(pipe, harness.requests([[*common, 5, 6]], 6))
    harness.check(pipe, harness.requests([[*common, 7]], 6))
    assert pipe.report.prefix_hit_tokens == 12


@pytest.mark.wide
@pytest.mark.parametrize("options", [{}, {"check": True}], ids=str)
def test_states_are_kept_as_they_are(options: dict[str, Any]) -> None:
    """Beside layers with keys in 8 bits those with a state are exact: tokens are those of plain decoding with the same option."""
    with states.known():
        target = states.fake_state_target()
        draft = fakes.fake_draft(target)
        plain = harness.decode(pipeline("slab,dtype=int8", target, None, batch_size=1), ASKED)
        found = harness.decode(pipeline(f"pool,{BOTH.format('int8')}", target, draft, **options), ASKED)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]


@pytest.mark.wide
def test_a_reference_that_cannot_round_is_refused() -> None:
    """A model that makes its cache itself has no reference in 8 bits."""
    with (
        states.known(),
        pytest.raises(ModelError, match="keys and values in 8 bits: expected a model whose layers all"),
    ):
        OwnCache(states.fake_state_target(), rounded=QUANTISERS["int8"].round)


def opened(kv: str) -> tuple[Any, Any, Any]:
    """Return the stores of a run: the target's, a draft's, and that of a drafter that asks for a slab."""
    target = zoo.build("qwen3")
    run = harness.open_run(target, 2, 30, kv=kv)
    draft = ModelRunner(harness.placed(target), "draft")
    return run.target.store, run.open_cache(draft).store, run.open_cache(draft, kv=Slab()).store


@pytest.mark.wide(but=["slab,dtype=fp8,draft_dtype=int8-expected3"])
@pytest.mark.parametrize(
    ("kv", "expected"),
    [
        ("slab", [None, None, None]),
        ("pool,dtype=int8", ["int8", None, None]),
        ("paged,draft_dtype=fp8", [None, "fp8", "fp8"]),
        ("slab,dtype=fp8,draft_dtype=int8", ["fp8", "int8", "int8"]),
    ],
)
def test_whose_cache_is_in_which_dtype(kv: str, expected: list[str | None]) -> None:
    """One option is the target's, the other all drafts', those of drafters with slabs of their own included."""
    stores = opened(kv)
    assert [one._quantiser.name if isinstance(one, QuantisedStore) else None for one in stores] == expected


@pytest.mark.wide
def test_a_budget_of_bytes_is_one_of_packed_heads() -> None:
    """Of ``memory=`` as many blocks are made as bytes suffice for."""
    shapes = [KVShape(2, 16, 16, torch.float32)]
    given = "paged,block=4,memory=2KB"
    for kv, slot in ((given, 256), (f"{given},dtype=int8", 72)):
        store: Any = strategy(registry(), "KV backend", kv).open(shapes, 2, 99, torch.device("cpu"))
        blocks = getattr(store, "packed", store).blocks
        assert blocks.most == (2000 // slot - 1) // 4
