"""Calls that cannot be drafted. Transformers' own loop decodes them, and a warning gives the reason."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import torch
from transformers import generation as hf
from transformers.generation.utils import GENERATION_MODES_MAPPING, GenerationMixin
from transformers.integrations.fsdp import is_fsdp_managed_module

from specframe.errors import SpecframeWarning
from specframe.model.positions import context_length, counted_positions
from specframe_std.drop_in.call import BEAMS, Call, evaluating
from specframe_std.processor_check import unfit

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    from specframe_std.drop_in.streams import Sink

PER_TOKEN = frozenset({"input_ids", "attention_mask", "position_ids", "cache_position"})
"""Inputs of a decoder that give its tokens and their places."""

UNDERSTOOD = PER_TOKEN | {"past_key_values", "use_cache", "logits_to_keep", "output_attentions", "output_hidden_states"}
"""Inputs of ``generate`` that the drop-in can also feed, for rows of different lengths."""

PASSED_THROUGH = frozenset({"contextlib", "peft", "specframe_std", "torch", "transformers"})
"""Packages between who calls ``generate`` and the drop-in."""

IN_ORDER = (hf.UnbatchedClassifierFreeGuidanceLogitsProcessor, hf.SynthIDTextWatermarkLogitsProcessor)
"""Processors of transformers that have to be called once per generated token, in order, with all rows."""


def obstacles(call: Call) -> list[str]:
    """Return the features of a call that rule out drafting, under the names of ``generate``."""
    kinds = {
        "an encoder-decoder model": call.model.config.is_encoder_decoder,
        f"{call.mode.value} (num_beams={call.config.num_beams})": call.mode in BEAMS,
    }
    if found := [name for name, holds in kinds.items() if holds]:
        return found
    found = sorted(name for name, value in call.inputs.items() if name not in UNDERSTOOD and not is_empty(value))
    found += [type(one).__name__ for one in call.processors if isinstance(one, IN_ORDER)]
    cache = call.inputs.get("past_key_values")
    checks = {
        "use_cache=False": lambda: not call.config.use_cache,
        "weights that are split over processes": lambda: is_split(call.model),
        "torch.autocast in another precision than the model's": lambda: is_cast(call.model),
        "past_key_values that hold tokens": lambda: cache is not None and cache.get_seq_length() > 0,
        "inputs that the model prepares in a way of its own": lambda: prepares_otherwise(call),
        "padding that is not on the left": lambda: not padded_on_the_left(call),
        "positions other than a token's place in its row": lambda: not counted_from_0(call),
        "padded rows, whose padding the model counts as tokens": lambda: counts_padding(call),
        "more tokens than the model's context holds": lambda: beyond_context(call),
        "rotary factors that change with the longest row": lambda: changes_factors(call),
        "output_attentions along with a static cache": lambda: (
            call.config.output_attentions
            and cache is not None
            and cache.is_compileable  # weights have its unused slots, too
        ),
        "prefill_chunk_size along with return_dict_in_generate": lambda: (
            call.config.prefill_chunk_size
            and call.config.return_dict_in_generate  # ``generate`` returns those of the last chunk
        ),
    }
    for name, holds in checks.items():  # each check assumes that the checks before it do not hold
        if not found and holds():
            found.append(name)
    if found:
        return found
    whole = [one for one, splits in zip(call.processors, call.split, strict=True) if not splits]
    return unfit(whole, (), *call.trial_inputs)


def is_empty(value: Any) -> bool:
    """Return whether an input is empty: None, or the empty dictionary of a model of images and text without an image."""
    return value is None or (isinstance(value, dict) and not value)


def is_split(model: torch.nn.Module) -> bool:
    """Return whether a forward takes all processes at once: under FSDP, and where DeepSpeed has not gathered weights."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return False
    left_out = any(hasattr(one, "ds_id") and not one.numel() for one in model.parameters())
    return left_out or is_fsdp_managed_module(model)


