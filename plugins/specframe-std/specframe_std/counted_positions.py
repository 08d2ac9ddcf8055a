"""The parts of models that count the positions of their tokens themselves, and what they receive in a forward.

transformers' models take ``position_ids``, but for a few. BART and its kind, Whisper and RoFormer count from the length of the
cache, as Llama 4 does for the temperature of its queries, and Inkling for the scale of its scores. BLOOM, MPT and Falcon add
ALiBi's bias by the slot of a key, Inkling a learned one by the distance of slots, and GPT-Neo masks slots by itself. In rows of
unequal length, and in trees, neither length nor slot is the index of a token. What such a model calls is found by its parameters
and attributes, and is given the positions of the tokens and the indices of the slots.

Tensor names carry their shape: B rows, T tokens fed per row, S slots, H heads, D size of a head or of an embedding.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from specframe.contracts.positions import CountedPositions, Function, PositionInputs
from specframe.model.positions import parameters
from specframe.model.twin import own


class Counted:
    """The positions that the kinds of BART, Whisper, RoFormer, BLOOM, MPT, GPT-Neo, Llama 4 and Inkling count."""

    def find(self, model: PreTrainedModel) -> CountedPositions | None:
        """Return how a model counts positions by itself, or None if it has no such part, as most have none."""
        return OwnPositions(model).counted


class OwnPositions:
    """The parts of a model that count positions by themselves; most models have none.

    Args:
        model: the model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._config = model.config.get_text_config()
        modules: list[Any] = [*model.modules()]
        counted = () if takes(model, "position_ids") else modules
        self._embeddings = [one for one in counted if takes(one, "past_key_values_length", "position_ids")]
        self._rotated = [
            one for one in modules if takes(one, "sinusoidal_pos", "past_key_values") and has_no_parts(one)
        ]
        self._tempered = [one for one in modules if getattr(one, "attn_temperature_tuning", None) and not one.use_rope]
        self._masked = [one for one in modules if hasattr(one, "_attn") and hasattr(one, "attention_type")]
        self._biased = [
            one for one in modules if takes(one, "position_bias", "past_key_values") and hasattr(one, "Wqkv")
        ]
        distances = "relative_states", "query_positions", "key_positions"
        self._related = {one: part for one in modules for part in one.children() if takes(part, *distances)}
        """The modules that attend with a learned bias by distance, and what makes the bias."""
        scales = getattr(self._config, "log_scaling_n_floor", None) is not None
        self._scaled = [one for one in self._related if scales and not one.is_sliding and hasattr(one, "q_norm")]
        """Those whose scores have a scale by the position that they count for a query."""
        files = {sys.modules[type(one).__module__] for one in modules} if getattr(self._config, "alibi", True) else ()
        self._alibi = [one for one in files if hasattr(one, "build_alibi_tensor")]

    @property
    def counted(self) -> CountedPositions | None:
        """How the model counts positions by itself, or None if it has no such part."""
        relative = self._alibi or self._biased  # ALiBi's bias depends on the distance of tokens alone
        if not (self._embeddings or relative or self._tempered or self._masked or self._related):
            return None
        return CountedPositions(
            self.told,
            absolute=bool(self._embeddings),
            relative=bool(relative),
            in_layers=bool(self._rotated or self._tempered or self._biased or self._masked or self._related),
            counts_padding=bool(self._embeddings or self._tempered or self._scaled),
            biases=bool(self._related),
        )

    def told(self, positions_BT: torch.Tensor, key_index_BS: torch.Tensor, orders: int) -> PositionInputs:
        """Return what a forward receives.

        Args:
            positions_BT: of the tokens as the model has them, (1, N) where it has all rows in one.
            key_index_BS: the index of the token in each slot, (B, S) or (1, S), negative where a slot holds none.
            orders: indices are below this number.
        """
        forwards, functions = dict[Any, Function](), dict[tuple[Any, str], Function]()
        for one in self._embeddings:
            forwards[one] = functools.partial(embed, own(one), positions_BT, flat=bool(self._rotated))
        for one in self._rotated:
            forwards[one] = functools.partial(rotate, own(one), positions_BT.shape)
        for one in self._tempered:
            forwards[one.q_proj] = functools.partial(temper, own(one.q_proj), one, positions_BT)
        for one in self._biased:
            forwards[one] = functools.partial(attend_with_bias, one, key_index_BS)
        for one in self._masked:
            window = self._config.window_size if one.attention_type == "local" else None
            functions[one, "_attn"] = functools.partial(attend_in_window, window, positions_BT, key_index_BS)
        forwards |= self._biasing(positions_BT, key_index_BS)
        for file in self._alibi:
            usual = own(file, "build_alibi_tensor")
            functions[file, "build_alibi_tensor"] = functools.partial(
                alibi, usual, len(positions_BT), key_index_BS, orders
            )
        width = positions_BT.shape[1]
        counting = [*self._tempered, *self._scaled]
        uncounted = -1 - torch.arange(width, device=positions_BT.device) if counting else None
        return PositionInputs(
            forwards, functions, {one.layer_idx: uncounted for one in counting if uncounted is not None}
        )

    def _biasing(self, positions_BT: torch.Tensor, key_index_BS: torch.Tensor) -> Mapping[Any, Function]:
        """Return what is called in a forward in place of the parts that make and scale a learned bias."""
        if not self._related:
            return {}
        forwards, distance_BTS = dict[Any, Function](), positions_BT[..., None] - key_index_BS[:, None]
        scale_BT = log_scale(self._config, positions_BT) if self._scaled else None
        for one, part in self._related.items():
            scale = scale_BT if one in self._scaled else None
            forwards[part] = functools.partial(distance_bias, own(part), part, distance_BTS, scale)
            if scale is not None:
                forwards[one.q_norm] = functools.partial(scale_queries, own(one.q_norm), scale)
        return forwards


