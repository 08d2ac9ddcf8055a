"""Requests made from the rows of a call of ``generate``."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import generation as hf

from specframe.contracts.requests import Request, StopCheck
from specframe.pipeline import Pipeline
from specframe.text.processor_formulas import plan_of
from specframe.text.stopping import Criteria
from specframe_std.drop_in.call import Call
from specframe_std.drop_in.step_criteria import StepCriteria
from specframe_std.processor_check import split


def for_row(processor: Any, row: int, rows: int) -> Any:
    """Return a processor for one row, from a processor made for ``rows`` rows."""
    if isinstance(processor, hf.PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        return hf.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), num_beams=1)
    own: dict[str, Any] = {}
    if isinstance(getattr(processor, "prompt_ignore_length", None), torch.Tensor):
        own = {"prompt_ignore_length": processor.prompt_ignore_length[row : row + 1]}
    elif isinstance(processor, hf.EncoderRepetitionPenaltyLogitsProcessor):
        prompts = processor.encoder_input_ids
        own = {"encoder_input_ids": prompts[row * len(prompts) // rows][None]}
    elif isinstance(processor, hf.EncoderNoRepeatNGramLogitsProcessor):
        own = {"batch_size": 1, "generated_ngrams": [processor.generated_ngrams[row * processor.batch_size // rows]]}
    if not own:
        return processor
    one = copy.copy(processor)
    vars(one).update(own)
    return one


def requests_of(pipe: Pipeline, call: Call, steps: StepCriteria | None) -> list[Request]:
    """Return a request for each row of the call, with the row's processors and criteria.

    Args:
        pipe: the pipeline.
        call: the call.
        steps: the call's criteria, if they have to be called once per step, or None if they are called for each row by itself.
    """
    width, device, prompts = call.input_ids.shape[1], pipe.target_model.device, call.prompts
    stops: set[int] = set()
    others = []
    for one in call.criteria:
        if type(one) is hf.EosTokenCriteria:  # a subclass may not end a row at each of its ids
            stops.update(one.eos_token_id.tolist())
        elif not isinstance(one, hf.MaxLengthCriteria):
            others.append(one)
    requests = []
    for index, ids in enumerate(prompts):
        lead = tuple(call.input_ids[index, : width - len(ids)].tolist())
        own = [
            split(one, index, len(call)) if splits else for_row(one, index, len(call))
            for one, splits in zip(call.processors, call.split, strict=True)
        ]
        plan = plan_of(own, greedy=not call.config.do_sample, lead=lead)
        checks: tuple[StopCheck, ...] = (Criteria(others, lead, device),) if others else ()
        checks = (steps.check(index),) if steps else checks
        requests.append(
            Request(index, pipe.encode(ids), call.new, frozenset(stops), plan, stream=index, stop_checks=checks)
        )
    return requests
