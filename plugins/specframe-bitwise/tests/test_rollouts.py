"""Rollouts and the trainer's own forward have the same log-probabilities to the bit."""

from __future__ import annotations

import torch
from generating import padded
from specframe_bitwise.mode import bitwise
from specframe_testing import harness, zoo

import specframe

NEW = 9


def test_a_models_own_forward_gives_the_bits_of_its_rollouts() -> None:
    """In bfloat16 logits of sampled tokens are those of a forward of the model itself; without ``bitwise`` they are not."""
    model = zoo.build("qwen3").to(torch.bfloat16)
    batch = padded(harness.random_prompts([6, 3, 11], zoo.VOCABULARY))
    asked = {"do_sample": True, "eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
    with specframe.accelerate(model, zoo.good_draft(model), bitwise=True) as handle:
        drawn = model.generate(**batch, max_new_tokens=NEW, **asked)
        assert handle.report is not None
        assert handle.report.num_draft_tokens
    mask_BS = torch.cat([batch["attention_mask"], torch.ones(3, NEW, dtype=torch.long)], dim=1)
    inputs = {"attention_mask": mask_BS, "position_ids": (mask_BS.cumsum(-1) - 1).clamp(min=0)}
    with torch.inference_mode(), bitwise(torch.device("cpu")):
        own_BSV = model(drawn.sequences, **inputs).logits.float()
    assert torch.equal(torch.stack(drawn.logits, dim=1), own_BSV[:, -NEW - 1 : -1])
    with torch.inference_mode():
        other_BSV = model(drawn.sequences, **inputs).logits.float()
    assert not torch.equal(other_BSV, own_BSV)
