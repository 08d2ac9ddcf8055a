"""A run whose models' caches have shadow caches, which receive each call."""

from __future__ import annotations

from typing import Any, cast

import attrs

from specframe.contracts.cache import KVBackend, KVStore, Placement, PrefixStore, rounding
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.graphs import ModelGraphs
from specframe.contracts.model import ForwardOptions, Model
from specframe.contracts.roles import MakesLayout
from specframe.contracts.round import Batch, Sequence
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe_testing.instrumentation.cache_checks import NAMES, ShadowCache, ViewLedger
from specframe_testing.instrumentation.instrumented import tapped_layout
from specframe_testing.instrumentation.sequence_records import Accounts


@attrs.define(eq=False)
class CheckedRun(Run):
    """A run whose caches have shadow caches."""

    checks: Accounts = attrs.field(kw_only=True)

    def _cached(
        self,
        model: Model,
        store: KVStore,
        own: MakesLayout | None,
        kv: KVBackend,
        slots: int,
        how: ForwardOptions,
        graphs: ModelGraphs | None,
    ) -> CachedModel:
        """Return a model that is run as it would be without checks, with a shadow cache of its store."""
        names = kv.open([NAMES] * len(model.kv_shapes), self.rows, slots, model.device)
        if "prefix" in kv.offers:
            cast(PrefixStore, names).ahead = cast(PrefixStore, store).ahead
        shares = bool({"paged", "pooled"} & kv.offers)
        ledger = (ViewLedger if own else ShadowCache)(model, names, self.checks, shares, rounding(kv))
        layout = tapped_layout(own or self.alignment.layout, ledger, store, self.rows, slots)
        return CheckedModel(model, store, layout, self.watch, how, graphs, ledger=ledger)


class CheckedModel(CachedModel):
    """A cached model that also reports scores, and tokens that one captured graph feeds, to its shadow cache."""

    def __init__(self, runner: Model, store: KVStore, layout: Any, *how: Any, ledger: ShadowCache) -> None:
        # while a graph is captured nothing is reported: the batch that it places is a buffer
        super().__init__(runner, store, layout.__wrapped__, *how)
        self.layout, self._ledger = layout, ledger

    def _beside(self, runner: Model, how: ForwardOptions, graphs: ModelGraphs | None) -> CachedModel:
        """Return another model on this one's cache, with the same shadow cache."""
        return CheckedModel(runner, self.store, self.layout, self._watch, how, graphs, ledger=self._ledger)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return the placement after checking the batch that the layout is handed."""
        self._ledger.handed(batch)
        return super().place(batch, block)

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        """Make room in the shadow cache, too, which is as large as the cache."""
        cached = super().reserve(sequence, tokens)
        if cached is not None:
            self._ledger.names.reserve(sequence, tokens)
        return cached

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence in the shadow cache, too."""
        if id(sequence) in self._reserved:
            self._ledger.names.release(sequence)
        super().forget(sequence)

    def feed(
        self, batch: Batch, block: Block, keep: int = 1, mixed: Batch | None = None, followed: bool = False
    ) -> Scores:
        """Return the scores of the last ``keep`` tokens after the shadow cache has received them."""
        scores = super().feed(batch, block, keep, mixed, followed)
        if self.runner.role == "target":
            self._ledger.scored(batch, block, scores)
        return scores
