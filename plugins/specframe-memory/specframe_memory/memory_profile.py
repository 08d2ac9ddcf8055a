"""Memory profiling: decoding without weights and numbers, which counts the memory that a run takes.

The engine itself decodes, with all strategies of the run, on torch's device "meta", where a tensor has a shape and no memory. An
allocation counter adds up what each operator would take. Nothing here has a formula of its own, so a strategy, a store or a model
that is new is counted as it is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Sequence as Rows
from typing import Any, cast

import attrs
import torch

from specframe.contracts.cache import KVBackend
from specframe.contracts.drafts import Budget
from specframe.contracts.requests import Request
from specframe.contracts.roles import BudgetPolicy, Drafter
from specframe.engine.parts import Parts
from specframe.model.padding_free import MANY, fullest
from specframe.model.runner import ModelRunner
from specframe.plugins.compose import Composition
from specframe.plugins.recipe import Recipe
from specframe_memory.allocations import Allocations, Peak
from specframe_memory.counted_caches import CountedKV
from specframe_memory.counted_drafters import CountedDrafter, unstarted
from specframe_memory.footprint import DRAFT, HEAD, LOGITS, MASKS, STATES, TARGET, Footprint, Workload
from specframe_memory.full_drafts import Looks, Steady
from specframe_memory.meta_models import META
from specframe_memory.meta_parts import meta_engine
from specframe_memory.profiled_rounds import ROUNDS, ProfiledRounds, only_new_is_collected


class DryRun:
    """Profiles the memory of runs of a pair, whatever their rows and lengths.

    Args:
        recipe: the options of the run.
        parts: models without weights, and strategies that no other run uses.
    """

    def __init__(self, recipe: Recipe, parts: Parts) -> None:
        self._recipe, self._parts = recipe, parts
        assert isinstance(parts.runner, ModelRunner)
        models: list[Any] = [parts.target] + ([parts.draft] if parts.draft is not None else [])
        self._vocabularies = {int(one.config.get_text_config().vocab_size) for one in models}
        layers = parts.runner.state_layers.values()
        self._states = {tuple(size) for layer in layers for size in layer.shape.sizes}
        self._most = parts.composition.policy.maximum
        self._drafting: DryRun | None = None
        self._trials = [self._tried(parts.runner)]
        if parts.draft is not None:
            self._trials.append(self._tried(ModelRunner(parts.draft, "draft")))

    def composed(self, use: Composition) -> DryRun:
        """Return one of the same models with other strategies."""
        made = copy.copy(self)  # models are tried once: what that takes is known
        made._parts = attrs.evolve(self._parts, composition=use)
        made._most = use.policy.maximum
        return made

    def undrafted(self, use: Composition) -> DryRun:
        """Return one with strategies that draft nothing. The head of this one's drafter stays in memory."""
        made = self.composed(use)
        made._drafting = self
        return made

    @functools.cached_property
    def head_bytes(self) -> int:
        """The bytes of the drafter's head."""
        if self._parts.draft is not None:  # it drafts
            return 0
        return self.footprint(Workload(1, 2, 2 + 2 * ROUNDS), Budget(1)).parts.get(HEAD, 0)

    def footprint(self, load: Workload, budget: Budget | None = None, like: Rows[Request] = ()) -> Footprint:
        """Return the memory of a run.

        Sequences are read and decoded, then others that are near their ends, where caches and masks are longest, and the same with
        unequal drafts where forwards leave out padding. In their place prompts are read again: of half of the rows, of all, and of
        all with unequal lengths.

        Args:
            load: the sequences.
            budget: the most that is drafted, or None for what the run's policy drafts at most.
            like: requests that the sequences are like in all but their tokens, in turn, or nothing for greedy ones.

        Raises:
            SpecframeError: the run cannot be decoded at all.
        """
        counter = Allocations(hollow=True, name=self._named)
        use, most = self._parts.composition, self._most if budget is None else budget
        looks = Looks() if "calibration" in use.policy.offers and "stops" in use.drafter.offers else None
        catches_up = "steady" not in use.policy.offers & use.drafter.offers  # a draft model reads what it has missed
        # rows that share memory are all to be live at their ends, whoever would have to wait there
        room = load.longest if "pooled" not in use.kv.offers else min(2 * load.longest, self._parts.runner.context)
        kv = CountedKV(use.kv, counter, max(0, room - load.longest))
        counted = CountedDrafter(unstarted(use.drafter), counter, kv)
        drafter = cast(Drafter, counted)
        steady = Steady(most, looks, self._parts.runner.leaves_out_padding)
        policy = cast(BudgetPolicy, steady)
        use = attrs.evolve(use, drafter=drafter, kv=cast(KVBackend, kv), policy=policy, attention=())
        parts = attrs.evolve(self._parts, composition=use)
        recipe = attrs.evolve(self._recipe, batch_size=load.rows, accept=use.rule, check=False, observers=())
        self._hold(counter)
        left = torch.empty(self._drafting.head_bytes if self._drafting else 0, dtype=torch.uint8, device=META)
        counter.hold([left], HEAD)
        with only_new_is_collected(), counter, contextlib.closing(meta_engine(recipe, parts)) as engine:
            live = use.scheduler.rows(load.rows)  # some have more live than they decode together
            turns, vocabulary = math.ceil(live / load.rows), self._parts.runner.vocabulary
            rows = ProfiledRounds(engine, counter, load.longest, like or (Request(0, [0], 1),), turns, vocabulary)
            engine.make_room(room)
            rows.decode([load.prompt] * live)
            near = max(load.prompt, load.longest - most.depth - 1 - ROUNDS)
            rows.decode([near] * live, late=True)
            if live > 1 and most.nodes and fullest(load.rows * (1 + most.nodes), self._parts.runner.leaves_out_padding):
                steady.uneven = True
                rows.decode([near] * live, late=True)
                steady.uneven = False
            rows.decode([load.prompt] * ((live + 1) // 2))
            rows.decode([load.prompt] * live)
            if live > 1:
                rows.decode([load.prompt - row % 2 * (load.prompt * 2 // 5) for row in range(live)])
            if catches_up:
                rows.count(counted.reading)
        return rows.footprint(kv.most, self._trials)

    def _tried(self, runner: ModelRunner) -> Peak:
        """Return the memory when a model is tried, which happens before its first run."""
        counter = Allocations(hollow=True, name=self._named)
        self._hold(counter)
        with counter:
            assert runner.kv_shapes is not None
            runner.leaves_out_padding(MANY, 1)
        return counter.peak

    def _hold(self, counter: Allocations) -> None:
        for name, model in ((TARGET, self._parts.target), (DRAFT, self._parts.draft)):
            if model is not None:
                counter.hold([*model.parameters(), *model.buffers()], name)

    def _named(self, tensor: torch.Tensor) -> str | None:
        """Return the part that a tensor belongs to by its shape."""
        shape = tuple(tensor.shape)
        if len(shape) > 1 and shape[-1] in self._vocabularies and tensor.is_floating_point():
            return LOGITS
        if shape[1:] in self._states:
            return STATES
        if (len(shape) == 3 and tensor.dtype is torch.bool) or (len(shape) == 4 and shape[1] == 1 < shape[-1]):
            return MASKS
        return None
