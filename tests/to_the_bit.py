"""The reference's logits with bitwise, and whether others are the same to the bit."""

from __future__ import annotations

import torch
from specframe_bitwise.mode import bitwise
from specframe_testing.logits import Logits, parted
from transformers import PreTrainedModel

from specframe.reference import reference_decode

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)


def by_reference(target: PreTrainedModel, prompts: list[list[int]], new: int) -> Logits:
    """Return the logits of each prompt's continuation by the reference with bitwise, one token after the other."""
    steps: list[torch.Tensor] = []
    found: Logits = {}
    hook = target.register_forward_hook(lambda module, arguments, output: steps.append(output.logits[0, -1]))
    with bitwise(CPU):
        for index, prompt in enumerate(prompts):
            steps.clear()
            reference_decode(target, prompt, new)
            found |= {(index, len(prompt) + place): logits_V for place, logits_V in enumerate(steps)}
    hook.remove()
    return found


def same(found: Logits, wanted: Logits) -> bool:
    """Return whether all logits of common prefixes are equal to the bit."""
    assert wanted.keys() <= found.keys()
    return not parted(found, wanted)