def takes(module: torch.nn.Module, *names: str) -> bool:
    """Return whether the ``forward`` of a module has all these parameters."""
    return parameters(module).keys() >= {*names}


def has_no_parts(module: torch.nn.Module) -> bool:
    """Return whether a module has no modules with parts of their own: of nested ones that take the same, the innermost."""
    return not any(True for child in module.children() for _ in child.children())


def embed(usual: Function, positions_BT: torch.Tensor, given: Any, *_: Any, flat: bool, **__: Any) -> torch.Tensor:
    """Return the embeddings of positions, (B, T, D), or (B * T, D) if they are to be ``flat``.

    ``usual`` is the forward of a module that embeds positions of one row for all. It takes the number of tokens from ``given``.
    """
    made = usual(given, position_ids=positions_BT.flatten())
    return made.reshape(-1, made.shape[-1]) if flat else made.reshape(*positions_BT.shape, -1)


def rotate(
    usual: Function,
    shape: torch.Size,
    hidden: torch.Tensor,
    attention_mask: Any = None,
    sinusoidal_pos: Any = None,
    *rest: Any,
    **options: Any,
) -> Any:
    """Call the forward of an attention module with rotary factors of its own for each row.

    ``sinusoidal_pos``: those of all rows after each other, (1, 1, B * T, D); ``shape``: (B, T).
    """
    return usual(hidden, attention_mask, sinusoidal_pos.reshape(shape[0], 1, shape[1], -1), *rest, **options)


