"""The rows and the draft that a budget of memory suffices for: the first step of a ladder whose run fits."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import Any

import attrs
import numpy as np
import torch
from torch.nn import Module
from transformers import PreTrainedModel

from specframe.contracts.drafts import Budget
from specframe.contracts.engine import Clock
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import BudgetPolicy
from specframe.contracts.round import Batch
from specframe.contracts.run import Run
from specframe.engine.budgets import NOTHING
from specframe.engine.constraints import Constraints
from specframe.engine.dry_run import CountedEngine, DryRun, Footprint, Workload, hollow, hollow_of
from specframe.engine.parts import Parts, compose_recipe, of_transformers
from specframe.errors import ModelError, OptionError, SpecframeError
from specframe.forward.runner import ModelRunner
from specframe.models.loading import read_config
from specframe.models.precision import stored_dtype
from specframe.plugins.compose import OPTIONS, Composition, strategy
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe.value_checks import bytes_told

Make = Callable[[Recipe, Parts, Clock], CountedEngine]
"""Makes an engine of this process without installed observers."""


Change = Callable[[Composition], Composition]
"""Returns the strategies of a run in another form."""

EIGHT_BITS = "draft_dtype=int8"
"""The option of KV backends that keeps the caches of drafts in 8 bits; no token depends on it under rules that draw the same tokens
whatever is drafted."""


@attrs.frozen
class Form:
    """A part of the ladder: a form of the run, of whose steps each drafts less or has fewer rows than the one before."""

    run: DryRun
    """Tells its memory."""
    drafts: bool = True
    """Whether there is a drafter."""
    change: Change = attrs.field(default=lambda use: use, eq=False)
    """Gives a run's strategies this form."""


@attrs.frozen
class Step:
    """A step of the ladder: how a run is decoded, and what it takes."""

    rows: int
    """Rows decoded together."""
    budget: Budget
    """The most that is drafted."""
    form: Form
    footprint: Footprint


class Ladder:
    """The steps that a run goes down until it fits: shorter drafts, or trees with fewer nodes, then other forms, then fewer rows.

    Args:
        forms: the forms of the run, in their order: first those that draft, then the one that does not, which there always is.
        maximum: the most that the run's policy drafts.
    """

    def __init__(self, forms: Rows[Form], maximum: Budget) -> None:
        self.forms, self.maximum = forms, maximum
        self._known: dict[Any, Step] = {}

    @property
    def drafts(self) -> bool:
        """Whether the run has a drafter."""
        return self.forms[0].drafts

    def step(self, load: Workload, nodes: int, like: Rows[Request] = (), form: Form | None = None) -> Step:
        """Return what decoding with up to so many drafted nodes takes; 0: without a drafter.

        Args:
            load: the sequences.
            nodes: of a draft, at most.
            like: requests that the sequences are like.
            form: that the run has; None: the first that drafts, or does not.
        """
        form = form or next(one for one in self.forms if one.drafts == (nodes > 0))
        key = self.forms.index(form), load, nodes, tuple(map(signature, like))
        if key not in self._known:
            budget = Budget(min(self.maximum.depth, nodes), nodes) if nodes else NOTHING
            self._known[key] = Step(load.rows, budget, form, form.run.footprint(load, budget, like))
        return self._known[key]

    def choose(self, nbytes: int, load: Workload, like: Rows[Request] = ()) -> Step:
        """Return the first step that takes no more than so many bytes.

        More rows take more bytes, and so do more nodes. The most rows that fit are found with the shortest draft in the last form
        that drafts; then the first form that fits with so many rows, and its longest draft.

        Raises:
            ModelError: none does.
        """

        def taken(form: Form, rows: int, nodes: int) -> int:
            return self.step(attrs.evolve(load, rows=rows), nodes, like, form).footprint.total

        drafting = [form for form in self.forms if form.drafts]
        plain = self.forms[-1]
        for forms, shortest, longest in ((drafting, 1, self.maximum.nodes), ([plain], 0, 0)):
            if not forms:
                continue
            if taken(forms[0], load.rows, longest) <= nbytes:
                return self.step(load, longest, like, forms[0])
            if rows := most(functools.partial(taken, forms[-1], nodes=shortest), load.rows, nbytes):
                form = next(one for one in forms if taken(one, rows, shortest) <= nbytes)
                nodes = most(functools.partial(taken, form, rows), longest, nbytes) if longest else 0
                return self.step(attrs.evolve(load, rows=rows), nodes, like, form)
        least = taken(plain, 1, 0)
        raise ModelError(
            f"memory: expected at least {bytes_told(least)} for one sequence of {load.longest} tokens, with a prompt of "
            f"{load.prompt}, got {bytes_told(nbytes)}"
        )


