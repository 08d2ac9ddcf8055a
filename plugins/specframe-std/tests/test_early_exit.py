"""Drafts of the target's first layers on the target's own cache: lossless, and no token is kept or read twice."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from specframe_std.drafters.early_exit import EarlyExit
from specframe_testing import fakes, harness, zoo
from transformers import PreTrainedModel

from specframe.contracts.requests import Request
from specframe.errors import CompositionError, ModelError, OptionError

LENGTHS, NEW = (5, 1, 17, 9, 3, 8), 10
ALIGNMENTS = ("ragged", "eqspec", "exspec", "rollback")
ARCHITECTURES = ("qwen3", "gemma3", "mistral", "gpt2", "opt", "qwen3-moe")
ADDS = ("o_proj", "down_proj", "c_proj", "out_proj", "fc2")
"""Parts of names of the modules by which layers add to the hidden states."""


@functools.cache
def target(name: str) -> PreTrainedModel:
    """Return a model of two layers, of which the second adds little: the first often foresees what both say."""
    model = zoo.build(name)
    with torch.no_grad():
        for weight in last_layer(model):
            weight.mul_(0.3)
    return model


@functools.cache
def idle(name: str) -> PreTrainedModel:
    """Return a model whose second layer adds nothing: its first one foresees all."""
    model = zoo.build(name)
    with torch.no_grad():
        for weight in last_layer(model):
            weight.zero_()
    return model


def last_layer(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """Return the weights by which the second layer adds to the hidden states."""
    found = [one for name, one in model.named_parameters() if ".1." in name and set(ADDS) & set(name.split("."))]
    assert found
    return found


def asked(new: int = NEW) -> list[Request]:
    """Return ragged requests with eos ids, which are pad ids, inside prompts."""
    prompts = harness.random_prompts(LENGTHS, zoo.VOCABULARY, seed=1)
    prompts[2][3] = prompts[0][-1] = prompts[4][0] = zoo.EOS
    return harness.requests(prompts, new, {zoo.EOS, 3})


def piped(model: PreTrainedModel, **options: Any) -> Any:
    return harness.pipeline(
        model, None, **{"drafter": "early-exit,layers=1", "batch_size": 3, "draft_length": 3, **options}
    )


@pytest.mark.wide
@pytest.mark.parametrize(("place", "name"), [*enumerate(ARCHITECTURES)])
def test_equals_the_reference(place: int, name: str) -> None:
    """Every architecture, under two alignments each and with all checks on, gives the reference decoder's tokens."""
    for align in (ALIGNMENTS[place % 4], ALIGNMENTS[(place + 1) % 4]):
        pipe = piped(target(name), align=align, check=True, batch_size=(1, 3, 8)[place % 3])
        harness.check(pipe, asked())
        assert pipe.report.num_draft_tokens > 0


@pytest.mark.wide
@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_the_cache_is_never_wrong(name: str, align: str) -> None:
    """Where the layers left out add nothing, every draft is accepted, however rows are moved and left out."""
    pipe = piped(idle(name), align=align, schedule="same-length,window=5" if align == "exspec" else "continuous")
    harness.check(pipe, asked())
    assert pipe.report.num_draft_tokens == pipe.report.num_accepted_draft_tokens > 0


@pytest.mark.wide
def test_what_cannot_be_is_refused() -> None:
    """Too many layers, a model without a list of layers, and an alignment that cannot share: one sentence each."""
    with pytest.raises(ModelError, match=r"drafter 'early-exit': expected layers below the 2 of the target .*, got 2"):
        harness.check(piped(target("qwen3"), drafter="early-exit,layers=2"), asked())
    with pytest.raises(ModelError, match=r"does not keep its layers in one list"):
        harness.check(piped(fakes.fake_target()), asked())
    with pytest.raises(OptionError, match=r"layers: expected .* at least 1.*, got 0"):
        EarlyExit(0)
    with pytest.raises(
        CompositionError, match=r"needs 'share' to be offered, and alignment 'masking' does not offer it"
    ):
        piped(target("qwen3"), align="masking")
