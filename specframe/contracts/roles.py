"""The roles, as protocols. A strategy is any object with these members. One whose class inherits from its role's protocol may leave
out those that have a value or a body here, and Python refuses it without the others.

Shapes: B rows, N nodes of a draft, K nodes of its longest path, T tokens fed per row, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Acceptance, Block, Budget, Draft, Scores, Transfer
from specframe.contracts.reports import Outcome, RoundReport
from specframe.contracts.round import Batch, Kept

if TYPE_CHECKING:
    from specframe.engine.pool import Pool
    from specframe.model.run import Run


class Strategy(Protocol):
    """The members that every role has. ``needs`` and ``offers`` are capabilities, of docs/capabilities.md or a plugin's own: a
    combination is refused if no strategy offers a needed one."""

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()


class Started(Strategy, Protocol):
    """The members of every role that takes part in a round."""

    def start(self, run: Run) -> None:
        """Prepare for a run: open caches, keep a reference to ``run``. Called once, before the first round."""
        return  # of methods without a statement, type checkers would ask a subclass for all


class Drafter(Started, Protocol):
    """Decides which tokens to propose. Offers "chain" or "tree", "logits" if its tokens are sampled from logits, and "plain" if it
    proposes none: rounds without prompts do not call it."""

    @abstractmethod
    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a draft within the budget for every row; an empty draft in the round that ends the reading of prompts."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round, or from a prefill chunk that the target has read."""
        return


class SizedDrafter(Drafter, Protocol):
    """A drafter that knows how much it drafts best, as its heads are counted or its drafts are trees. It offers "budget"."""

    def budget(self, depth: int | None = None) -> Budget | None:
        """Return the budget of its drafts for a draft length, or where that is left open (None), or None: a chain of any length."""


class MatchingDrafter(Drafter, Protocol):
    """A drafter that looks up the end of each row, and knows how much of it was found. It offers "match"."""

    def matches(self) -> np.ndarray:
        """Return how many of each row's last tokens the latest draft depends on, (B,), on the host, 0 where nothing was found."""


class CapturedDrafter(Drafter, Protocol):
    """A drafter whose rounds can be captured whole, and replayed without a call of it. It offers "captured"."""

    def prepare(self, batch: Batch, budget: Budget) -> Hashable | None:
        """Do what the host has to do for a chain of every row, and return what :meth:`draw` and :meth:`keep` depend on then beside
        tensors that stay in place; or do nothing and return None, and :meth:`propose` is called."""

    def draw(self, batch: Batch, budget: Budget) -> Draft:
        """Return a chain as it was prepared, without counts. Of a batch that is captured the host knows bounds alone."""

    def keep(self, batch: Batch, draft: Draft, scores: Scores) -> None:
        """Keep what the next draft needs of the target's scores, in tensors that stay in place. :meth:`observe` is not called."""
        return


class Verifier(Started, Protocol):
    """Decides how the target scores a draft. Offers "chain", "tree", and "hidden" if its scores have hidden states."""

    @abstractmethod
    def score(self, batch: Batch, draft: Draft) -> Scores:
        """Return the target's scores after each row's last token and each draft token: logits (B, N + 1, V). In a prefill the draft
        is empty, and ``run.target.read(batch)`` feeds the prompts."""


