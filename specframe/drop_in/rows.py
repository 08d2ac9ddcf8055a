"""Rows that ``generate`` prepared, as requests."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers import generation as hf

from specframe.errors import OptionError
from specframe.pipeline import Pipeline
from specframe.plan import Plan
from specframe.stopping import Criteria
from specframe.types import Request

if TYPE_CHECKING:
    from transformers import GenerationConfig


def for_row(processor: Any, row: int) -> Any:
    """Return a processor as it treats one row of the batch it was made for."""
    if isinstance(processor, hf.PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        return hf.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), num_beams=1)
    if isinstance(getattr(processor, "prompt_ignore_length", None), torch.Tensor):
        one = copy.copy(processor)
        one.prompt_ignore_length = processor.prompt_ignore_length[row : row + 1]
        return one
    return processor


def unpadded(input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> list[list[int]]:
    """Return each row's own ids, its left padding taken away.

    Raises:
        OptionError: padding that is not on the left, or positions other than a token's place in its row.
    """
    mask_BS = model_kwargs.get("attention_mask")
    mask_BS = torch.ones_like(input_ids) if mask_BS is None else mask_BS.to(input_ids.device)
    if mask_BS.shape != input_ids.shape:
        raise OptionError(
            f"attention_mask: expected one value for each of input_ids {tuple(input_ids.shape)}, got {tuple(mask_BS.shape)}"
        )
    real_BS = mask_BS.bool()
    if not (bool(real_BS[:, -1].all()) and bool((real_BS[:, 1:] >= real_BS[:, :-1]).all())):
        raise OptionError("attention_mask: expected rows padded on the left only, with at least one token each")
    positions_BS = model_kwargs.get("position_ids")
    expected_BS = (real_BS.cumsum(-1) - 1).where(real_BS, 0)
    if positions_BS is not None and not torch.equal(positions_BS.to(expected_BS).where(real_BS, 0), expected_BS):
        raise OptionError("position_ids: expected the place of each token in its row, counted from 0")
    rows, masks = input_ids.tolist(), real_BS.sum(1).tolist()
    return [row[len(row) - count :] for row, count in zip(rows, masks, strict=True)]


def requests_of(
    pipe: Pipeline,
    input_ids: torch.Tensor,
    prompts: list[list[int]],
    processors: hf.LogitsProcessorList,
    criteria: hf.StoppingCriteriaList,
    config: GenerationConfig,
) -> list[Request]:
    """Return a request per row, with what ``generate`` prepared for it."""
    width, device = input_ids.shape[1], pipe.target_model.device
    lengths = [one.max_length for one in criteria if isinstance(one, hf.MaxLengthCriteria)]
    new = min([config.max_length, *lengths]) - width
    context = getattr(pipe.target_model.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and max(map(len, prompts)) + new > context:
        raise OptionError(
            f"max_new_tokens: the longest prompt has {max(map(len, prompts))} tokens: expected at most "
            f"{context - max(map(len, prompts))} new ones in the model's context of {context}, got {new}"
        )
    stops: set[int] = set()
    others = []
    for one in criteria:
        if isinstance(one, hf.EosTokenCriteria):
            stops.update(one.eos_token_id.tolist())
        elif not isinstance(one, hf.MaxLengthCriteria):
            others.append(one)
    requests = []
    for index, ids in enumerate(prompts):
        lead = tuple(input_ids[index, : width - len(ids)].tolist())
        own = [for_row(processor, index) for processor in processors]
        plan = Plan.split(own, greedy=not config.do_sample, lead=lead)
        checks = (Criteria(others, lead, device),) if others else ()
        requests.append(Request(index, pipe.encode(ids), new, frozenset(stops), plan, stream=index, stop_checks=checks))
    return requests
