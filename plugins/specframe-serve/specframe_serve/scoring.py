"""Log-probabilities of the tokens of a prompt, by one forward of the target alone."""

from __future__ import annotations

import torch

from specframe import Pipeline
from specframe.model.twin import twin
from specframe.models.own_cache import OwnCache

PIECE = 256
"""Places whose logits are turned into float32 log-probabilities at once: those of a large vocabulary take 150 MB."""

Scores = tuple[list[float | None], list[dict[int, float] | None]]
"""The log-probability of each token, and those of the most likely ones at its place, or None for the first token."""


@torch.inference_mode()
def prompt_scores(pipe: Pipeline, ids: list[int], top: int) -> Scores:
    """Return the scores of a prompt's tokens, with the ``top`` most likely ones at each place; no round may be under way."""
    model = twin(pipe.target_model)
    ids_1T = torch.tensor([ids], device=model.device)
    positions_1T = torch.arange(len(ids), device=model.device)[None]
    logits_TV = OwnCache(model, whole=True).feed(ids_1T, positions_1T)[0, :-1]
    told: list[float | None] = [None]
    tops: list[dict[int, float] | None] = [None]
    for begin in range(0, len(ids) - 1, PIECE):
        logprobs_TV = logits_TV[begin : begin + PIECE].float().log_softmax(-1)
        following_T = ids_1T[0, 1 + begin : 1 + begin + len(logprobs_TV)]
        told += logprobs_TV.gather(1, following_T[:, None])[:, 0].tolist()
        values_TN, ids_TN = (found.tolist() for found in logprobs_TV.topk(top, dim=-1))
        tops += [dict(zip(*pair, strict=True)) for pair in zip(ids_TN, values_TN, strict=True)]
    return told, tops
