"""With bitwise a token's logits are the same to the bit, whatever else is decoded, and without it they are not.

That plain forwards differ is shown by :class:`ByShape`, since kernels of this machine may happen to agree.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import architectures
import pytest
import torch
from generating import padded
from specframe_bitwise.bitwise_check import require_bitwise
from specframe_bitwise.mode import bitwise
from specframe_std.drafters.draft_model import ModelDrafter
from specframe_testing import harness, zoo
from specframe_testing.logits import KeptLogits, Logits
from to_the_bit import CPU, DTYPES, by_reference, same
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

import specframe
from specframe.devices.held import Held
from specframe.errors import CompositionError, ModelError, OptionError
from specframe.reference import reference_decode

LENGTHS = (5, 20, 1, 17, 9)
NEW = 3


class ByShape(TorchDispatchMode):
    """Kernels that add the terms of a sum in an order that depends on the number of rows, as kernels of GPUs do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Turn the terms of a product round by as many as there are rows."""
        if func is torch.ops.aten.linear.default:
            x, weight, *bias = args
            turn = x[..., 0].numel()
            args = (x.roll(turn, -1), weight.roll(turn, -1), *bias)
        if func is torch.ops.aten.mean.dim and args[0].is_floating_point():
            args = (args[0].roll(args[0][..., 0].numel(), -1), *args[1:])
        return func(*args, **(kwargs or {}))


class Way(NamedTuple):
    """How prompts are decoded."""

    batch: int
    draft: int
    align: str = "ragged"
    beside: int = 0
    """Tokens of a further prompt, which makes the slab longer; 0: there is none."""

    def __str__(self) -> str:
        return f"b{self.batch}-k{self.draft}-{self.align}-{self.beside}"


@functools.cache
def models(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target in a precision, and a draft model that often chooses the same."""
    target = zoo.build(name)
    return target.to(dtype), zoo.good_draft(target).to(dtype)


def prompts(count: int = len(LENGTHS)) -> list[list[int]]:
    """Return ragged prompts."""
    return harness.random_prompts(itertools.islice(itertools.cycle(LENGTHS), count), zoo.VOCABULARY, seed=1)


def decoded(name: str, dtype: torch.dtype, way: Way, **options: Any) -> Logits:
    """Return the logits of every token, by prompt and length."""
    target, draft = models(name, dtype)
    kept = KeptLogits()
    options = {"accept": kept, "batch_size": way.batch, "align": way.align, "draft_length": way.draft or 1} | options
    pipe = harness.pipeline(target, draft if way.draft else None, **options)
    beside = harness.random_prompts([way.beside] if way.beside else [], zoo.VOCABULARY)
    harness.decode(pipe, harness.requests([*prompts(max(len(LENGTHS), way.batch)), *beside], NEW))
    return kept.logits


@functools.cache
def alone(name: str, dtype: torch.dtype) -> Logits:
    """Return the logits of each prompt's continuation by the reference."""
    return by_reference(models(name, dtype)[0], prompts(), NEW)


@pytest.mark.wide
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_to_the_bit_on_cuda(dtype: torch.dtype) -> None:
    """A GPU's logits are the same alone and without drafts as in a batch with drafts, of recorded forwards too."""
    target = zoo.build("qwen3").to("cuda", dtype)
    found: list[Logits] = []
    for draft, options in ((None, {"batch_size": 1}), (zoo.good_draft(target), {"batch_size": 3, "draft_length": 4})):
        kept = KeptLogits()
        pipe = harness.pipeline(target, draft, accept=kept, bitwise=True, **options)
        for _ in range(2):  # shapes that come again are recorded
            harness.decode(pipe, harness.requests(prompts(), 12))
        found.append(kept.logits)
    assert len(found[0]) == 12 * len(LENGTHS)
    assert same(found[1], found[0])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "dtype", "way"),
    [
        ("llama", torch.float32, Way(3, 5)),
        ("qwen3-moe", torch.bfloat16, Way(3, 2, "eqspec")),
        ("gpt2", torch.float32, Way(8, 0, "exspec", 100)),
        ("gemma3", torch.bfloat16, Way(32, 5, "exspec", 100)),
        ("mistral", torch.float32, Way(8, 2, "eqspec", 100)),
    ],
    ids=str,
)
def test_same_to_the_bit(name: str, dtype: torch.dtype, way: Way) -> None:
    """Logits of common prefixes are the reference's to the bit, at any batch, draft, alignment and length of the slab."""
    assert same(decoded(name, dtype, way, bitwise=True), alone(name, dtype))


