"""The roles, as protocols. A strategy is any object with these members; it needs no base class.

Shapes: B rows, N nodes of a draft, K nodes of its longest path, T tokens fed per row, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Block, Budget, Draft, Outcome, RoundReport, Scores, Verdict
from specframe.contracts.round import Batch

if TYPE_CHECKING:
    from specframe.engine.pool import Pool
    from specframe.forward.run import Run


class Strategy(Protocol):
    """The members that every role has.

    ``needs`` and ``offers`` are words of one open vocabulary. A combination is refused if no strategy offers a needed word.
    The words of specframe itself are in docs/plugins.md; a plugin may add its own.
    """

    needs: frozenset[str]
    offers: frozenset[str]


class Started(Strategy, Protocol):
    """The members of every role that takes part in a round."""

    def start(self, run: Run) -> None:
        """Prepare for a run, for example open caches and keep a reference to ``run``. Called once, before the first round."""


class Drafter(Started, Protocol):
    """Decides which tokens to propose. Offers "chain" or "tree", and "logits" if its tokens are sampled from logits."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a draft within the budget for every row; an empty draft in the round that ends the reading of prompts."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round, or from a piece of a prompt that the target has read."""


class Verifier(Started, Protocol):
    """Decides how the target scores a draft. Offers "chain", "tree", and "hidden" if its scores have hidden states."""

    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Return the target's scores after each row's last token and after each draft token: logits (B, N + 1, V).

        If the batch reads prompts, the draft is empty, and ``run.target.read(batch)`` feeds the prompts.
        """


class AcceptanceRule(Started, Protocol):
    """Decides how many draft tokens are accepted, and the bonus token.

    Needs "logits" if it compares the target's distribution with the draft's. Offers "lossless" if the output has the target's
    distribution, "samples" if it samples, so that greedy rows are passed as distributions with probability 1 on one token,
    "draft-invariant" if the output does not depend on the draft, and "tree" if it judges trees.
    """

    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the token a drafter should propose at the place ``offset`` after each row's end, (B,)."""

    def judge(self, batch: Batch, draft: Draft, scores: Scores) -> Verdict:
        """Return the verdict, from the target's shaped logits (B, N + 1, V), without leaving the device."""


class Layout(Protocol):
    """The slots of one model's cache under one alignment."""

    static: bool
    """Whether places follow from ``lengths_B`` alone: several forwards can then be recorded as one."""

    def arrange(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of what follows, moving whatever has to move. Nothing when all is in place."""

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return places for the tokens about to be fed. What lies before a row's first token is padding."""

    def keep(self, batch: Batch, kept: np.ndarray, path_BT: torch.Tensor | None = None) -> None:
        """Keep the first ``kept[i]`` tokens of row i and forget the rest.

        Args:
            path_BT: the nodes of the accepted path in the block fed last, after its first token, (B, K): they are the tokens that
                follow the row's own; None: the block was a chain.
        """


class Alignment(Started, Protocol):
    """Decides the slots of tokens, and what happens to rejected tokens.

    Needs words of :class:`specframe.contracts.cache.KVBackend`. Offers "lossless" and, if it can place trees, "tree".
    """

    scheduler: str
    """Name of the alignment's default scheduler."""
    kv: str
    """Name of the alignment's default KV backend."""

    def layout(self, store: KVStore, rows: int, capacity: int) -> Layout:
        """Return the layout of one model's cache: ``rows`` rows of up to ``capacity`` slots."""

    def commit(self, batch: Batch, draft: Draft, verdict: Verdict) -> Verdict:
        """Drop rejected tokens from the target's cache and return the committed verdict."""


class Scheduler(Strategy, Protocol):
    """Decides which sequences form the next batch."""

    def rows(self, batch_size: int) -> int:
        """Return how many sequences may be live at once."""

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the next batch, or None when everything has finished."""


class BudgetPolicy(Strategy, Protocol):
    """Decides how much to draft."""

    maximum: Budget

    def budget(self, batch: Batch) -> Budget:
        """Return the budget of this round, up to ``maximum``."""

    def observe(self, report: RoundReport) -> None:
        """Learn from a finished round that used this policy's budget."""


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