class AcceptanceRule(Started, Protocol):
    """Decides how many draft tokens are accepted, and the bonus token.

    Needs "logits" if it compares distributions. Offers "lossless" if the output has the target's, "samples" if it samples (greedy
    rows are passed as distributions with probability 1 on one token), "draft-invariant" if the output does not depend on the draft,
    and "tree" if it accepts trees, as a :class:`TreeRule`.
    """

    @abstractmethod
    def choose(self, batch: Batch, offset: int, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return the token a drafter should propose at the place ``offset`` after each row's end, (B,)."""

    @abstractmethod
    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Return the acceptance result, from the target's shaped logits (B, N + 1, V), without leaving the device."""


class TreeRule(AcceptanceRule, Protocol):
    """An acceptance rule for trees. It offers "tree"; "distinct" and "independent" for siblings, drawn without or with replacement,
    for which it is right; and "prunable" if a drafter may leave out nodes by their tokens' scores."""

    def siblings(
        self, batch: Batch, offset: int, logits_BFV: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the children that a drafter should propose for all F nodes of a depth, at the place ``offset`` after rows' ends.

        Returns:
            The tokens in the order in which they are compared with the target, (B, F, count), and the log-probabilities, by the
            drafter's logits, that they are right.
        """


class Layout(Protocol):
    """The slots of one model's cache under one alignment."""

    static: bool
    """Whether places follow from ``lengths_B`` alone: several forwards can then be captured as one, and chains need no
    committing."""

    def arrange(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of what follows, moving whatever has to move. Nothing when all is in place."""

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return places for the tokens about to be fed. Padding is what precedes a row's first token, and what is not real of its
        own tokens (``block.real``): these are cached, and not to be written over."""

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Forget all tokens but the kept ones. A layout that is ``static`` is called for paths only."""


MakesLayout = Callable[[KVStore, int, int], Layout]
"""Makes the layout of a store, as an alignment does: (store, rows, slots per row) -> layout."""


class Alignment(Started, Protocol):
    """Decides the slots of tokens, and what happens to rejected tokens.

    Needs capabilities of :class:`specframe.contracts.cache.KVBackend`. Offers "lossless"; "tree" if it can place trees; "uneven" if
    each row gains its own number of tokens; "share" if what its layouts forget is fed again to the same slots.
    """

    scheduler: str
    """Name of the alignment's default scheduler."""
    kv: str
    """Name of the alignment's default KV backend."""

    @abstractmethod
    def layout(self, store: KVStore, rows: int, capacity: int) -> Layout:
        """Return the layout of one model's cache: ``rows`` rows of up to ``capacity`` slots."""

    @abstractmethod
    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Return the transfer of the committed acceptance result, ``transfer.of(acceptance)`` where it is not the rule's
        (``transfer.acceptance``, on the host ``transfer.host``). The loop then commits the target's cache: an alignment that forgot
        to would be right on keys and values, and wrong on states."""


class Scheduler(Strategy, Protocol):
    """Decides which sequences form the next batch."""

    @abstractmethod
    def rows(self, batch_size: int) -> int:
        """Return how many sequences may be live at once."""

    @abstractmethod
    def next_batch(self, pool: Pool) -> Batch | None:
        """Return the next batch, or None when everything has finished."""


class BudgetPolicy(Started, Protocol):
    """Decides how much to draft. A token may be left out by what was seen before it was drawn, never by itself or a later one:
    else the output is not the target's (docs/budgets.md)."""

    maximum: Budget

    @abstractmethod
    def budget(self, batch: Batch) -> Budget:
        """Return the budget of this round, up to ``maximum``."""

    def observe(self, report: RoundReport) -> None:
        """Learn from a finished round that used this policy's budget."""
        return


class TreePolicy(BudgetPolicy, Protocol):
    """A policy that decides over the nodes of trees, too. It offers "trees"."""

    longest: int
    """The longest draft that was asked for, of a tree its depth."""

    def draft_trees(self, budget: Budget) -> None:
        """Draft up to as many levels and nodes, which become ``maximum``: of the drafter's tree or a chain, up to ``longest``."""


class CalibratedPolicy(BudgetPolicy, Protocol):
    """A policy that predicts which share of draft tokens is accepted, and compares that with what was. It offers "calibration"."""

    def calibrated(self) -> np.ndarray:
        """Return (bins, 3), by equal bins of the probability: its sum over the tokens, accepted tokens, tokens tested (all of
        whose predecessors in the draft were accepted)."""


class Observer(Protocol):
    """Watches a run. A subclass has the methods it needs: those here do nothing, and are not called."""

    def enter(self, stage: str) -> None:
        """Called when a stage begins."""
        return

    def leave(self, stage: str) -> None:
        """Called when a stage ends."""
        return

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Called for each forward pass of ``model``, "target" or "draft"."""
        return

    def fed(self, model: str, real: int, computed: int) -> None:
        """Called after forwards of ``model`` that have computed ``computed`` tokens, of which ``real`` were no padding."""
        return

    def spent(self, stages: Mapping[str, float]) -> None:
        """Called with the seconds of stages in other processes, before the report of their round."""
        return

    def round(self, report: RoundReport) -> None:
        """Called after each round."""
        return


class InvariantChecks(Observer, Protocol):
    """Compares what a run does with what is expected of it, and raises an error where they differ."""

    def around(self, use: Any) -> Any:
        """Return the strategies of a run, as :class:`specframe.plugins.compose.Composition`, with what watches them around each."""

    def run(self, *given: Any, **named: Any) -> Any:
        """Return a run, as :class:`specframe.model.run.Run` of these arguments, whose models are watched."""
