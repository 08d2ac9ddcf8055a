"""The models, tokenizers and strategies that a recipe names, and the constraints that its requests do."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import attrs
from transformers import PreTrainedModel

from specframe.contracts.constraints import Constraint
from specframe.contracts.engine import Executor, LoadingExecutor
from specframe.contracts.model import Model
from specframe.contracts.requests import Request
from specframe.engine.guards.guard_table import guard
from specframe.errors import OptionError, PromptError, SpecframeError, SpecframeWarning
from specframe.model.open_stores import Stores
from specframe.model.positions import context_length
from specframe.model.runner import ModelRunner
from specframe.models import loading, vocabulary
from specframe.models.pairs import check_location, choose, is_model
from specframe.plugins.compose import Composition, compose, strategy
from specframe.plugins.registry import parse_specification, registry
from specframe.text.constrained_logits import Guide

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from specframe.plugins.recipe import Recipe

KEPT = 256
"""Constraints that are kept for later requests, at most."""


class Constraints:
    """Makes the constraints that requests ask for, and the guide of each request.

    Args:
        usual: the constraint of requests that name none: a name, an object, or None.
        vocabulary, tokenizer: the target's; None if it has no tokenizer.
    """

    def __init__(self, usual: Any, vocabulary: int, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._usual, self._vocabulary, self._tokenizer = usual, vocabulary, tokenizer
        self._made: dict[Any, tuple[Any, Constraint]] = {}

    def of(self, request: Request) -> Constraint | None:
        """Return the constraint of a request, or None if it has none.

        Raises:
            SpecframeError: nothing provides the name or an option, or the object is no constraint.
        """
        given = self._usual if request.constraint is None else request.constraint
        if given is None:
            return None
        key = given if isinstance(given, str) else id(given)
        if key not in self._made:
            made = guard("constraint", strategy(registry(), "constraint", given))
            if len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            self._made[key] = given, made  # the object is held, so that no other one has its identity
        return self._made[key][1]

    def require(self, request: Request) -> None:
        """Raise :class:`PromptError` where the constraint of a request cannot be had."""
        try:
            self.of(request)
        except SpecframeError as error:
            raise PromptError(str(error)) from error

    def guide(self, request: Request) -> Guide | None:
        """Return the guide of a request that is given a row, or None if it has no constraint."""
        constraint = self.of(request)
        return None if constraint is None else Guide(constraint, request, self._vocabulary, self._tokenizer)


@attrs.define(eq=False)
class Parts:
    """The models, tokenizers and strategies of a recipe, made once and used by one run after the other.

    Strategies keep state: engines that are open at the same time need parts of their own, on the same models where that is wanted.
    """

    runner: Model
    """The target."""
    tokenizer: PreTrainedTokenizerBase | None
    composition: Composition
    """The strategies of a run without temperatures."""
    constraints: Constraints
    """The constraints that requests name."""
    draft: PreTrainedModel | None = None
    """The draft language model, for drafters that use one."""
    draft_tokenizer: PreTrainedTokenizerBase | None = None
    draft_context: int | None = None
    """The longest sequence of the draft model, in its tokens, or None if it has no bound."""

    stores: Stores = attrs.field(factory=Stores, init=False)
    """The caches' stores between two runs; an engine that is open has taken them out."""

    @property
    def target(self) -> PreTrainedModel:
        """The model whose output is wanted."""
        return cast(PreTrainedModel, self.runner.module)

    def renew(self) -> None:
        """Have the target run anew where its modules, settings or adapters have changed since it was last run."""
        if isinstance(self.runner, ModelRunner) and not self.runner.serves(self.runner.module):
            self.runner = ModelRunner(self.runner.module, self.runner.role)

    def strategies(self, recipe: Recipe, greedy: bool) -> Composition:
        """Return the strategies of a run; ``greedy``: no request has a temperature."""
        return self.composition if greedy else self.composition.sampling(registry(), recipe)


