"""A run as strategies use it: its models, each with a KV cache, and how to open a cache.

Tensor names carry their shape: B rows, T tokens fed per row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specframe.contracts.cache import KVBackend, KVStore, Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.layout import Layout
from specframe.contracts.model import Model
from specframe.contracts.round import Batch, Kept, Sequence

Choose = Callable[[Batch, int, torch.Tensor], torch.Tensor]
"""Chooses the token at the place ``offset`` after each row's end: (batch, offset, logits (B, 1, V)) -> (B, 1)."""


MakesLayout = Callable[[KVStore, int, int], Layout]
"""Makes the layout of a store, as an alignment does: (store, rows, slots per row) -> layout."""


class Watch(Protocol):
    """The observers of a run, as whatever runs a model tells them."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Mark everything inside the ``with`` block as part of stage ``name``."""

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Report one forward of ``model`` ("target" or "draft") over ``rows`` rows of ``tokens`` tokens each."""

    def fed(self, model: str, real: int, computed: int) -> None:
        """Report that forwards have computed so many tokens, of which ``real`` were no filler."""


class CachedModel(Protocol):
    """A model with one KV cache, laid out as the run's alignment wants it, as drafters and verifiers use it."""

    @property
    def runner(self) -> Model:
        """The model."""

    @property
    def layout(self) -> Layout:
        """The places of its tokens."""

    @property
    def store(self) -> KVStore:
        """Its keys and values. A drafter that attends by itself writes to it at the places that :meth:`place` returns."""

    def capture(self, layers: Iterable[int], past: bool = True) -> None:
        """Have the scores of every later feed hold these hidden states, as transformers numbers ``hidden_states``.

        Args:
            layers: their numbers.
            past: whether those of all of a row's tokens are needed, so that all are fed; False: those of tokens that are fed
                because a cache of the run lacks them.
        """

    def follow(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of this cache."""

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return the places of the tokens about to be fed, after moving whatever has to move for them."""

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        """Make room for a sequence that begins with ``tokens`` tokens; return how many need not be fed, None without room."""

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""

    def feed(self, batch: Batch, block: Block, keep: int = 1, beside: Batch | None = None) -> Scores:
        """Feed a block to every row, and what ``beside`` reads of prompts where that can be in the same forward; return the scores
        of the last ``keep`` tokens, logits (B, keep, V)."""

    def extend(
        self, batch: Batch, ids_BT: torch.Tensor, count: int, choose: Choose, pure: bool = False
    ) -> torch.Tensor:
        """Feed the tokens of every row that end at its length, then, one after the other, those chosen after them.

        Args:
            batch: the rows.
            ids_BT: the tokens that are fed first.
            count: tokens to choose; the last of them is not fed.
            choose: chooses one token of every row; none, (B, 0), ends the chain.
            pure: ``choose`` looks at nothing but logits, streams and places, which are lengths plus offset, and leaves nothing
                behind. It may be asked with lengths that have grown and offset 0, be recorded, and be replayed as it was where it
                equals the last run's: a table that it reads is to stay where it is, too.

        Returns:
            (B, count) ids, or fewer where the chain was ended.
        """

    def tokens_at_once(self, batch: Batch) -> int:
        """Return how many tokens of each row's prompt are fed in one forward."""

    def read(self, batch: Batch, left: int = 0, unread: int | None = None) -> Scores:
        """Feed the prompts, or the piece of them that the batch says.

        Args:
            batch: rows of which nothing is cached but what comes before their last ``unread`` tokens.
            left: tokens at the end of each row that are not fed, if the batch does not leave more.
            unread: None: what the batch says.

        Returns:
            The scores of the last token fed, logits (B, 1, V); without logits, (B, 0, V), when there was nothing to feed.
        """

    def settle(self, batch: Batch, kept: Kept) -> None:
        """Forget all tokens that were fed but those that stand.

        The loop settles the target's cache once it knows the verdict, a drafter its own before it feeds tokens in the place of
        others. :meth:`read` settles what it has fed. A ``Kept`` that was settled last is passed over: an alignment may have settled
        it at once.
        """


class Rule(Protocol):
    """The run's acceptance rule, as a drafter asks it; one that offers "tree" is a :class:`specframe.contracts.roles.TreeRule`."""

    @property
    def needs(self) -> frozenset[str]:
        """ "logits" is among them where the rule looks at the logits that draft tokens were drawn by."""

    @property
    def offers(self) -> frozenset[str]:
        """ "samples" is among them where rows decoded greedily are distributions with all mass on one token."""

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the token a drafter should propose at the place ``offset`` after each row's end, (B,)."""


class Run(Protocol):
    """One run, as strategies are handed it when it starts."""

    rows: int
    """Sequences that may be live at once."""
    capacity: int
    """Places per row: the longest sequence, and the draft tokens beyond its end."""
    seed: int
    """The seed of every random choice."""
    steady: bool
    """Whether the policy offers "steady": it drafts in every round. Where it does not, a drafter may leave prompts unread until a
    draft is asked for."""
    draft_model: PreTrainedModel | None
    """The draft language model, for drafters that use one."""
    target_tokenizer: PreTrainedTokenizerBase | None
    draft_tokenizer: PreTrainedTokenizerBase | None

    @property
    def runner(self) -> Model:
        """The target without its cache."""

    @property
    def kv(self) -> KVBackend:
        """The backend of caches that are opened without one of their own."""

    @property
    def target(self) -> CachedModel:
        """The target with its cache."""

    @property
    def rule(self) -> Rule:
        """The acceptance rule."""

    @property
    def watch(self) -> Watch:
        """The run's observers."""

    @property
    def new_shapes(self) -> int:
        """The times so far that a forward was slow on a device with graphs, as its shape was new, or was recorded.

        A round in which the number grows says nothing of the time of its kind.
        """

    @property
    def caches(self) -> Iterable[CachedModel]:
        """The models with a cache of their own, which are counted, and released when the run ends."""

    def open_cache(
        self,
        model: Model,
        *,
        layout: MakesLayout | None = None,
        kv: KVBackend | None = None,
        capacity: int | None = None,
        share: CachedModel | None = None,
        ahead: int = 0,
    ) -> CachedModel:
        """Return a model with a KV cache, which the run counts, and releases at its end.

        Args:
            model: the model. One that is fed by itself may leave :meth:`Model.forward` undone.
            layout: makes the cache's layout, which then is not the alignment's; layers are not compiled there.
            kv: stores its keys and values; None: the run's backend.
            capacity: slots per row; None: the run's.
            share: the :class:`CachedModel` whose cache it uses; None: a cache of its own. The model's layers are the first
                layers of that one. What it feeds beyond a row's own tokens has to be forgotten, by :meth:`CachedModel.settle`,
                before the other feeds.
            ahead: how many tokens after a slot's own one the model's keys depend on, for stores that keep what rows begin with, see
                :attr:`specframe.contracts.cache.PrefixStore.ahead`.
        """

    def close_cache(self, cached: CachedModel) -> None:
        """Release a cache before the run ends."""
