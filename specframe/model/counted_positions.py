"""How a model takes the positions of its tokens: as an argument, or counted by itself and told by a plugin."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from specframe.contracts.positions import UNCOUNTED, CountedPositions, PositionKind
from specframe.errors import ContractError, ModelError, literal
from specframe.model.row_states import call_kind
from specframe.plugins.protocols import require_members
from specframe.plugins.registry import registry


def counted_positions(model: PreTrainedModel, called: str) -> CountedPositions:
    """Return how a model counts positions by itself, as a kind that a plugin has registered knows it.

    Args:
        model: the model.
        called: what errors call it.

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


def position_ids(model: torch.nn.Module, positions_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the positions of tokens as arguments of a model's ``forward``: none if it takes none."""
    return {"position_ids": positions_BT} if takes_position_ids(model) else {}


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
    kind: Any = type(module)
    return _parameters(kind)


@functools.lru_cache(maxsize=1024)
def _parameters(kind: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind.forward).parameters


def takes(module: torch.nn.Module, *names: str) -> bool:
    """Return whether the ``forward`` of a module has all these parameters."""
    return parameters(module).keys() >= {*names}
