"""Models without weights, and strategies that no other run uses: the parts of memory profiling."""

from __future__ import annotations

import copy
from collections.abc import Sequence as Rows
from typing import Any

import attrs
import torch
from torch.nn import Module
from transformers import PreTrainedModel

from specframe.contracts.engine import Value
from specframe.contracts.roles import Observer
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.engine.parts import Constraints, Parts, compose_recipe, of_transformers
from specframe.errors import OptionError
from specframe.model.runner import ModelRunner
from specframe.models.loading import read_config
from specframe.plugins.compose import OPTIONS, strategy
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe_memory.meta_constraints import MetaConstraints
from specframe_memory.meta_models import META, hollow_of


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
    runner = ModelRunner(empty, "target")
    constraints = MetaConstraints(recipe.constraint, runner.vocabulary, parts.tokenizer)
    made = Parts(runner, parts.tokenizer, use, constraints, draft)
    made.draft_tokenizer, made.draft_context = parts.draft_tokenizer, parts.draft_context
    return made


def named_parts(recipe: Recipe, dtype: torch.dtype | None) -> Parts:
    """Return the models that a recipe names, made of their configurations without weights, and its strategies.

    Args:
        recipe: the options of a run.
        dtype: of both models, or None if each in the one that it was saved in, or else in bfloat16.

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
    return hollow_of(read_config(name, role), dtype)


def fresh(recipe: Recipe) -> Recipe:
    """Return options with copies of the strategies that were given as objects: memory profiling changes them."""
    given: dict[str, Any] = {}
    for kind, option in OPTIONS.items():
        one = getattr(recipe, option)
        if kind == "executor" or one is None or isinstance(one, str | int | Module):
            continue
        try:
            given[option] = copy.deepcopy(one)
        except Exception as error:  # whatever a third party's object raises
            raise OptionError(
                f"memory: expected {kind} by name, or an object that can be copied, got {type(one).__name__}"
            ) from error
    return attrs.evolve(recipe, **given)


def hollow(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model whose weights have shapes and no numbers."""
    memo: dict[int, Any] = {
        id(one): torch.nn.Parameter(torch.empty_like(one, device=META), requires_grad=False)
        for one in model.parameters()
    }
    memo |= {id(one): torch.empty_like(one, device=META) for one in model.buffers()}
    return copy.deepcopy(model, memo)


class Alone:
    """The executor of an engine of memory profiling."""

    offers: frozenset[str] = frozenset()

    def broadcast(self, value: Value) -> Value:
        """Return the value itself."""
        return value


def meta_engine(recipe: Recipe, parts: Parts, observers: Rows[Observer] = ()) -> LocalEngine:
    """Return an engine for memory profiling, watched by nobody but these observers."""
    return LocalEngine(attrs.evolve(recipe, memory=None), parts, observers, HandClock(), Alone(), installed=False)
