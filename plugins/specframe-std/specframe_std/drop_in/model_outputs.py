"""Cache, hidden states and attention weights in the output of ``generate``.

Speculative decoding runs other forwards than ``generate``. So the finished sequences are read once more, in two forwards with
the same values: one for the prompts, one for the generated tokens.
"""

from __future__ import annotations

from typing import Any

import torch

from specframe_std.drop_in.call import Call, evaluating


def asks_outputs(call: Call) -> bool:
    """Return whether the user sees values of the forwards: in the returned outputs, or in the user's own cache."""
    cache = call.inputs.get("past_key_values")
    return bool(call.config.return_dict_in_generate) or getattr(cache, "_is_user_defined", False)


def read_outputs(call: Call, sequences_BS: torch.Tensor) -> dict[str, Any]:
    """Feed all tokens but the last into the cache that ``generate`` prepared.

    Returns:
        ``past_key_values`` and, if asked for, ``hidden_states`` and ``attentions``: for each generated token a tuple with one
        tensor per layer. The first tuple covers the whole prompt, each other tuple one token.
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
        kept = call.inputs["past_key_values"].layers[: len(layers)]
        windows = [
            getattr(layer, "sliding_window", None) for layer in kept
        ]  # how many tokens it keeps, or None for all
        steps = (
            tuple(_seen(layer, n, window, width) for layer, window in zip(layers, windows, strict=True))
            for n in range(total - width)
        )
        told["attentions"] = (prompt.attentions, *steps)
    return told


def _feed(call: Call, ids_BS: torch.Tensor, count: int) -> Any:
    """Feed the last ``count`` tokens as ``generate`` does, with mask and positions for all tokens."""
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
    with evaluating(model):  # with checkpoints of activations a training model would fill no cache
        return model(**fed, return_dict=True)


def _seen(weights_BHTS: torch.Tensor, step: int, window: int | None, width: int) -> torch.Tensor:
    """Return the attention weights of one token, (B, H, 1, S), for the keys that exist when ``generate`` feeds it alone."""
    fed, keys = weights_BHTS.shape[2:]
    place = width + step
    end = keys - fed + step + 1 if keys <= width + fed else keys
    start = 0 if window is None else max(0, end - min(window, place + 1))
    return weights_BHTS[:, :, step : step + 1, start:end]
