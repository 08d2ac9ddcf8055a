"""A model whose layers are on several devices: each layer's keys and values are on its own, and the tokens are the reference's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from products import crossed
from specframe_std.attention.varlen import Packed
from specframe_testing import harness, zoo
from transformers import PreTrainedModel

from specframe.model.runner import ModelRunner
from specframe.models.loading import pick_device

LENGTHS = (5, 1, 17, 9, 3)
SCHEMES = {
    "ragged": {"align": "ragged"},
    "ragged, recorded": {"align": "ragged", "graphs": "on"},
    "ragged, continuous": {"align": "ragged", "schedule": "continuous,piece=4"},
    "eqspec": {"align": "eqspec"},
    "eqspec, slab": {"align": "eqspec", "kv": "slab"},
    "exspec": {"align": "exspec"},
    "rollback": {"align": "rollback"},
}


pytestmark = pytest.mark.usefixtures("on_sim")


def moved(given: Any, device: torch.device) -> Any:
    """Return tensors, also those in tuples, on a device."""
    if isinstance(given, tuple):
        return tuple(moved(one, device) for one in given)
    return given.to(device) if isinstance(given, torch.Tensor) else given


def spread(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy with its first layer, and all that is not a layer, on sim:0 and the other layers on sim:1.

    Inputs of a module follow it, as in a model that was loaded with a ``device_map``.
    """
    places = [pick_device(f"sim:{number}") for number in range(2)]
    parts: Any = copy.deepcopy(model).to(places[0])

    def follow(module: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        return moved(args, device), {name: moved(one, device) for name, one in kwargs.items()}

    for place, layer in enumerate(parts.model.layers):
        device = places[min(place, 1)]
        layer.to(device).register_forward_pre_hook(lambda *given, d=device: follow(*given, d), with_kwargs=True)
    parts.model.norm.register_forward_pre_hook(lambda *given: follow(*given, places[0]), with_kwargs=True)
    return parts


@pytest.mark.wide
@pytest.mark.parametrize(("name", "scheme"), crossed(("qwen3", "gemma3"), [*SCHEMES]))
def test_equals_reference(name: str, scheme: str) -> None:
    """A target on two devices decodes to the tokens of the same target on a CPU, in every scheme."""
    target = zoo.build(name)
    asked = harness.requests(harness.random_prompts(LENGTHS, zoo.VOCABULARY, seed=2), 10, {zoo.EOS})
    pipe = harness.pipeline(spread(target), zoo.good_draft(target), batch_size=3, draft_length=3, **SCHEMES[scheme])
    harness.assert_exact(target, asked, harness.decode(pipe, asked))


def test_attention_without_masks_is_not_for_them() -> None:
    """No attention backend takes the place of masks, since its plan is on one device; the reason is named."""
    runner = ModelRunner(spread(zoo.build("qwen3")), "target")
    assert runner.without_masks(Packed()) == "its layers are on several devices"
