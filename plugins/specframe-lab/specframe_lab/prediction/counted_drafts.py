"""Drafts whose forwards are counted, in a round that is decoded without weights and numbers."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, cast

import attrs
import torch
from specframe_memory.full_drafts import Steady
from specframe_memory.meta_parts import meta_engine, named_parts

from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import BudgetPolicy, Observer
from specframe.errors import ModelError, SpecframeError, sentence
from specframe.plugins.recipe import Recipe, own_budget
from specframe_lab.prediction.counted_products import Products
from specframe_lab.prediction.forward_times import Drafting

ROUNDS = 3
"""Rounds that are decoded, of which the last is counted: prompts are read, then a draft is made of all that was read, and the
third drafts as every later one does."""


class CountedDrafts:
    """Whatever drafts, counted as it is: heads, parts of the target, trees, several drafters in turn.

    One row is decoded. What each row reads and computes grows with the rows, and weights are read once for all of them. No drafted
    token is accepted where there are no numbers, so that one new token a row is fed before the first drafted one.

    Args:
        recipe: the options of a run, with names of the target and the drafter.
        dtype: of both, or None for that of the files.

    Raises:
        SpecframeError: they cannot be found, made or combined.
    """

    def __init__(self, recipe: Recipe, dtype: torch.dtype | None) -> None:
        self._recipe, self._parts = attrs.evolve(recipe, batch_size=1), named_parts(recipe, dtype)
        self._counted = functools.cache(self._count)

    def drafting(self, rows: int, length: int, context: int) -> Drafting:
        """Return how drafts of a length are made.

        Raises:
            ModelError: the drafter depends on numbers, or cannot be run on the target.
        """
        report, products = self._counted(length, context)
        return Drafting(report.draft.depth, report.draft.nodes, products.loads(rows))

    def _count(self, length: int, context: int) -> tuple[RoundReport, Products]:
        use = self._parts.composition
        most = own_budget(use.drafter, length) or Budget(length)
        use = attrs.evolve(use, policy=cast(BudgetPolicy, Steady(most, None)), attention=())
        parts, counter = attrs.evolve(self._parts, composition=use), Counter()
        room = ROUNDS * (most.depth + 1) + most.nodes
        prompt = max(1, min(context, self._parts.runner.context - room))
        try:
            with contextlib.closing(meta_engine(self._recipe, parts, [counter])) as engine:
                engine.add(Request(0, [0] * prompt, room - most.nodes))
                for number in range(ROUNDS):
                    counter.counts = number == ROUNDS - 1
                    report = engine.step()
        except (RuntimeError, SpecframeError) as error:  # torch's, where numbers are asked for; a strategy's is a cause
            if not isinstance(error, RuntimeError) and not isinstance(error.__cause__, RuntimeError):
                raise
            why = sentence(error.__cause__ or error)
            raise ModelError(
                f"--drafter: expected one that drafts for this target without looking at numbers, got "
                f"{self._recipe.drafter!r}: {why}"
            ) from error
        assert report is not None
        return report, counter.products


class Counter(Observer):
    """Counts the products of drafts, while it is switched on."""

    def __init__(self) -> None:
        self.counts = False
        self.products = Products()
        self._stages: list[Any] = []

    def enter(self, stage: str) -> None:
        """Begin to count where a draft is made; another stage inside of that counts for itself."""
        self._stages.append(self.products if self.counts and stage == "draft" else contextlib.nullcontext())
        self._stages[-1].__enter__()

    def leave(self, stage: str) -> None:
        """End what the stage has begun."""
        self._stages.pop().__exit__(None, None, None)
