"""Plain decoding by ``generate`` of transformers, with which schemes are compared where that is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from specframe.engine.encoding import Prompt
from specframe.models import loading as models
from specframe.pipeline import Pipeline
from specframe_lab.comparison.comparison_results import Line
from specframe_lab.comparison.schemes import BETWEEN, Case

TRANSFORMERS = "transformers"
"""The name of the scheme, and the decoder in its cells."""


def with_transformers(planned: Sequence[Case]) -> list[Case]:
    """Return cases with one of transformers after each timed case of plain decoding."""
    found: list[Case] = []
    for case in planned:
        found.append(case)
        if case.plain and case.timed and not case.cell.get("bitwise"):
            scheme = BETWEEN.join([TRANSFORMERS, *case.scheme.split(BETWEEN)[1:]])
            found.append(Case(scheme, case.cell | {"decoder": TRANSFORMERS}))
    return found


def of_transformers(case: Case) -> bool:
    """Return whether transformers decodes a case."""
    return case.cell.get("decoder") == TRANSFORMERS


def generated(
    pipe: Pipeline, prompts: Iterable[Prompt], size: int, new: int, **more: Any
) -> tuple[list[list[int]], list[float]]:
    """Return the tokens of prompts by ``generate``, up to the first stop, and the seconds from the start to each one's end.

    ``size`` prompts are a batch; the next one begins when all of a batch have ended. ``more`` are other arguments of ``generate``.
    """
    target: Any = pipe.target_model
    stops = sorted(models.stop_token_ids(target, pipe.tokenizer))
    pad = stops[0] if stops else 0
    config = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=stops or None, pad_token_id=pad)
    encoded = [pipe.encode(prompt) for prompt in prompts]
    found, ends, started = list[list[int]](), list[float](), time.perf_counter()
    for place in range(0, len(encoded), size):
        batch = encoded[place : place + size]
        longest = max(map(len, batch))
        ids_BT = torch.tensor([[pad] * (longest - len(ids)) + ids for ids in batch], device=target.device)
        real_BT = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in batch], device=target.device)
        full_BS = target.generate(ids_BT, attention_mask=real_BT, generation_config=config, **more)
        found += [up_to_stop(ids, stops) for ids in full_BS[:, longest:].tolist()]
        ends += [time.perf_counter() - started] * len(batch)
    return found, ends


def up_to_stop(ids: list[int], stops: Iterable[int]) -> list[int]:
    """Return ids up to and including the first stop id."""
    ending = {*stops}
    return next((ids[: place + 1] for place, token in enumerate(ids) if token in ending), ids)


def line(found: list[list[int]], ends: list[float]) -> Line:
    """Return the line of a run by transformers, which counts neither rounds nor stages nor bytes."""
    tokens, seconds = sum(map(len, found)), ends[-1]
    figures = {"tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds}
    return {
        "lossless": True,
        "figures": figures | {"stage_seconds": {}, "acceptance_histogram": {}, "sequences": len(found)},
        "longest_wait": 0,
        "latencies": ends,
        "spec_steps": [0] * len(found),
        "accepted": [0] * len(found),
    }