TREES: dict[str, dict[str, Any]] = {
    "chain": {},
    "static": {"branch": "3/2/1"},
    "dynamic": {"tree": "dynamic", "nodes": 8},
}


@pytest.mark.wide(but=["gemma3-exspec-dynamic"])
@pytest.mark.parametrize(
    ("name", "align", "tree"),
    [("mistral", "ragged", "static"), ("llama", "eqspec", "chain"), ("gemma3", "exspec", "dynamic")],
)
def test_blocks_of_keys_begin_at_a_rows_first_token(name: str, align: str, tree: str) -> None:
    """A row whose slots straddle two blocks of keys, because of padding before it, or of a tree, is the same to the bit."""
    target = zoo.build(name, **LONG[name])
    drafter, kept = ModelDrafter(**TREES[tree]), KeptLogits()
    asked = harness.random_prompts((140, 40, 124), zoo.VOCABULARY, seed=1)
    options = {"drafter": drafter, "accept": kept, "align": align, "batch_size": 4, "draft_length": 3}
    pipe = harness.pipeline(target, zoo.good_draft(target), bitwise=True, **options)
    harness.decode(pipe, harness.requests(asked, 2 * NEW))
    assert same(kept.logits, by_reference(target, asked, NEW))


LONG: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 256},
    "mistral": {"max_position_embeddings": 256, "sliding_window": 100},
    "gemma3": {"max_position_embeddings": 256, "sliding_window": 130},
}
"""Models whose rows, and windows, are as long as a block of keys."""


@pytest.mark.wide
def test_differs_without() -> None:
    """With kernels that depend on the number of rows logits differ without bitwise, and are equal with it."""
    with ByShape():
        wanted = alone.__wrapped__("llama", torch.float32)
        assert same(decoded("llama", torch.float32, Way(3, 2), bitwise=True), wanted)
        assert not same(decoded("llama", torch.float32, Way(3, 2)), wanted)


FROZEN = json.loads(Path(architectures.__file__).with_name("architectures.json").read_text())
SAMPLE = ("diffllama", "gemma2", "minicpm3", "phimoe")
ALL = os.environ.get("SPECFRAME_ALL_ARCHITECTURES") == "1"


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name in (FROZEN["exact"] if ALL else SAMPLE) if name in architectures.NAMES])
def test_an_architecture_is_the_same_to_the_bit_or_refused(name: str) -> None:
    """Every exact architecture has the reference's logits to the bit in bfloat16, or is refused in a sentence."""
    target = architectures.build(name).bfloat16()
    kept = KeptLogits()

    def decode() -> Logits:
        pipe = harness.pipeline(target, target, accept=kept, batch_size=3, draft_length=2, bitwise=True)
        harness.decode(pipe, harness.requests(prompts(), NEW))
        return by_reference(target, prompts(), NEW)

    if name in FROZEN["not_bitwise"] and not (name == "gemma2" and architectures.RELEASE < (5, 18)):
        with pytest.raises(ModelError, match="bitwise"):
            decode()
    else:
        wanted = decode()
        assert same(kept.logits, wanted)


def test_memory_can_be_bounded() -> None:
    """Memory profiling before an engine decodes counts the operators of the rules, and are not computed by these themselves."""
    target, asked = zoo.build("llama", num_hidden_layers=1), prompts(2)
    pipe = harness.pipeline(target, None, memory="100MiB", batch_size=2, bitwise=True)
    results = harness.decode(pipe, harness.requests(asked, NEW))
    with bitwise(CPU):
        assert [one.token_ids for one in results] == [reference_decode(target, prompt, NEW) for prompt in asked]


