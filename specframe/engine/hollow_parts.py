"""Models without weights, and strategies that no other run uses: the parts of a dry run."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import torch
from torch.nn import Module
from transformers import PreTrainedModel

from specframe.engine.constraints import Constraints
from specframe.engine.parts import Parts, compose_recipe, of_transformers
from specframe.errors import OptionError
from specframe.forward.runner import ModelRunner
from specframe.models.hollow import hollow, hollow_of
from specframe.models.loading import read_config
from specframe.models.precision import stored_dtype
from specframe.plugins.compose import OPTIONS, strategy
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry


def hollow_parts(recipe: Recipe, parts: Parts) -> Parts:
    """Return copies of models without weights, and strategies of their own, for the same options.

    Raises:
        OptionError: a strategy is an object that cannot be copied, or the target is no model of transformers.
    """
    target = of_transformers(parts.target, "memory")
    _, _, _, use = compose_recipe(fresh(recipe))
    if type(use.drafter) is not type(parts.composition.drafter):  # a draft model of another vocabulary
        name = registry().default("draft model of another vocabulary")
        use = attrs.evolve(use, drafter=strategy(registry(), "drafter", name))
    empty = hollow(target)
    draft = None if parts.draft is None else empty if parts.draft is target else hollow(parts.draft)
    made = Parts(ModelRunner(empty, "target"), parts.tokenizer, use, parts.constraints.hollow(), draft)
    made.draft_tokenizer, made.draft_context = parts.draft_tokenizer, parts.draft_context
    return made


def named_parts(recipe: Recipe, dtype: torch.dtype | None) -> Parts:
    """Return the models that a recipe names, made of their configurations without weights, and its strategies.

    Args:
        recipe: the options of a run.
        dtype: of both models; None: each in the one that it was saved in, or else in bfloat16.

    Raises:
        SpecframeError: one sentence on what cannot be found, made or combined.
    """
    target, _, draft, use = compose_recipe(recipe)
    made = [
        None if name is None else empty_model(name, role, dtype)
        for name, role in ((target, "target"), (draft, "draft"))
    ]
    assert made[0] is not None
    runner = ModelRunner(made[0], "target")
    return Parts(runner, None, use, Constraints(None, runner.vocabulary, None), made[1])


def empty_model(name: str, role: str, dtype: torch.dtype | None) -> PreTrainedModel:
    """Return the model of a name without weights."""
    config = read_config(name, role)
    return hollow_of(config, dtype or stored_dtype(config) or torch.bfloat16)


def fresh(recipe: Recipe) -> Recipe:
    """Return options with copies of the strategies that were given as objects: a dry run leaves its marks on them."""
    given: dict[str, Any] = {}
    for kind, option in OPTIONS.items():
        one = getattr(recipe, option)
        if kind == "executor" or one is None or isinstance(one, str | int | Module):
            continue
        try:
            given[option] = copy.deepcopy(one)
        except Exception as error:  # whatever a stranger's object raises
            raise OptionError(
                f"memory: expected {kind} by name, or an object that can be copied, got {type(one).__name__}"
            ) from error
    return attrs.evolve(recipe, **given)