def signature(request: Request) -> Any:
    """Return what of a request the memory of its run goes by, beside its lengths."""
    plan = request.plan
    return plan.greedy, plan.kinds, plan.own, request.sample, request.speculate, request.logprobs


def most(taken: Callable[[int], int], end: int, bound: int) -> int:
    """Return the largest number from 1 to ``end`` that takes no more than the bound; 0: none does.

    A larger number takes more, and nearly in proportion: the next one to be tried lies on the line between two that are known.
    """
    low, high = 1, end
    least, greatest = taken(low), taken(high)
    if least > bound:
        return 0
    if greatest <= bound:
        return end
    while high - low > 1:
        guess = low + (bound - least) * (high - low) // (greatest - least)
        middle = min(max(guess, low + 1), high - 1)
        found = taken(middle)
        if found <= bound:
            low, least = middle, found
        else:
            high, greatest = middle, found
    return low


def ladder_of(recipe: Recipe, hollow: Parts, greedy: bool, make: Make) -> Ladder:
    """Return the ladder of a run.

    Args:
        recipe: its options.
        hollow: its models without weights, and strategies that no other run uses.
        greedy: whether no request has a temperature.
        make: makes engines.

    Raises:
        ModelError: the models cannot be fed at all.
    """
    use = hollow.strategies(recipe, greedy)
    run = DryRun(recipe, attrs.evolve(hollow, composition=use), make)
    plain = strategy(registry(), "drafter", registry().default("plain decoding"))
    if isinstance(use.drafter, type(plain)):
        return Ladder([Form(run, drafts=False)], use.policy.maximum)
    changes = [change for change in (eight_bits(recipe, use),) if change and hollow.draft is not None]
    forms = [Form(run), *(Form(run.composed(change(use)), change=change) for change in changes)]
    return Ladder([*forms, Form(run.composed(undrafted(use)), drafts=False, change=undrafted)], use.policy.maximum)


def eight_bits(recipe: Recipe, use: Composition) -> Change | None:
    """Return what keeps the caches of drafts in 8 bits; None: the KV backend has no option for it, or is an object."""
    name = use.alignment.kv if recipe.kv is None else recipe.kv
    try:
        kv = registry().make("KV backend", f"{name},{EIGHT_BITS}") if isinstance(name, str) else None
    except SpecframeError:
        return None
    return None if kv is None else lambda use: attrs.evolve(use, kv=kv)


def undrafted(use: Composition) -> Composition:
    """Return the strategies of a run without its drafter."""
    name = registry().default("plain decoding")
    return attrs.evolve(use, drafter=strategy(registry(), "drafter", name), names={**use.names, "drafter": name})


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
    made = Parts(ModelRunner(empty, "target"), parts.tokenizer, use, parts.constraints, draft)
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


class Capped:
    """A draft-length policy whose drafts are no longer, and have no more nodes, than memory suffices for.

    Args:
        policy: decides how much of that is drafted.
        maximum: the most.
    """

    def __init__(self, policy: BudgetPolicy, maximum: Budget) -> None:
        self._policy, self.maximum = policy, maximum
        self.needs, self.offers = policy.needs, policy.offers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # there is no policy yet to ask
            raise AttributeError(name)
        return getattr(self._policy, name)

    def start(self, run: Run) -> None:
        """Begin a run."""
        self._policy.start(run)

    def budget(self, batch: Batch) -> Budget:
        """Return the policy's budget, as far as there is memory for it."""
        found, most = self._policy.budget(batch), self.maximum
        own: dict[str, Any] = {}
        if found.depths_B is not None:
            own["depths_B"] = np.minimum(found.depths_B, most.depth)
        if found.nodes_B is not None:
            own["nodes_B"] = np.minimum(found.nodes_B, most.nodes)
        return attrs.evolve(found, depth=min(found.depth, most.depth), nodes=min(found.nodes, most.nodes), **own)

    def observe(self, report: RoundReport) -> None:
        """Tell the policy of a round."""
        self._policy.observe(report)


def capped(use: Composition, step: Step) -> Composition:
    """Return the strategies of a run at a step of the ladder."""
    use = step.form.change(use)
    if step.budget.nodes >= use.policy.maximum.nodes:
        return use
    return attrs.evolve(use, policy=Capped(use.policy, step.budget))
