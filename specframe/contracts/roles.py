"""The roles, as protocols. A strategy is any object that has these members; nothing needs to be inherited.

Shapes: B rows, K draft tokens, T = K + 1 tokens per row that the target scores, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Draft, RoundReport, Verdict
from specframe.contracts.round import Batch

if TYPE_CHECKING:
    from specframe.engine.pool import Pool
    from specframe.forward.run import Run


class Strategy(Protocol):
    """What every role that takes part in a round has in common."""

    def start(self, run: Run) -> None:
        """Prepare for a run: open caches, keep what is needed of ``run``. Called once, before the first round."""


class Drafter(Strategy, Protocol):
    """Decides which tokens to propose."""

    def propose(self, batch: Batch, draft_length: int) -> Draft:
        """Return a draft of at most ``draft_length`` tokens for every row; 0 in the round that ends the reading of prompts."""


class Verifier(Strategy, Protocol):
    """Decides how the target scores a draft."""

    def score(self, batch: Batch, draft: Draft) -> torch.Tensor:
        """Return the target's logits after each row's last token and after each draft token, (B, K + 1, V).

        Where the batch reads prompts the draft is empty and ``run.target.read(batch)`` feeds them. When it leaves some of them
        to later rounds (``batch.left``), what is returned is not looked at.
        """


class AcceptanceRule(Strategy, Protocol):
    """Decides how many draft tokens stand, and the bonus token."""

    lossless: bool
    """Whether the output is distributed as the target's own."""
    sharpen: bool
    """Whether rows decoded greedily are handed over as distributions with all mass on one token."""
    invariant: bool
    """Whether what comes out is the same whatever was drafted and however much of it: the draft length is then free to vary."""
    compares: bool
    """Whether it compares the target's distribution with the draft's: drafters then return their logits."""

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the token a drafter should propose at the place ``offset`` after each row's end, (B,)."""

    def judge(self, batch: Batch, draft: Draft, logits_BTV: torch.Tensor) -> Verdict:
        """Return what stands, from the target's shaped logits (B, K + 1, V), without leaving the device."""


class Layout(Protocol):
    """Where the tokens of one model's cache sit, under one alignment."""

    def arrange(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of what follows, moving whatever has to move. Nothing when all is in place."""

    def place(self, batch: Batch, width: int, offset: int) -> Placement:
        """Return places for the tokens about to be fed: of every row, the ``width`` that end at its length + ``offset``.

        What a row has not got (its length + offset is less than ``width``) is padding on the left.
        """

    def keep(self, batch: Batch, kept: np.ndarray) -> None:
        """Keep the first ``kept[i]`` tokens of row i and forget the rest."""


class Alignment(Strategy, Protocol):
    """Decides where tokens sit and what happens to rejected ones."""

    lossless: bool
    requires: frozenset[str]
    """What a KV store must be able to do: of "scatter", "append", "shift", "grow" (take more columns than the capacity)."""
    scheduler: str
    """The scheduler it asks for unless told otherwise."""
    kv: str
    """The KV backend it asks for unless told otherwise."""

    def layout(self, store: KVStore, rows: int, capacity: int) -> Layout:
        """Return the layout of one model's cache: ``rows`` rows of up to ``capacity`` slots."""

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Forget what was rejected in the target's cache and return the verdict that stands."""


class Scheduler(Protocol):
    """Decides which sequences form the next batch."""

    equal_lengths: bool
    """Whether it groups rows of equal length, which ``exspec`` is made for."""

    def rows(self, batch_size: int) -> int:
        """Return how many sequences may be live at once."""

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the next batch, or None when everything has finished."""


class DraftLengthPolicy(Protocol):
    """Decides how many tokens to draft."""

    maximum: int

    def draft_length(self, batch: Batch) -> int:
        """Return the number of tokens to draft this round, 0 to ``maximum``."""

    def observe(self, report: RoundReport) -> None:
        """Learn from a finished round whose draft length this policy gave."""


class Observer(Protocol):
    """Watches a run. Subclass :class:`specframe.observe.watch.Watcher` to implement only some of these."""

    def enter(self, stage: str) -> None:
        """Called when a stage begins."""

    def leave(self, stage: str) -> None:
        """Called when a stage ends."""

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Called for each forward pass of ``model``, "target" or "draft"."""

    def round(self, report: RoundReport) -> None:
        """Called after each round."""
