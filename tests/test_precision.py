"""A model that quantises its activations is held to its own precision, and one that quantises weights alone to its dtype's."""

from __future__ import annotations

import pytest
import torch
from specframe_testing import harness, zoo
from specframe_testing.instrumentation.ties import Scales, roundings
from transformers import PreTrainedModel

from specframe.models.precision import STEP, eps, quantised_weights

FINE = torch.finfo(torch.float32).eps
PROMPTS = harness.random_prompts((5, 9, 3), zoo.VOCABULARY, seed=1)


class Int8Linear(torch.nn.Module):
    """A linear layer with weights of eight bits; ``dynamic``: its inputs are rounded to eight bits of the token's largest."""

    def __init__(self, linear: torch.nn.Linear, dynamic: bool) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self._dynamic = dynamic

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product, in the precision of the input."""
        if self._dynamic:
            step = x.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
            x = (x / step).round() * step
        return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.scale)


def int8(model: PreTrainedModel, dynamic: bool) -> PreTrainedModel:
    """Return a model whose linear layers, the head aside, are quantised."""
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, Int8Linear(module, dynamic))
    return model


def test_weights_that_say_that_activations_are_not_quantised_leave_the_precision() -> None:
    """Where every quantised weight says so, as torchao's do, the model is held to its dtype."""
    model = int8(zoo.build("llama"), dynamic=False)
    for weight in quantised_weights(model):
        weight.act_quant_kwargs = None  # type: ignore[attr-defined]
    assert eps(model) == FINE
    assert roundings(model) == roundings(zoo.build("llama"))
    next(quantised_weights(model)).act_quant_kwargs = object()  # type: ignore[attr-defined]
    assert eps(model) == STEP


@pytest.mark.wide(but=["dtype1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounded_activations_are_weighed_by_the_model_itself(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every dtype, that of eight bits among them: its quantiser takes no float64, and is part of what it computes."""
    model = int8(zoo.build("llama").to(dtype), dynamic=True)
    monkeypatch.setattr(
        "specframe_testing.instrumentation.ties.copy.deepcopy", lambda model: pytest.fail("the model was made float64")
    )
    best = int(harness.continuation(model, PROMPTS[0], 1)[0])
    assert Scales(model).weigh(PROMPTS[0], [best]).tie


@pytest.mark.wide
@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "activations"])
def test_a_quantised_target_is_decoded(dynamic: bool) -> None:
    """Drafts leave the tokens of a quantised target as they are, but where it has a tie in its own precision."""
    target = int8(zoo.build("qwen3"), dynamic)
    found = harness.decode(
        harness.pipeline(target, zoo.good_draft(zoo.build("qwen3")), batch_size=3, draft_length=3),
        harness.requests(PROMPTS, 8),
    )
    for one, prompt in zip(found, PROMPTS, strict=True):
        wanted = list(harness.continuation(target, prompt, 8))
        parted = next((n for n, (a, b) in enumerate(zip(one.token_ids, wanted, strict=True)) if a != b), None)
        if parted is not None:
            assert dynamic
            ids = [*prompt, *wanted[:parted]]
            assert Scales(target).weigh(ids, [one.token_ids[parted], wanted[parted]]).tie
