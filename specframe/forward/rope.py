"""Rotary factors that depend on the longest position of a forward (rope type "longrope": Phi-3 long, Phi-4-mini, MiniCPM3).

A forward in which any position is beyond ``original_max_position_embeddings`` takes another set of factors for all its tokens,
and what was cached with the first set does not fit the second. So sequences that stay within that length and sequences that begin
beyond it are decoded one group after the other, and a sequence that may cross it is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from specframe.contracts.requests import Request, Result, SequenceMetrics
from specframe.forward.ongoing import own


class Rope:
    """Dependence of a model's rotary factors on sequence lengths; most models have none.

    Args:
        model: the model.
        context: its longest sequence, in tokens.
        name: what errors call it.
    """

    def __init__(self, model: PreTrainedModel, context: int, name: str) -> None:
        told = {module: found for module in model.modules() if (found := _boundaries(module))}
        self._modules, self._context, self._name = [*told], context, name
        self._boundary = min((min(found) for found in told.values()), default=context)
        self._long = False
        self.last_position = context - 1
        """The position beyond which a forward must not look: draft tokens past a row's end have that one, too."""

    def crossing(self, requests: Iterable[Request]) -> list[Result]:
        """Return the results of the requests that cannot be decoded: they begin with short factors and may need long ones."""
        return [self._refused(one) for one in requests if self._crosses(one)]

    def groups(self, requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
        """Yield the requests that one run can decode together, all but those that are :meth:`crossing`.

        Forwards take the factors of a group until the next group is asked for.
        """
        if not self._modules:
            yield requests
            return
        fitting = [one for one in requests if not self._crosses(one)]
        for long in (False, True):
            self._long = long
            self.last_position = self._context - 1 if long else min(self._context, self._boundary) - 1
            try:
                yield [one for one in fitting if (len(one.prompt_ids) > self._boundary) == long]
            finally:
                self._long, self.last_position = False, self._context - 1

    @property
    def forwards(self) -> Mapping[torch.nn.Module, Callable[..., Any]]:
        """The functions called in the place of rotary modules' ``forward``: they give all positions the factors of the group."""
        if not self._long:
            return {}
        return {module: functools.partial(_beyond, own(module, "forward"), self._boundary) for module in self._modules}

    def _crosses(self, request: Request) -> bool:
        """Return whether a sequence may be read with short factors first and with long ones later: its last token is never fed."""
        return len(request.prompt_ids) <= self._boundary and self._limit(request) > self._boundary + 1

    def _limit(self, request: Request) -> int:
        return min(len(request.prompt_ids) + request.max_new_tokens, self._context)

    def _refused(self, request: Request) -> Result:
        count, boundary = len(request.prompt_ids), self._boundary
        error = (
            f"the prompt has {count} tokens and may grow to {self._limit(request)}, and the rotary factors of {self._name} "
            f"change beyond {boundary}: expected at most {boundary + 1 - count} new tokens, or a prompt of more than "
            f"{boundary} tokens"
        )
        metrics = SequenceMetrics()
        return Result(request.index, "", [], "error", metrics, error, prompt_tokens=count, sample=request.sample)


def _boundaries(module: torch.nn.Module) -> list[int]:
    """Return the lengths beyond which a rotary module takes long factors, one for each kind of layer that has them."""
    kinds, config = getattr(module, "rope_type", None), getattr(module, "config", None)
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None or not isinstance(kinds, str | dict):
        return []
    told = [(kinds, parameters)] if isinstance(kinds, str) else [(kinds[layer], parameters[layer]) for layer in kinds]
    return [int(one["original_max_position_embeddings"]) for kind, one in told if kind == "longrope"]


def _beyond(
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    boundary: int,
    x: torch.Tensor,
    position_ids: torch.Tensor,
    *arguments: Any,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Return the cosines and sines (B, T, D) of positions that one beyond the boundary is added to."""
    further_B1 = torch.full_like(position_ids[..., :1], boundary)
    made = forward(x, torch.cat([position_ids, further_B1], dim=-1), *arguments, **options)
    return tuple(part[..., :-1, :] for part in made)
