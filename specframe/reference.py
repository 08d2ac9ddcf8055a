"""The reference decoder, against which every result is tested: target only, one sequence, no speculation."""

from __future__ import annotations

from collections.abc import Collection

import torch
from transformers import DynamicCache, PreTrainedModel


@torch.inference_mode()
def reference_decode(
    model: PreTrainedModel, prompt_ids: list[int], max_new_tokens: int, stop_token_ids: Collection[int] = ()
) -> list[int]:
    """Return the target's own greedy continuation of one prompt.

    The prompt is read in one pass. Then one token at a time is fed. A token's position is the number of tokens before it. The cache
    keeps the tokens before a sliding window, too: a key then lies in the slot of its position, as ``bitwise`` expects.

    Args:
        model: the target, in evaluation mode.
        prompt_ids: at least one token id.
        max_new_tokens: most tokens to generate. A stop id or the end of the model's context ends the continuation earlier.
        stop_token_ids: ids that end the continuation. The stop token is part of the result.
    """
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31
    cache = DynamicCache()
    fed, generated = prompt_ids, list[int]()
    for _ in range(min(max_new_tokens, context - len(prompt_ids))):
        start = len(prompt_ids) + len(generated) - len(fed)
        positions = torch.arange(start, start + len(fed), device=model.device)
        logits = model(
            input_ids=torch.tensor([fed], device=model.device),
            position_ids=positions[None],
            past_key_values=cache,
            use_cache=True,
        ).logits
        generated.append(int(logits[0, -1].argmax()))
        if generated[-1] in stop_token_ids:
            break
        fed = generated[-1:]
    return generated