def test_products_on_cuda_are_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA, and there alone, the settings for products are changed inside the context and put back after it."""
    told: list[str] = []

    def change() -> Callable[[], None]:
        told.append("changed")
        return lambda: told.append("put back")

    monkeypatch.setattr("specframe.devices.cuda.PRECISE", Held(change))
    with bitwise(CPU), bitwise(torch.device("cuda")):
        assert told == ["changed"]
    assert told == ["changed", "put back"]


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "exp": torch.exp,
    "gelu": torch.nn.functional.gelu,
    "pow": lambda x: x.abs().pow(2.5),
    "softplus": torch.nn.functional.softplus,
    "in place": lambda x: x.clone().sigmoid_(),
    "with a factor": lambda x: torch.add(x, x * 1.3, alpha=0.7),
    "two tensors": lambda x: torch.atan2(x, x[:1]),
    "strided": lambda x: torch.nn.functional.silu(x[:, ::2]),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.float().unflatten(1, (-1, 2))) * (0.3 + 0.7j)),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "mean of a part": lambda x: x.unflatten(1, (2, -1)).mean(1),
    "sum": lambda x: x.sum(dim=1),
    "sum of two": lambda x: x.unflatten(1, (2, -1)).sum((1, 2)),
    "norm": lambda x: x.norm(dim=-1),
    "variance": lambda x: x.var(1, keepdim=True),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (x.shape[1],)),
    "rms norm": lambda x: torch.nn.functional.rms_norm(x, (x.shape[1],)),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: torch.nn.functional.log_softmax(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "running sum": lambda x: x.cumsum(-1),
    "topk": lambda x: x.topk(3).values,
    "sort": lambda x: x.sort(dim=-1, descending=True).values,
    "linear": lambda x: torch.nn.functional.linear(x, WEIGHT, WEIGHT[:, 0]),
    "matmul": lambda x: x @ WEIGHT.mT,
    "addmm": lambda x: torch.addmm(WEIGHT[:, 0], x, WEIGHT.mT.contiguous()),
    "experts": lambda x: by_experts(x),
}
"""Functions of the rows of a matrix."""


def by_experts(x: torch.Tensor) -> torch.Tensor:
    """Return the products of rows with one of two matrices, by the sign of their first number."""
    expert = (x[:, 0] > 0).long()
    order, ends = expert.argsort(stable=True), expert.bincount(minlength=2).cumsum(0).int()
    product = torch.nn.functional.grouped_mm(x[order], torch.stack([WEIGHT, -2 * WEIGHT]).mT, offs=ends)
    return product[order.argsort()]


WEIGHT = torch.randn(9, 36, generator=torch.Generator().manual_seed(0))


@pytest.mark.wide
@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_do_not_depend_on_their_number(name: str, inference: bool) -> None:
    """A function is the plain one up to rounding, and a row the same to the bit in any number of rows, at any place."""
    function = FUNCTIONS[name]
    x = torch.randn(70, 36, generator=torch.Generator().manual_seed(1))
    if name == "two tensors":
        x[:] = x[:1]
    with torch.inference_mode(inference), bitwise(CPU):
        whole = function(x)
        parts = [function(x[a:b]) for a, b in ((0, 1), (1, 3), (3, 20), (20, 70))]
    assert torch.equal(torch.cat(parts), whole)
    torch.testing.assert_close(whole, function(x))


@pytest.mark.wide
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_the_usual_one(causal: bool) -> None:
    """Attention in blocks is torch's up to rounding, with shared heads, with masks of both kinds, and over any extent."""
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
    query, key, value = draw(2, 6, 9, 5), draw(2, 3, 300, 5), draw(2, 3, 300, 7)
    seen = draw(2, 1, 9, 300) > 0
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, query, enable_gqa=True)
    for mask in (None, seen, torch.zeros(2, 1, 9, 300).masked_fill(~seen, torch.finfo(torch.float32).min)):
        options = {"is_causal": causal} if mask is None else {"attn_mask": mask}
        with torch.inference_mode(), bitwise(CPU):
            found = attend(key, value, **options)
        torch.testing.assert_close(found, attend(key, value, **options))
    with torch.inference_mode(), bitwise(CPU):
        wider = [torch.nn.functional.pad(x, (0, 0, 0, 400), value=5.0) for x in (key, value)]
        assert torch.equal(
            attend(*wider, attn_mask=torch.nn.functional.pad(seen, (0, 400))), attend(key, value, attn_mask=seen)
        )