def compose_recipe(recipe: Recipe) -> tuple[Any, Any, Any, Composition]:
    """Return target, drafter and draft model of a recipe as :func:`specframe.models.pairs.choose` does, and its strategies."""
    if recipe.memory is not None:
        registry().entry("option", "memory")
    given = loading.unwrap_model(recipe.target, "target"), loading.unwrap_model(recipe.drafter, "draft")
    target, drafter, draft = choose(*given)
    if recipe.constraint is not None:
        strategy(registry(), "constraint", recipe.constraint)
    return target, drafter, draft, compose(registry(), recipe, drafter)


def check_strategies(recipe: Recipe) -> None:
    """Raise a :class:`SpecframeError` where a recipe's names cannot be found or combined; no model is loaded."""
    target, _, draft, _ = compose_recipe(recipe)
    loading.keywords(recipe.load_options)
    for role, model in (("target", target), ("draft", draft)):
        if isinstance(model, str):
            check_location(role, model)


def parts_of(recipe: Recipe, executor: Executor | None = None) -> Parts:
    """Load and make everything that a recipe names; strategies are composed before any model is loaded.

    Args:
        recipe: the options of a run.
        executor: decides how models are loaded if it offers "loading", or None for as they are.

    Raises:
        SpecframeError: one sentence on what cannot be found, loaded or combined.
    """
    target, drafter, draft, use = compose_recipe(recipe)
    device, load = device_and_loader(recipe, executor)
    dtype, options = loading.pick_dtype(recipe.dtype, device), loading.keywords(recipe.load_options)

    def loaded(model: Any, role: str) -> PreTrainedModel:
        return loading.load_model(model, role, device, dtype, load, options)

    runner: Model = target if is_model(target) else ModelRunner(loaded(target, "target"), "target")
    tokenizer = loading.load_tokenizer(target) if recipe.tokenizer is None else recipe.tokenizer
    drafting = None if draft is None else loaded(draft, "draft")
    if (longest := use.policy.maximum.nodes) >= runner.context:
        raise OptionError(
            f"draft_length: expected fewer tokens than the target's context of {runner.context}, got {longest}"
        )
    if use.numerics is not None:
        for role, one in (("target", runner.module), ("draft", drafting)):
            if one is not None:
                use.numerics.require(of_transformers(one, "bitwise"), f"the {role} ({type(one).__name__})")
    constraints = Constraints(recipe.constraint, runner.vocabulary, tokenizer)
    parts = Parts(runner, tokenizer, use, constraints, drafting)
    if drafting is not None:
        parts.draft_tokenizer = loading.load_tokenizer(draft)
        _fit_drafter(parts, drafter)
    return parts


def of_transformers(model: torch.nn.Module, option: str) -> PreTrainedModel:
    """Return a model as one of transformers; raise :class:`OptionError` where it is none."""
    if not isinstance(model, PreTrainedModel):
        raise OptionError(f"{option}: expected a model of transformers, got {type(model).__name__}")
    return model


def device_and_loader(recipe: Recipe, executor: Executor | None) -> tuple[torch.device, loading.Load]:
    """Return the device of a recipe's models, and what loads them."""
    if executor is None or "loading" not in executor.offers:
        return loading.pick_device(recipe.device), loading.whole
    loads = cast(LoadingExecutor, executor)
    return loads.device(recipe), loads.load


def _fit_drafter(parts: Parts, drafter: str) -> None:
    """Have the drafter translate if the draft model has another vocabulary."""
    assert parts.draft is not None
    of_transformers(parts.target, "a target with a draft model")
    parts.draft_context = context_length(parts.draft.config.get_text_config())
    if vocabulary.share_vocabulary(parts.target, parts.draft, parts.tokenizer, parts.draft_tokenizer):
        return
    if parse_specification(drafter)[1]:
        raise OptionError(
            f"drafter {drafter!r}: expected a draft model with the target's vocabulary for these options, got one that has to "
            "draft by way of text"
        )
    translating = strategy(registry(), "drafter", registry().default("draft model of another vocabulary"))
    parts.composition = attrs.evolve(parts.composition, drafter=translating)
    warnings.warn(
        "the draft model has another tokenizer than the target: it drafts by way of text, greedily",
        SpecframeWarning,
        stacklevel=6,  # who makes the pipeline
    )
