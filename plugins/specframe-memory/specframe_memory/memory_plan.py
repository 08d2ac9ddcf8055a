"""The rows and the draft that a budget of memory suffices for: the first fallback configuration whose run fits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import Any

import attrs

from specframe.contracts.drafts import Budget
from specframe.contracts.requests import Request
from specframe.engine.budgets import NOTHING
from specframe.engine.parts import Parts
from specframe.errors import ModelError, SpecframeError
from specframe.plugins.compose import Composition, strategy
from specframe.plugins.recipe import Recipe
from specframe.plugins.registry import registry
from specframe.value_checks import UNITS
from specframe_memory.capped_drafts import capped
from specframe_memory.footprint import Footprint, Workload
from specframe_memory.memory_profile import DryRun

Kinds = Rows[Rows[Request]]
"""Requests that the sequences of a run may be like in all but their tokens, in turn; of several such those that take most count."""

ANY: Kinds = ((),)
"""Nothing is known of requests: greedy ones."""

Change = Callable[[Composition], Composition]
"""Returns the strategies of a run in another form."""

EIGHT_BITS = "draft_dtype=int8"
"""The option of KV backends that keeps the caches of drafts in 8 bits; no token depends on it under rules that draw the same tokens
whatever is drafted."""


@attrs.frozen
class Configuration:
    """A list of fallback configurations of one form of the run: each drafts less or has fewer rows than the one before."""

    run: DryRun
    """Profiles its memory."""
    drafts: bool = True
    """Whether there is a drafter."""
    change: Change = attrs.field(default=lambda use: use, eq=False)
    """Gives a run's strategies this form."""


@attrs.frozen
class Fallback:
    """A fallback configuration: how a run is decoded, and what it takes."""

    rows: int
    """Rows decoded together."""
    budget: Budget
    """The most that is drafted."""
    form: Configuration
    footprint: Footprint

    def strategies(self, use: Composition) -> Composition:
        """Return the strategies of a run at this step."""
        return capped(self.form.change(use), self.budget)


class Ladder:
    """The steps that a run goes down until it fits: shorter drafts, or trees with fewer nodes, then other forms, then fewer rows.

    Args:
        forms: the forms of the run, in their order: first those that draft, then the one that does not, which there always is.
        maximum: the most that the run's policy drafts.
    """

    def __init__(self, forms: Rows[Configuration], maximum: Budget) -> None:
        self.forms, self.maximum = forms, maximum
        self._known: dict[Any, Fallback] = {}

    @property
    def drafts(self) -> bool:
        """Whether the run has a drafter."""
        return self.forms[0].drafts

    def step(self, load: Workload, nodes: int, kinds: Kinds = ANY, form: Configuration | None = None) -> Fallback:
        """Return what decoding takes with up to ``nodes`` drafted nodes, or without a drafter for 0.

        Args:
            load: the sequences.
            nodes: of a draft, at most.
            kinds: what the sequences may be like: that which takes the most bytes counts.
            form: of the run, or None for the first that drafts, or does not.
        """
        form = form or next(one for one in self.forms if one.drafts == (nodes > 0))
        key = self.forms.index(form), load, nodes, tuple(tuple(map(kind_of, like)) for like in kinds)
        if key not in self._known:
            budget = Budget(min(self.maximum.depth, nodes), nodes) if nodes else NOTHING
            footprints = [form.run.footprint(load, budget, like) for like in kinds]
            most_bytes = max(footprints, key=lambda one: one.total)
            self._known[key] = Fallback(load.rows, budget, form, most_bytes)
        return self._known[key]

    def choose(self, nbytes: int, load: Workload, kinds: Kinds = ANY) -> Fallback:
        """Return the first configuration that takes no more than the budget.

        More rows take more bytes, and so do more nodes. The most rows that fit are found with the shortest draft in the last form
        that drafts; then the first form that fits with these rows, and its longest draft.

        Raises:
            ModelError: none does.
        """

        def taken(form: Configuration, rows: int, nodes: int) -> int:
            return self.step(attrs.evolve(load, rows=rows), nodes, kinds, form).footprint.total

        drafting = [form for form in self.forms if form.drafts]
        plain = self.forms[-1]
        for forms, shortest, longest in ((drafting, 1, self.maximum.nodes), ([plain], 0, 0)):
            if not forms:
                continue
            if taken(forms[0], load.rows, longest) <= nbytes:
                return self.step(load, longest, kinds, forms[0])
            if rows := most(functools.partial(taken, forms[-1], nodes=shortest), load.rows, nbytes):
                form = next(one for one in forms if taken(one, rows, shortest) <= nbytes)
                nodes = most(functools.partial(taken, form, rows), longest, nbytes) if longest else 0
                return self.step(attrs.evolve(load, rows=rows), nodes, kinds, form)
        least = taken(plain, 1, 0)
        raise ModelError(too_little(least, load, nbytes))


def kind_of(request: Request) -> Any:
    """Return what of a request the memory of its run depends on, apart from its lengths."""
    plan = request.plan
    formulas = tuple(kind and kind.formula for kind in plan.kinds)  # their parameters take nothing
    constrained = request.constraint is not None  # whatever it allows, masks have the same size
    return plan.greedy, formulas, plan.own, request.sample > 0, request.speculate, request.logprobs, constrained


def too_little(least: int, load: Workload, nbytes: int) -> str:
    """Return the sentence on a bound that a sequence does not fit into."""
    return (
        f"memory: expected at least {bytes_told(least)} for one sequence of {load.longest} tokens, with a prompt of {load.prompt}, "
        f"got {bytes_told(nbytes)}"
    )


def most(taken: Callable[[int], int], end: int, bound: int) -> int:
    """Return the largest number from 1 to ``end`` that takes no more than the bound, or 0 if none does.

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


def ladder_of(recipe: Recipe, hollow: Parts, greedy: bool) -> Ladder:
    """Return the fallback configurations of a run.

    Args:
        recipe: its options.
        hollow: its models on the meta device, and strategies that no other run uses.
        greedy: whether no request has a temperature.

    Raises:
        ModelError: the models cannot be fed at all.
    """
    use = hollow.strategies(recipe, greedy)
    run = DryRun(recipe, attrs.evolve(hollow, composition=use))
    plain = strategy(registry(), "drafter", registry().default("plain decoding"))
    if isinstance(use.drafter, type(plain)):
        return Ladder([Configuration(run, drafts=False)], use.policy.maximum)
    changes = [change for change in (eight_bits(recipe, use),) if change and hollow.draft is not None]
    forms = [Configuration(run), *(Configuration(run.composed(change(use)), change=change) for change in changes)]
    return Ladder(
        [*forms, Configuration(run.undrafted(undrafted(use)), drafts=False, change=undrafted)], use.policy.maximum
    )


def eight_bits(recipe: Recipe, use: Composition) -> Change | None:
    """Return what keeps the caches of drafts in 8 bits, or None if the KV backend has no option for it, or is an object."""
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


def bytes_told(count: int) -> str:
    """Return an amount of memory as messages write it: 22,400,000,000 bytes (22.40 GB), 12 bytes."""
    rounded = next((f" ({count / UNITS[unit]:.2f} {unit})" for unit in ("GB", "MB", "KB") if count >= UNITS[unit]), "")
    return f"{count:,} bytes{rounded}"