@pytest.mark.wide
def test_a_model_is_refused_by_the_module_at_fault() -> None:
    """A model whose products cannot be had in one shape is refused in one sentence, which names the module and the operator."""
    model = zoo.build("qwen3-moe")
    require_bitwise(model, "the target")
    batched = zoo.build("qwen3-moe")
    batched.set_experts_implementation("batched_mm")
    expected = r"the target \(Qwen3MoeForCausalLM\) cannot be decoded with bitwise: model\.layers\.0\.mlp\.experts calls 'bmm', "
    for _ in range(2):
        with pytest.raises(ModelError, match=expected):
            harness.pipeline(batched, None, bitwise=True)
    with pytest.raises(ModelError, match=r"the draft .*attn.attention calls 'matmul'"):
        harness.pipeline(zoo.build("gpt2"), architectures.build("gpt_neo"), bitwise=True)


@pytest.mark.wide
def test_products_whose_rows_depend_on_their_place_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that gives the last row of a tile other values is refused before anything is decoded."""
    plain = torch.ops.aten.linear.default

    class Uneven(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = func(*args, **(kwargs or {}))
            if func is plain:
                output[-1] += 1e-3
            return output

    with Uneven(), pytest.raises(ModelError, match=r"mlp.gate_proj|self_attn.q_proj has products whose rows depend on"):
        require_bitwise(zoo.build("llama"), "the target")


@pytest.mark.wide
@pytest.mark.parametrize(("option", "value"), [("layers", "compiled"), ("attention", "packed"), ("attention", "flex")])
def test_kernels_that_go_by_the_shape_are_refused(option: str, value: str) -> None:
    """Compiled layers, and attention by kernels of their own, cannot be had with bitwise."""
    wanted = (
        f"bitwise: (expected no {option} '{value}'|{option} backend '{value}' has kernels that depend on the shape)"
    )
    with pytest.raises((OptionError, CompositionError), match=wanted):
        harness.pipeline(models("llama", torch.float32)[0], None, bitwise=True, **{option: value})


def test_a_models_own_forward_gives_the_bits_of_its_rollouts() -> None:
    """In bfloat16 logits of sampled tokens are those of a forward of the model itself; without ``bitwise`` they are not."""
    model = zoo.build("qwen3").to(torch.bfloat16)
    batch = padded(harness.random_prompts([6, 3, 11], zoo.VOCABULARY))
    asked = {"do_sample": True, "eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
    with specframe.accelerate(model, zoo.good_draft(model), bitwise=True) as handle:
        drawn = model.generate(**batch, max_new_tokens=9, **asked)
        assert handle.report.num_draft_tokens
    mask_BS = torch.cat([batch["attention_mask"], torch.ones(3, 9, dtype=torch.long)], dim=1)
    inputs = {"attention_mask": mask_BS, "position_ids": (mask_BS.cumsum(-1) - 1).clamp(min=0)}
    with torch.inference_mode(), bitwise(CPU):
        own_BSV = model(drawn.sequences, **inputs).logits.float()
    assert torch.equal(torch.stack(drawn.logits, dim=1), own_BSV[:, -9 - 1 : -1])
    with torch.inference_mode():
        other_BSV = model(drawn.sequences, **inputs).logits.float()
    assert not torch.equal(other_BSV, own_BSV)
