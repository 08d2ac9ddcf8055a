"""How a model takes the positions of its tokens: as an argument, or counted by itself as a plugin's kind knows it, with what its
rotary factors depend on.

Some factors (rope type "longrope": Phi-3 long, Phi-4-mini, MiniCPM3) depend on the longest position of a forward: where any
position is beyond ``original_max_position_embeddings``, all its tokens take another set of factors, and keys cached with the
first set do not fit the second. So a row takes one set from its first token on, as it has when it is decoded alone: the long one
where its prompt is longer than that. A sequence that may cross the boundary is refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs
import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Placement
from specframe.contracts.positions import UNCOUNTED, CountedPositions, PositionKind
from specframe.contracts.requests import Request
from specframe.contracts.round import Batch, Sequence
from specframe.devices.kinds import constant
from specframe.errors import ContractError, ModelError, literal
from specframe.model.state_layers import call_kind
from specframe.model.twin import own
from specframe.plugins.protocols import require_members
from specframe.plugins.registry import registry

FAR = 2**40
"""Added to the positions of rows that take long factors: no context is as long."""


class Rope:
    """Dependence of a model's rotary factors on sequence lengths, ``context`` at most; most models have none.

    Short rows of a target, whose ``bounded`` is true, end before the boundary, so tokens beyond it are drafts past a row's end.
    """

    def __init__(self, model: PreTrainedModel, context: int, name: str, bounded: bool) -> None:
        told = {module: found for module in model.modules() if (found := _boundaries(module))}
        self._context, self._name = context, name
        self._boundary = min((min(found) for found in told.values()), default=context)
        self._last_short = (min(context, self._boundary) if bounded else context) - 1
        self.forwards: Mapping[torch.nn.Module, Callable[..., Any]] = {
            one: functools.partial(_by_rows, own(one), self._boundary) for one in told
        }
        """The functions called in place of rotary modules' ``forward``."""
        self.last_position = context - 1 + (FAR if told else 0)
        """The position beyond which a forward must not look: draft tokens past a row's end have that one, too."""

    def refusal(self, request: Request) -> str | None:
        """Return why a request cannot be decoded, or None if it can: it begins with short factors and may need long ones."""
        count, boundary = len(request.prompt_ids), self._boundary
        longest = min(count + request.max_new_tokens, self._context)
        if count > boundary or longest <= boundary + 1:  # the last token is never fed
            return None
        return (
            f"the prompt has {count} tokens and may grow to {longest}, and the rotary factors of {self._name} "
            f"change beyond {boundary}: expected at most {boundary + 1 - count} new tokens, or a prompt of more than "
            f"{boundary} tokens"
        )

    def apart(self, sequence: Sequence) -> bool:
        """Return whether a sequence takes long factors."""
        return len(sequence.request.prompt_ids) > self._boundary

    def placed(self, batch: Batch, placement: Placement) -> Placement:
        """Return a placement whose positions tell by :data:`FAR` which rows take long factors."""
        takes_long = tuple(map(self.apart, batch.sequences))
        long_B1 = constant(takes_long, placement.positions_BT.device)[:, None]
        short_BT = placement.positions_BT.clamp(0, self._last_short)
        long_BT = placement.positions_BT.clamp(0, self._context - 1) + FAR
        return attrs.evolve(placement, positions_BT=long_BT.where(long_B1, short_BT))


def _boundaries(module: torch.nn.Module) -> list[int]:
    """Return the lengths beyond which a rotary module takes long factors, one for each kind of layer that has them."""
    kinds, config = getattr(module, "rope_type", None), getattr(module, "config", None)
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None or not isinstance(kinds, str | dict):
        return []
    told = [(kinds, parameters)] if isinstance(kinds, str) else [(kinds[layer], parameters[layer]) for layer in kinds]
    return [int(one["original_max_position_embeddings"]) for kind, one in told if kind == "longrope"]


def _by_rows(
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    boundary: int,
    x: torch.Tensor,
    position_ids: torch.Tensor,
    *arguments: Any,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Return the cosines and sines (B, T, D) of positions: from :data:`FAR` on those that a position beyond the boundary gives."""
    long_BT = position_ids >= FAR
    ids_BT, further_B1 = position_ids.where(long_BT, FAR) - FAR, torch.full_like(position_ids[..., :1], boundary)
    of_long = forward(x, torch.cat([ids_BT, further_B1], dim=-1), *arguments, **options)
    of_short = forward(x, position_ids.where(~long_BT, 0), *arguments, **options)
    return tuple(
        one[..., :-1, :].where(long_BT[..., None], other) for one, other in zip(of_long, of_short, strict=True)
    )


def counted_positions(model: PreTrainedModel, called: str) -> CountedPositions:
    """Return how a model counts positions by itself, as a kind that a plugin has registered knows it.

    Raises:
        ModelError: two kinds know it.
        ContractError: a kind raises an error, or returns something else.
    """
    found: dict[str, CountedPositions] = {}
    for entry in registry().of("position kind"):
        kind: PositionKind = registry().make("position kind", entry.name)
        require_members("position kind", kind, told := str(entry))
        counted = call_kind(told, "find", kind.find, model)
        if isinstance(counted, CountedPositions):
            found[told] = counted
        elif counted is not None:
            raise ContractError(f"{told}: find() must return CountedPositions or None, got {literal(counted)}")
    if len(found) > 1:
        raise ModelError(f"{called} counts positions as {' and '.join(found)} know it: expected one kind that does")
    return next(iter(found.values()), UNCOUNTED)


def context_length(config: Any) -> int | None:
    """Return the longest sequence of a language model, in tokens, or None if its configuration does not say."""
    return getattr(config, "max_position_embeddings", None) or getattr(config, "max_target_positions", None)


def takes_position_ids(model: torch.nn.Module) -> bool:
    """Return whether a model takes positions, by name or among what it hands to a language model inside that does."""
    given = parameters(model)
    if "position_ids" in given:
        return True
    inside = getattr(model, "get_decoder", lambda: None)()
    hands_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())
    return hands_on and isinstance(inside, torch.nn.Module) and "position_ids" in parameters(inside)


def parameters(module: torch.nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the ``forward`` that a module has outside of our forwards."""
    return _parameters(cast(Any, type(module)))


@functools.lru_cache(maxsize=1024)
def _parameters(kind: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind.forward).parameters