def temper(usual: Function, attention: Any, positions_BT: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return queries, (B, T, H * D), at the temperature of their positions; at the length that the cache reports it is 1."""
    steps_BT = torch.floor((positions_BT.float() + 1.0) / attention.floor_scale)
    queries = usual(hidden)
    return (queries * (torch.log1p(steps_BT) * attention.attn_scale + 1.0)[..., None]).to(queries.dtype)


def log_scale(config: Any, positions_BT: torch.Tensor) -> torch.Tensor:
    """Return the scale of scores of tokens at these positions, (B, T); at the length that the cache reports it is 1."""
    counted_BT = (positions_BT + 1).float() / config.log_scaling_n_floor
    return 1.0 + config.log_scaling_alpha * torch.log(counted_BT.clamp(min=1.0))


def scale_queries(usual: Function, scale_BT: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return queries, (B, T, H, D), at the scale of their positions."""
    queries = usual(hidden)
    return (queries.float() * scale_BT[..., None, None]).to(queries.dtype)


def distance_bias(
    usual: Function,
    bias: Any,
    distance_BTS: torch.Tensor,
    scale_BT: torch.Tensor | None,
    relative_states: torch.Tensor,
    *_: Any,
) -> torch.Tensor:
    """Return the bias of each query for each slot, (B, H, T, S), by the distance of their tokens.

    Args:
        usual: returns that of queries (B, T, ...) for keys, by the positions of both.
        bias: the module, whose bias is 0 but for the first ``rel_extent`` distances.
        distance_BTS: of each query's token from that of each slot.
        scale_BT: of the scores, or None if they have none.
        relative_states: of the queries, (B, T, H, ...).
    """
    extent = bias.rel_extent
    places_E = torch.arange(extent, device=distance_BTS.device)
    by_distance_BHTE = usual(relative_states, places_E.new_zeros(relative_states.shape[1]), -places_E)
    within_B1TS = distance_BTS.clamp(0, extent - 1)[:, None]
    found_BHTS = by_distance_BHTE.gather(3, within_B1TS.expand(*by_distance_BHTE.shape[:2], -1, -1))
    found_BHTS = found_BHTS.masked_fill(((distance_BTS < 0) | (distance_BTS >= extent))[:, None], 0.0)
    return found_BHTS if scale_BT is None else (found_BHTS.float() * scale_BT[:, None, :, None]).to(found_BHTS.dtype)


def alibi(
    usual: Function,
    rows: int,
    key_index_BS: torch.Tensor,
    orders: int,
    mask: torch.Tensor,
    num_heads: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the bias of each slot by the order of its token, (B * H, 1, S).

    ``usual`` returns it for the tokens of a mask (B, S), by their index among those; slots have indices below ``orders``.
    """
    table_HN = usual(key_index_BS.new_ones(1, orders), num_heads, dtype).view(num_heads, orders)
    found_HBS = table_HN[:, key_index_BS.clamp(min=0)].expand(-1, rows, -1)
    return found_HBS.transpose(0, 1).reshape(rows * num_heads, 1, -1)


def attend_with_bias(
    attention: Any,
    key_index_BS: torch.Tensor,
    hidden: torch.Tensor,
    position_bias: torch.Tensor,
    past_key_values: Any = None,
    *,
    attention_mask: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return what MPT's attention returns, (B, T, D), with a bias by the token indices of keys.

    Args:
        attention: the module.
        key_index_BS: the order of the token in each slot.
        hidden: (B, T, D).
        position_bias: that of neighbouring slots, (H, 1, N), the same step from each to the next.
        past_key_values: takes keys and values.
        attention_mask: where a query does not see a slot, (B, 1, T, S).
    """
    mixed = attention.Wqkv(hidden)
    if (most := attention.clip_qkv) is not None:
        mixed = mixed.clamp(min=-most, max=most)
    parts = (part.unflatten(-1, (attention.n_heads, -1)).transpose(1, 2) for part in mixed.chunk(3, dim=2))
    query, key, value = parts
    key, value = past_key_values.update(key, value, attention.layer_idx)
    step_H11 = position_bias[:, :, -1:] - position_bias[:, :, -2:-1]
    bias_BH1S = step_H11 * (key_index_BS - key_index_BS.shape[1] + 1)[:, None, None]
    scores_BHTS = scores(query, key, attention.softmax_scale) + bias_BH1S
    scores_BHTS = scores_BHTS.masked_fill(attention_mask, torch.finfo(scores_BHTS.dtype).min)
    output = weighed(scores_BHTS, value).transpose(1, 2).flatten(2)
    return attention.out_proj(output), None


def attend_in_window(
    window: int | None,
    positions_BT: torch.Tensor,
    key_index_BS: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
) -> tuple[torch.Tensor, None]:
    """Return what GPT-Neo's ``_attn`` returns, (B, H, T, D), under the mask (B, 1, T, S), and a window if the layer has one."""
    scores_BHTS = scores(query, key, 1.0) + attention_mask
    if window is not None:
        hidden_BTS = key_index_BS[:, None] <= positions_BT[..., None] - window
        scores_BHTS = scores_BHTS.masked_fill(hidden_BTS[:, None], torch.finfo(scores_BHTS.dtype).min)
    return weighed(scores_BHTS, value), None


def scores(query: torch.Tensor, key: torch.Tensor, scaling: float) -> torch.Tensor:
    """Return the scores (B, H, T, S), in float32 at least, as models compute them that attend by themselves."""
    exact = torch.promote_types(query.dtype, torch.float32)
    return query.to(exact) @ key.to(exact).mT * scaling


def weighed(scores_BHTS: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the values weighed by the softmax of scores, (B, H, T, D)."""
    return scores_BHTS.softmax(dim=-1).to(value.dtype) @ value
