"""An engine's bound of memory: how its requests are decoded within it, and which of them cannot be."""

from __future__ import annotations

import weakref
from typing import Any

import attrs

from specframe.contracts.requests import Request
from specframe.engine.parts import Parts
from specframe.engine.pool import Pool
from specframe.errors import ModelError, PromptError
from specframe.plugins.recipe import Recipe
from specframe_memory.footprint import Workload
from specframe_memory.memory_plan import Fallback, Kinds, Ladder, kind_of, ladder_of, too_little
from specframe_memory.meta_parts import hollow_parts
from specframe_memory.profiled_rounds import ROUNDS

AHEAD = 0.25
"""Share by which a sequence longer than all before may be longer yet without more memory profiling, if that fits: sorted prompts
would be profiled one by one. Where it does not fit a quarter of it is tried the next time."""


@attrs.define
class MemoryPlans:
    """What is known of the runs of models and strategies, whichever engine decodes them."""

    hollow: Parts | None = None
    """The models without weights, with strategies that were copied before any run has started them."""
    ladders: dict[bool, Ladder] = attrs.Factory(dict)
    """What runs take: of greedy requests alone, and of others."""


_PLANS: weakref.WeakKeyDictionary[Parts, MemoryPlans] = weakref.WeakKeyDictionary()


def plans_of(parts: Parts) -> MemoryPlans:
    """Return what is known of the runs of models and strategies."""
    return _PLANS.setdefault(parts, MemoryPlans())


SHORT = Workload(1, 2, 2 + 2 * ROUNDS)
"""As short a sequence as memory profiling takes. Where it does not fit no request is at fault."""


class PlannedBound:
    """Plans runs within a bound, for all kinds of requests that there have been, and refuses those that fit into none.

    Args:
        recipe: the options of the engine, of which ``memory`` is the bound.
        parts: models, and strategies that no run has started.
    """

    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        self._recipe, self._parts = recipe, parts
        self._nbytes: int = recipe.memory
        self._kinds: dict[Any, tuple[Request, ...]] = {}
        """Requests of each kind; a sample that begins from another's row has that one before it."""
        self._fitting: tuple[int, int] | None = None
        """A prompt and a length that every unfinished request is within, and that fit."""
        self._ahead = AHEAD

    def take(self, request: Request, pool: Pool, joined: bool) -> bool:
        """Take a request that is to be added to a pool, and return whether one of its kind was there before.

        Args:
            request: the request.
            pool: has those that have not finished.
            joined: whether its prefill may have to be repeated in the middle, together with others that come.

        Raises:
            PromptError: with what the pool has it does not fit, in one row and without a drafter.
        """
        known = (kind := kind_of(request)) in self._kinds
        self._kinds.setdefault(kind, with_parent(request))
        prompt, longest = len(request.prompt_ids), pool.limit(request)
        within = self._fitting is not None and prompt <= self._fitting[0] and longest <= self._fitting[1]
        if not (known and within):
            try:
                self._require(request, pool, joined)
            except PromptError:
                if not known:
                    del self._kinds[kind]
                raise
        return known

    def _require(self, request: Request, pool: Pool, joined: bool) -> None:
        """Raise :class:`PromptError` where a request does not fit with the others of a pool, whose lengths it may share."""
        longest = max(pool.limit(one) for one in (request, *pool.requests))
        prompt = longest - 1 if joined else max(len(request.prompt_ids), pool.longest_start)
        ladder = self._ladder(greedy := request.plan.greedy and all(one.plan.greedy for one in pool.requests))
        kinds = self._like(greedy)

        def taken(size: Workload) -> int:
            return ladder.step(size, 0, kinds).footprint.total

        alone = Workload(1, prompt, longest)
        if (least := taken(alone)) > self._nbytes:
            if taken(SHORT) > self._nbytes:
                return  # nothing fits: opening a run ends it, with both numbers
            raise PromptError(too_little(least, alone, self._nbytes))
        first, self._fitting = self._fitting is None, (prompt, longest)
        end = min(int(longest * (1 + self._ahead)), pool.context)
        ahead = min(prompt + end - longest, end - 1), end
        if first or end == longest:
            return
        if taken(Workload(1, *ahead)) <= self._nbytes:
            self._fitting = ahead
        else:
            self._ahead /= 4

    def step(self, pool: Pool, greedy: bool, rows: int, room: int, joined: bool) -> tuple[Fallback, int, int]:
        """Return how a pool's requests are decoded, with the prompt and the length that there is room for.

        Args:
            pool: has those that have not finished.
            greedy: whether none of them has a temperature.
            rows: to decode together at most.
            room: a length that there is to be room for, if it fits.
            joined: whether further requests come, with prompts of any length, if these fit.

        Raises:
            ModelError: no fallback configuration fits.
        """
        own, start = max(map(pool.limit, pool.requests)), pool.longest_start
        wanted = max(room, own)
        sizes = [(min(start, own - 1), own)]
        if joined:
            sizes = [(wanted - 1, wanted), (own - 1, own), *sizes]
        elif wanted > own:
            sizes = [(min(start, wanted - 1), wanted), *sizes]
        for prompt, longest in sizes[:-1]:
            try:
                return self._chosen(greedy, rows, prompt, longest), prompt, longest
            except ModelError:
                continue
        return self._chosen(greedy, rows, *sizes[-1]), *sizes[-1]

    def _chosen(self, greedy: bool, rows: int, prompt: int, longest: int) -> Fallback:
        return self._ladder(greedy).choose(self._nbytes, Workload(rows, prompt, longest), self._like(greedy))

    def _ladder(self, greedy: bool) -> Ladder:
        plans = plans_of(self._parts)
        if greedy not in plans.ladders:
            plans.hollow = plans.hollow or hollow_parts(self._recipe, self._parts)
            plans.ladders[greedy] = ladder_of(self._recipe, plans.hollow, greedy)
        return plans.ladders[greedy]

    def _like(self, greedy: bool) -> Kinds:
        """Return what rows may be like: all of one kind, for each kind, or of all kinds in turn."""
        kinds = [kind for kind in self._kinds.values() if kind[-1].plan.greedy or not greedy]
        mixed = tuple(attrs.evolve(one, index=number) for number, kind in enumerate(kinds) for one in kind)
        return [*kinds, mixed] if len(kinds) > 1 else kinds


def with_parent(request: Request) -> tuple[Request, ...]:
    """Return a request after the one whose row it begins from, if it begins from another's."""
    first = (attrs.evolve(request, sample=0),) if request.sample else ()
    return *first, request
