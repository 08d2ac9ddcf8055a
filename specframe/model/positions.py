"""How a model takes the positions of its tokens: as an argument, or counted by itself as a plugin's kind knows it, with what its
rotary factors depend on.

Some factors (rope type "longrope": Phi-3 long, Phi-4-mini, MiniCPM3) depend on the longest position of a forward: where any
position is beyond ``original_max_position_embeddings``, all its tokens take another set of factors, and keys cached with the
first set do not fit the second. So sequences that stay within that length and sequences that begin beyond it are decoded one
group after the other, and a sequence that may cross it is refused.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from specframe.contracts.positions import UNCOUNTED, CountedPositions, PositionKind
from specframe.contracts.requests import Request
from specframe.errors import ContractError, ModelError, literal
from specframe.model.state_layers import call_kind
from specframe.model.twin import own
from specframe.plugins.protocols import require_members
from specframe.plugins.registry import registry


class Rope:
    """Dependence of a model's rotary factors on sequence lengths, ``context`` at most; most models have none."""

    def __init__(self, model: PreTrainedModel, context: int, name: str) -> None:
        told = {module: found for module in model.modules() if (found := _boundaries(module))}
        self._modules, self._context, self._name = [*told], context, name
        self._boundary = min((min(found) for found in told.values()), default=context)
        self.forwards: Mapping[torch.nn.Module, Callable[..., Any]] = {}
        """The functions called in place of rotary modules' ``forward``: they give all positions the long factors."""
        self.last_position = context - 1
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

    def group(self, request: Request) -> bool:
        """Return the group that a request belongs to: whether it takes long factors. One run decodes requests of one group."""
        return bool(self._modules) and len(request.prompt_ids) > self._boundary

    @contextlib.contextmanager
    def decoding(self, group: bool) -> Iterator[None]:
        """Have forwards inside the block take the factors of a group."""
        before = self.forwards, self.last_position
        self.forwards = {}
        if group:
            self.forwards = {one: functools.partial(_beyond, own(one), self._boundary) for one in self._modules}
        self.last_position = (self._context if group else min(self._context, self._boundary)) - 1
        try:
            yield
        finally:
            self.forwards, self.last_position = before


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
