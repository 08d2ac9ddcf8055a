"""With bitwise logits are the same to the bit in models with states, whatever is rejected and however tokens are fed."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import architectures
import pytest
import torch
from specframe_bitwise.bitwise_check import require_bitwise
from specframe_bitwise.mode import bitwise
from specframe_std.states import mixers, recurrence
from specframe_testing import fakes, harness, standard, states, zoo
from specframe_testing.conformance.decoding_suite import RIGHT
from specframe_testing.logits import KeptLogits, Logits
from test_state_kinds import KINDS as ALL_KINDS
from test_state_kinds import WITHOUT_EXPERTS
from to_the_bit import CPU, DTYPES, by_reference, same
from transformers import PreTrainedModel

from specframe.errors import ModelError
from specframe.plugins.registry import add_entry, registry
from specframe.reference import reference_decode

KINDS = {kind: name for kind, name in ALL_KINDS.items() if kind != "dynamic-convolution"}
"""A model of each kind that offers it."""

LENGTHS, NEW = (5, 26, 1, 9, 3, 2, 7, 4), 5
"""Lengths of prompts, one of them beyond the tokens whose convolution is left to torch's without bitwise; new tokens of each."""

FEW = 3
"""Prompts of a run whose batch has no room for more."""

FURTHER = (
    *("mamba2", "falcon_h1", "bamba", "granitemoehybrid", "zamba2", "olmo_hybrid", "bailing_hybrid", "qwen3_next"),
    *("lfm2_moe", "qwen3_5_moe_text", "mamba", "falcon_mamba", "inkling_text"),
)
"""Further models with states that can be decoded with bitwise."""


def prompts(count: int = FEW) -> list[list[int]]:
    """Return ``count`` ragged prompts."""
    return harness.random_prompts(LENGTHS[:count], zoo.VOCABULARY, seed=1)


