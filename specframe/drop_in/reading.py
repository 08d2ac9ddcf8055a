"""What ``generate`` returns of its forwards: its cache, hidden states and attention weights.

Drafted tokens are decoded in other forwards than those. So the tokens that were found are read once more, in the two forwards that
give the same: one for the prompts, one for all that follows.
"""

from __future__ import annotations

from typing import Any

import torch

from specframe.drop_in.call import Call


def wanted(call: Call) -> bool:
    """Return whether anything of the forwards will be seen: in what is returned, or in a cache of the user's own."""
    cache = call.inputs.get("past_key_values")
    return bool(call.config.return_dict_in_generate) or getattr(cache, "_is_user_defined", False)


def read(call: Call, sequences_BS: torch.Tensor) -> dict[str, Any]:
    """Feed all tokens but the last into the cache that ``generate`` prepared.

    Returns:
        ``past_key_values``, and of ``hidden_states`` and ``attentions`` those asked for: for each generated token a tuple of
        tensors, one for each layer, the first for the whole prompt, the others for one token.
    """
    width, total = call.input_ids.shape[1], sequences_BS.shape[1] - 1
    prompt = _feed(call, sequences_BS[:, :width], width)
    after = _feed(call, sequences_BS[:, :total], total - width) if total > width else None
    told: dict[str, Any] = {"past_key_values": prompt.past_key_values}
    if call.config.output_hidden_states:
        layers = () if after is None else after.hidden_states
        steps = (tuple(layer[:, n : n + 1] for layer in layers) for n in range(total - width))
        told["hidden_states"] = (prompt.hidden_states, *steps)
    if call.config.output_attentions:
        layers = () if after is None else after.attentions
        windows = [_window(call, layer) for layer in range(len(layers))]
        steps = (
            tuple(_seen(layer, n, window, width) for layer, window in zip(layers, windows, strict=True))
            for n in range(total - width)
        )
        told["attentions"] = (prompt.attentions, *steps)
    return told


def _feed(call: Call, ids_BS: torch.Tensor, count: int) -> Any:
    """Feed the last ``count`` tokens as ``generate`` does, with mask and positions of all of them."""
    inputs, added = dict(call.inputs), ids_BS.shape[1] - call.input_ids.shape[1]
    if (mask_BS := inputs.get("attention_mask")) is not None:
        inputs["attention_mask"] = torch.cat([mask_BS, mask_BS.new_ones(len(call), added)], dim=1)
    if (positions_BS := inputs.get("position_ids")) is not None:
        following_BN = positions_BS[:, -1:] + torch.arange(1, added + 1, device=positions_BS.device)
        inputs["position_ids"] = torch.cat([positions_BS, following_BN], dim=1)
    model: Any = call.model
    fed = model.prepare_inputs_for_generation(
        ids_BS, next_sequence_length=count, is_first_iteration=added == 0, **inputs
    )
    return model(**fed, return_dict=True)


def _window(call: Call, layer: int) -> int | None:
    """Return how many tokens a layer of the cache keeps; None: all."""
    return getattr(call.inputs["past_key_values"].layers[layer], "sliding_window", None)


def _seen(weights_BHTS: torch.Tensor, step: int, window: int | None, width: int) -> torch.Tensor:
    """Return one token's weights (B, H, 1, S), for the keys that there were when it alone was fed."""
    fed, keys = weights_BHTS.shape[2:]
    place = width + step
    end = keys - fed + step + 1 if keys <= width + fed else keys
    start = 0 if window is None else max(0, end - min(window, place + 1))
    return weights_BHTS[:, :, step : step + 1, start:end]
