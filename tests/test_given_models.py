"""Loaded models as they are handed over: inside a wrapper, or with a short context."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch
from specframe_testing import fakes, harness, zoo

from specframe import Pipeline
from specframe.errors import ModelError, SpecframeWarning

TARGET = zoo.build("llama")
DRAFT = zoo.good_draft(TARGET)
PROMPTS = harness.random_prompts([3, 6], zoo.VOCABULARY)


class Wrapper(torch.nn.Module):
    """What PEFT puts around a model, as far as a pipeline looks at it."""

    def __init__(self, model: torch.nn.Module, kind: str, before: bool) -> None:
        super().__init__()
        self.base_model = model
        self.peft_config = {"default": types.SimpleNamespace(is_prompt_learning=before, peft_type=kind)}

    @property
    def active_peft_config(self) -> Any:
        return self.peft_config["default"]

    def get_base_model(self) -> torch.nn.Module:
        return self.base_model


WRAPPED = {
    "lora": lambda model: Wrapper(model, "LORA", False),
    "compiled lora": lambda model: torch.compile(Wrapper(model, "LORA", False)),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_model_is_decoded_as_the_model_inside(name: str) -> None:
    """What torch.compile returns and a PEFT model with adapters in its layers give the tokens of the model inside."""
    wrap = WRAPPED[name]
    expected = [result.token_ids for result in Pipeline(TARGET, DRAFT, draft_length=3).generate(PROMPTS, 8)]
    pipe = Pipeline(wrap(TARGET), wrap(DRAFT), draft_length=3)
    assert [result.token_ids for result in pipe.generate(PROMPTS, 8)] == expected
    assert (pipe.target_model, pipe.draft_model) == (TARGET, DRAFT)


@pytest.mark.wide(but=["target"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_learned_prefix_is_refused(role: str) -> None:
    """A PEFT model whose prefix or prompt is no part of the tokens is refused with its type."""
    learned = Wrapper(TARGET, "PREFIX_TUNING", True)
    with pytest.raises(ModelError, match=rf"the {role} is a Wrapper of type PREFIX_TUNING.*expected adapters"):
        Pipeline(*((learned, DRAFT) if role == "target" else (TARGET, learned)))


@pytest.mark.wide
def test_a_draft_whose_context_is_too_short_is_told() -> None:
    """Where sequences pass the draft model's context one warning names both numbers, and the tokens are the target's own."""
    target = fakes.fake_target(context=256)
    draft = fakes.FakeModel(fakes.FakeConfig(61, 32, eos_token_id=0)).eval()
    pipe = harness.pipeline(target, draft, draft_length=3)
    asked = harness.requests([[5, 6], [7, 8, 9]], 60)
    with pytest.warns(SpecframeWarning, match="the draft model's context of 32 tokens is shorter than .* up to 63"):
        harness.check(pipe, asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harness.check(pipe, harness.requests([[5, 6], [7, 8, 9]], 20))
