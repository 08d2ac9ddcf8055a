"""A pair by its names: what the target's forwards cost, and those of its drafts."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from specframe.errors import OptionError, literal
from specframe.models.loading import pick_dtype, read_config
from specframe.models.pairs import by_model, choose
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe_lab.prediction.counted_drafts import CountedDrafts
from specframe_lab.prediction.forward_times import Drafts, FreeDrafts
from specframe_lab.prediction.model_costs import ModelCosts, costs_of


@attrs.frozen
class Pair:
    """A target and what drafts for it, or None if nothing does."""

    target: ModelCosts
    drafts: Drafts | None


def read_pair(target: str | None, drafter: str, dtype: str) -> Pair:
    """Return the costs of a pair. No weights are loaded.

    Raises:
        SpecframeError: it cannot be found, made or combined.
    """
    known, precision = registry(), precision_of(dtype)
    name, strategy, draft = choose(target, drafter)
    costs, kind = costs_of(read_config(name, "target"), precision), strategy.partition(",")[0]
    if kind == known.default("plain decoding"):
        return Pair(costs, None)
    if kind == known.default("prompt lookup"):
        return Pair(costs, FreeDrafts())
    if kind == by_model():
        return Pair(costs, costs_of(read_config(required(draft, drafter), "draft"), precision))
    return Pair(costs, CountedDrafts(Recipe(target, drafter).checked().named(known), precision))


def required(draft: Any, drafter: str) -> Any:
    """Return a draft model; raise :class:`OptionError` where a drafter has none."""
    if draft is None:
        raise OptionError(f"--drafter: expected a draft model, got {literal(drafter)}, for which none is known")
    return draft


def configurations(target: str | None, drafter: str) -> tuple[Any, Any]:
    """Return the configurations of a target and its draft model, None where there is none."""
    name, _, draft = choose(target, drafter)
    return read_config(name, "target"), None if draft is None else read_config(draft, "draft")


def precision_of(dtype: str) -> torch.dtype | None:
    """Return the precision of a name, or None for that of the files."""
    return None if dtype == "auto" else pick_dtype(dtype, torch.device("cpu"))