def is_cast(model: PreTrainedModel) -> bool:
    """Return whether ``torch.autocast`` has the model compute in another precision than its weights'."""
    kind = model.device.type
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != model.dtype


def prepares_otherwise(call: Call) -> bool:
    """Return whether a model's own ``prepare_inputs_for_generation`` adds inputs beyond ids, mask and positions.

    Models with prompt or prefix tuning add some: embeddings or a cache before the tokens.
    """
    own: Any = call.model.prepare_inputs_for_generation
    if getattr(own, "__func__", None) is GenerationMixin.prepare_inputs_for_generation:
        return False
    fed = own(call.input_ids, is_first_iteration=True, **call.inputs)
    tensors = {name: value for name, value in fed.items() if isinstance(value, torch.Tensor)}
    ids, cache = tensors.get("input_ids"), fed.get("past_key_values")
    empty = cache is None or (hasattr(cache, "get_seq_length") and cache.get_seq_length() == 0)
    return ids is None or not torch.equal(ids, call.input_ids) or not tensors.keys() <= PER_TOKEN or not empty


def padded_on_the_left(call: Call) -> bool:
    """Return whether every row has a token, and padding only before its tokens."""
    real_BS = call.real_BS
    if real_BS.shape != call.input_ids.shape:
        return False
    return bool(real_BS[:, -1].all()) and bool((real_BS[:, 1:] >= real_BS[:, :-1]).all())


def counted_from_0(call: Call) -> bool:
    """Return whether each token's position is its place in its row."""
    positions_BS = call.inputs.get("position_ids")
    if positions_BS is None:
        return True
    real_BS = call.real_BS.to(positions_BS.device)
    expected_BS = real_BS.cumsum(-1) - 1
    return positions_BS.shape == real_BS.shape and bool((positions_BS == expected_BS)[real_BS].all())


def counts_padding(call: Call) -> bool:
    """Return whether the model takes padding for tokens when it counts positions itself."""
    return not bool(call.real_BS.all()) and counted_positions(call.model, "the target").counts_padding


def beyond_context(call: Call) -> bool:
    """Return whether a row may become longer than the model's context. ``generate`` only warns of this."""
    context = context_length(call.model.config.get_text_config())
    return context is not None and max(map(len, call.prompts)) + call.new > context


def changes_factors(call: Call) -> bool:
    """Return whether rotary factors may change during the call: rope type "longrope" changes them with the longest row.

    They do not change if every prompt is longer than the bound, or if no row reaches the bound. The last token is never fed.
    """
    told = getattr(call.model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [told] if "rope_type" in told else told.values()
    bounds = [int(one["original_max_position_embeddings"]) for one in kinds if one.get("rope_type") == "longrope"]
    counts = list(map(len, call.prompts))
    return any(min(counts) <= bound < max(counts) + call.new - 1 for bound in bounds)


def decode_plainly(call: Call, why: list[str], sink: Sink | None) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Warn that nothing is drafted, and decode with the loop that ``generate`` uses without an assistant."""
    warnings.warn(
        f"nothing is drafted, for drafts do not go with {', '.join(why)}: transformers' own loop decodes this call",
        SpecframeWarning,
        stacklevel=callers_level(),
    )
    loop: Any = getattr(type(call.model), GENERATION_MODES_MAPPING[call.mode])
    watched: dict[str, Any] = {} if sink is None else {"streamer": sink}
    with evaluating(call.model):
        return loop(
            call.model,
            call.input_ids,
            logits_processor=call.processors,
            stopping_criteria=call.criteria if sink is None else sink.noting(call.criteria),
            generation_config=call.config,
            synced_gpus=is_split(call.model),
            **watched,
            **call.inputs,
        )


def callers_level() -> int:
    """Return the level of a warning of :func:`decode_plainly` that names the line that calls ``generate``."""
    level, frame = 2, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED_THROUGH:
        level, frame = level + 1, frame.f_back
    return level - 2