@functools.cache
def target(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model with states in a precision."""
    return architectures.build(name, **WITHOUT_EXPERTS.get(name, {})).to(dtype)


@functools.cache
def alone(name: str, dtype: torch.dtype, count: int = FEW) -> Logits:
    """Return the logits of the reference with bitwise."""
    return by_reference(target(name, dtype), prompts(count), NEW)


def script(name: str, dtype: torch.dtype, count: int = FEW) -> list[list[int]]:
    """Return the tokens that follow each prompt, and some that may."""
    found = alone(name, dtype, count)
    return [
        [*(int(found[index, length + place].argmax()) for place in range(NEW)), *range(16)]
        for index, length in enumerate(LENGTHS[:count])
    ]


def require_equal_to_the_reference(
    name: str, dtype: torch.dtype, tree: bool = False, batch_size: int = FEW, **options: Any
) -> None:
    """Fail unless every token has the reference's logits to the bit, with drafts of which more or fewer tokens are right."""
    model, kept, count = target(name, dtype), KeptLogits(), max(FEW, batch_size)
    kind = fakes.ScriptedTree if tree else fakes.ScriptedDrafter
    drafter = kind(script(name, dtype, count), dict(enumerate((2, 0, 3, 1) * 2)) if tree else RIGHT["by-turns"])
    options = {"accept": kept, "batch_size": batch_size, "draft_length": 3, "bitwise": True} | options
    harness.decode(harness.pipeline(model, drafter, **options), harness.requests(prompts(count), NEW))
    assert same(kept.logits, alone(name, dtype, count))


WAYS: dict[str, dict[str, Any]] = {
    **{
        f"{align}-b{size}-k{depth}": {"align": align, "batch_size": size, "draft_length": depth}
        for (align, size), depth in zip(
            itertools.product(("ragged", "eqspec"), (1, 3, 8)), (1, 5, 3, 4, 2, 5), strict=True
        )
    },
    "pieces": {"schedule": "continuous,piece=4", "batch_size": 2, "draft_length": 2},
    "tree-ragged": {"tree": True, "batch_size": 8},
    "tree-eqspec": {"tree": True, "align": "eqspec"},
}
"""How prompts are decoded."""

SAMPLE = {
    ("qwen3_5_text", torch.bfloat16, "ragged-b3-k5"),
    ("qwen3_5_text", torch.float32, "tree-eqspec"),
    ("nemotron_h", torch.float32, "eqspec-b8-k5"),
    ("lfm2", torch.bfloat16, "pieces"),
    ("jamba", torch.bfloat16, "tree-ragged"),
    ("inkling_text", torch.bfloat16, "tree-eqspec"),
}
"""The cells that every run of the tests tries."""


@pytest.mark.wide(but=["qwen3_5_text-torch.float32-tree-eqspec"])
@pytest.mark.parametrize(
    ("name", "dtype", "way"),
    [
        pytest.param(*cell, marks=[] if cell in SAMPLE else [pytest.mark.slow])
        for cell in itertools.product((*KINDS.values(), *filter(architectures.known, FURTHER)), DTYPES, WAYS)
    ],
    ids=str,
)
def test_same_to_the_bit(name: str, dtype: torch.dtype, way: str) -> None:
    """Logits are the reference's at any batch, draft, tree and alignment, however prompts are read, and whatever is rejected."""
    require_equal_to_the_reference(name, dtype, **WAYS[way])


@pytest.mark.wide
@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_the_reference_is_the_models_own(name: str) -> None:
    """One token after the other gives what a model's own scan gives, up to rounding."""
    model, asked = target(name, torch.float32), prompts()[:1]
    with contextlib.ExitStack() as stack:
        steps: list[torch.Tensor] = []
        hook = model.register_forward_hook(lambda module, arguments, output: steps.append(output.logits[0]))
        stack.callback(hook.remove)
        reference_decode(model, asked[0], NEW)
        with bitwise(CPU):
            reference_decode(model, asked[0], NEW)
    for usual, found in zip(steps[:NEW], steps[NEW:], strict=True):
        torch.testing.assert_close(found, usual, rtol=1e-3, atol=1e-3)


@pytest.mark.wide
def test_rows_that_begin_after_a_kept_state_are_the_same_to_the_bit() -> None:
    """A prompt that begins as another goes on from the state that was kept of that, with padding before its first token."""
    model, (long, *_) = target("nemotron_h", torch.bfloat16), harness.random_prompts([11], zoo.VOCABULARY, seed=2)
    asked, kept = [[*long, 5], [*long[:7], 5, 6], long[:5], [9]], KeptLogits()
    pipe = harness.pipeline(model, "prompt-lookup", kv=standard.KEEPING, accept=kept, batch_size=4, bitwise=True)
    for _ in range(2):
        kept.logits.clear()
        harness.decode(pipe, harness.requests(asked, 3))
    assert pipe.report.prefix_hit_tokens
    assert same(kept.logits, by_reference(model, asked, 3))


@pytest.mark.wide
@pytest.mark.parametrize("tree", [False, True])
def test_what_is_not_real_leaves_a_state_as_it_is(tree: bool) -> None:
    """A rejected token changes no bit of a state, not even where it is no number, and zeros keep their sign."""
    before = torch.tensor([[0.1, -0.0, 3e38], [0.2, 1e-45, -0.0]])
    inputs = (torch.tensor([[torch.nan, 0.5], [0.5, torch.inf]])[..., None],)
    real_BT, parents_BT = torch.tensor([[False, True], [True, False]]), torch.tensor([[-1, 0]]) if tree else None
    first, second = recurrence.one_by_one(lambda state, given: state + given, before, inputs, real_BT, parents_BT)
    for found, wanted in ((first[0], before[0]), (second[1], first[1])):
        assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    assert torch.equal(second[0], before[0] + 0.5)


@contextlib.contextmanager
def only(kind: Any) -> Iterator[None]:
    """Have one kind of state registered inside the block."""
    known = registry().entries["state kind"]
    before = dict(known)
    known.clear()
    add_entry(registry(), "their-dist", "state kind", "theirs", kind)
    try:
        yield
    finally:
        known.clear()
        known.update(before)


class Plain:
    """A kind that says nothing of bitwise equality."""

    def __init__(self) -> None:
        kind = states.FakeHash()
        self.layers, self.shape, self.forward, self.advance = kind.layers, kind.shape, kind.forward, kind.advance


@pytest.mark.wide
def test_a_kind_that_does_not_allow_it_is_refused() -> None:
    """The error of a kind that does not offer it has its name and the number of its layer."""
    expected = (
        r"^the target \(FakeStateModel\) cannot be decoded with bitwise: layer 0 keeps a state of state kind 'theirs' of "
        r"their-dist, which does not take in one token after the other; expected a model made of linear layers and sdpa, and of "
        r"states whose kind offers 'bitwise'$"
    )
    model = states.fake_state_target()
    with only(Plain), pytest.raises(ModelError, match=expected):
        harness.pipeline(model, None, bitwise=True)
    with only(Plain):
        harness.decode(harness.pipeline(model, None), harness.requests([[5, 6]], 3))


@pytest.mark.wide
def test_a_kind_that_offers_it_has_what_goes_with_the_word() -> None:
    """A kind that offers it without a second form is refused when it is first used."""
    kind = type("Half", (Plain,), {"offers": frozenset({"bitwise"})})
    with only(kind), pytest.raises(Exception, match=r"state kind 'theirs' .* offers 'bitwise', to have by_token"):
        harness.pipeline(states.fake_state_target(), None, bitwise=True)


@pytest.mark.wide
def test_a_model_is_tried_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that takes another way for more than four tokens is found before anything is decoded."""
    scanned = recurrence.scanned

    def by_width(steps: Any, held: torch.Tensor, real_BT: torch.Tensor, parents_BT: Any) -> Any:
        outputs, after = scanned(steps, held, real_BT, parents_BT)
        return (outputs * (1 + 1e-5), after) if real_BT.shape[1] > 4 else (outputs, after)

    monkeypatch.setattr(mixers, "scanned", by_width)
    with pytest.raises(ModelError, match="its logits are others in pieces; expected"):
        require_bitwise(architectures.build("qwen3_5_text"), "the target")


@pytest.mark.wide(but=["jamba"])
@pytest.mark.parametrize("name", ["qwen3_5_text", "nemotron_h", "jamba"])
def test_a_model_is_tried_with_rejected_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that rejected tokens decay by a ten-thousandth is found before anything is decoded."""
    one_by_one = recurrence.one_by_one

    def decaying(take: Any, before: torch.Tensor, inputs: Any, stands_BT: torch.Tensor) -> Iterator[torch.Tensor]:
        lost = torch.where(stands_BT.all(1), 1.0, 0.9999).view(-1, *(1,) * (before.ndim - 1))
        return (one * lost for one in one_by_one(take, before, inputs, stands_BT))

    monkeypatch.setattr(mixers, "one_by_one", decaying)
    with pytest.raises(ModelError, match="its states are others after tokens that were rejected; expected"):
        require_bitwise(architectures.build(name), "the target")
