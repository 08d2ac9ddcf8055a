"""The base of drafters that read the target's features: loading, features and the choice of tokens.

A subclass says what a head is fed and how it drafts. :class:`HeadDrafter` has no cache, which suffices for heads that look at one
feature (Medusa). :class:`PairDrafter` feeds a small transformer pairs of a feature and the token after it, and keeps its cache.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, Protocol, cast

import attrs
import numpy as np
import torch
from specframe_std.kv.ragged_layout import RaggedLayout
from specframe_std.kv.slab import Slab
from specframe_std.trees.chains import GrowingChain
from specframe_std.trees.growth import Frontier
from specframe_std.trees.tree_options import Trees
from transformers import PreTrainedModel

from specframe.contracts.drafts import Block, Budget, Draft, Scores
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch, Bounded, bounded
from specframe.errors import ModelError
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe.text.sampling import apply_processors, one_hot_greedy_rows
from specframe.value_checks import whole
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.features import FeatureChunk, Features, Waiting, at
from specframe_heads.formats.format import Format
from specframe_heads.formats.recognised import format_of
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.target import Target

MOST_WAITING = 32
"""Features that wait in a row, where nothing is drafted, until the head consumes them: one forward then serves many rounds, and
the buffer stays small."""


class Head(Protocol):
    """A head made for a target, as :attr:`specframe_heads.formats.format.Format.build` returns it."""

    vocabulary: DraftVocabulary

    def fuse(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return what the head is fed of the hidden states of its layers side by side: (B, T, layers * D) -> (B, T, D)."""


class HeadDrafter:
    """Base of drafters with a head from a checkpoint.

    Args:
        checkpoint: an alias, a directory or a hub id.
        shift: added to the numbers of the hidden states that the head is fed, for finding out whether a format is read rightly.
        tree, branch, nodes, top: the shape of drafts, see :class:`specframe_std.trees.tree_options.Trees`.
    """

    needs: frozenset[str] = frozenset({"hidden"})
    offers: frozenset[str] = frozenset({"chain", "logits", "stops", "deferred"})

    name: ClassVar[str]
    """The name under which the drafter is registered."""
    chains_offer: ClassVar[frozenset[str]] = frozenset()
    """What else it offers where it drafts chains."""
    wide: ClassVar[bool] = False
    """Whether the levels of a tree are not fed to the head, so that they take no slots of its cache."""

    def __init__(
        self,
        checkpoint: str,
        shift: int = 0,
        tree: str = "chain",
        branch: str | int | None = None,
        nodes: int | None = None,
        top: int | None = None,
    ) -> None:
        self.trees = Trees(tree, branch, nodes, top, wide=self.wide)
        self.shift = whole("shift", shift, -8, 8)
        self.checkpoint, self.format = self._opened(checkpoint)
        self._made: tuple[PreTrainedModel, Any] | None = None
        self.weights: torch.nn.Module | None = None
        """The weights that change while it drafts, or None: worker processes are sent them anew."""
        self.needs, self.offers = self.needs | self.trees.needs, self.trees.offers | {"logits", "budget", "deferred"}
        self.offers |= {"stops", *self.chains_offer} if self.trees.chain else set()

    @property
    def past(self) -> bool:
        """Whether the head needs the features of all of a row's tokens, also of those that the target and the head have cached."""
        return False

    def budget(self, depth: int | None = None) -> Budget | None:
        """Return the budget of a tree, or None: a chain of any length."""
        return None if self.trees.chain else self.trees.budget(depth)

    def _opened(self, name: str) -> tuple[Checkpoint, Format]:
        """Return the checkpoint of a name and its format."""
        opened = Checkpoint.open(name)
        found = format_of(opened)
        if found.drafter != self.name:
            raise ModelError(
                f"{opened} is a head in the format {found.name}: expected one for the drafter {self.name!r}, so ask for "
                f"{found.drafter!r}"
            )
        return opened, found

    def start(self, run: Run) -> None:
        """Make the head for the run's target, and begin to take its features."""
        self.make(run)
        self.features = Features(run, self.layers, self.head.fuse, self.past)

    def make(self, run: Run) -> None:
        """Make the head for the run's target, once for each target."""
        self.run, self.rule = run, run.rule
        self.head, self.layers = self.made_for(model_of(run))

    def made_for(self, model: PreTrainedModel) -> tuple[Any, tuple[int, ...]]:
        """Return the head for a target, made once for each target, and the numbers of the hidden states that it reads."""
        if self._made is None or self._made[0] is not model:
            self._made = model, self.format.made(self.checkpoint, Target(model))
        return self._made[1], self.format.layers(self.checkpoint, Target(model).layers, self.shift)

    def observe(self, outcome: Outcome) -> None:
        """Take the features of a round; read those of a prompt."""
        if (piece := self.features.observe(outcome)) is not None:
            self.read(piece)

    def read(self, piece: FeatureChunk) -> None:
        """Read a prefill chunk, where a head keeps something of it."""

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a draft from the features of each row's tokens; an empty one where nothing is to be drafted."""
        self.features.follow(batch)
        if batch.prefill or batch.starts:
            self.follow(batch)
            return nothing(batch)
        if budget.depth == 0 and self.features.waiting(batch) < MOST_WAITING:
            return nothing(batch)
        return self.draft(batch, self.features.take(batch), budget)

    def prepare(self, batch: Batch, budget: Budget) -> Hashable | None:
        """Have the features that wait be consumed; None where nothing is to be drafted."""
        if not budget.depth:
            return None
        self.features.follow(batch)
        return self.features.prepare(batch, budget.depth)

    def draw(self, batch: Batch, budget: Budget) -> Draft:
        """Return a chain from the features that were prepared."""
        return self.draft(batch, self.features.draw(batch), budget)

    def keep(self, batch: Batch, draft: Draft, scores: Scores) -> None:
        """Take the features of a round that is captured."""
        self.features.keep(batch, draft, scores)

    def follow(self, batch: Batch) -> None:
        """Move whatever a head keeps per row, where a batch is about to be read or starts from others' rows."""

    def draft(self, batch: Batch, waiting: Waiting, budget: Budget) -> Draft:
        """Consume the features that wait, and return a draft within the budget; with depth 0 an empty one."""
        raise NotImplementedError

    def choose(
        self, batch: Batch, offset: int, drafted_BK: torch.Tensor, logits_B1V: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the token that the rule asks for, (B, 1), and the logits that it was drawn by where the rule needs them.

        Args:
            batch: the rows.
            offset: the place of the token after each row's end.
            drafted_BK: the tokens drafted before it, for processors that look at them.
            logits_B1V: the head's logits, in its own vocabulary.
        """
        logits_B1V = self.processed(batch, drafted_BK, logits_B1V)
        if "samples" in self.rule.offers:
            logits_B1V = one_hot_greedy_rows(batch, logits_B1V)
        token_B1 = self.rule.choose(batch, offset, logits_B1V[:, 0])[:, None]
        return token_B1, logits_B1V if "logits" in self.rule.needs else None

    def lengthen(self, batch: Batch, chain: GrowingChain, logits_B1V: torch.Tensor) -> bool:
        """Add a token to a chain, from the head's logits, and return whether one was: a chain ends where no row goes on."""
        if chain.may_end and not chain.goes_on(self.processed(batch, chain.tokens_BK, logits_B1V)):
            return False
        chain.add(*self.choose(batch, chain.length, chain.tokens_BK, logits_B1V))
        return True

    def processed(self, batch: Batch, drafted_BK: torch.Tensor, logits_B1V: torch.Tensor) -> torch.Tensor:
        """Return the head's logits in the target's vocabulary, after the rows' processors."""
        return apply_processors(batch, drafted_BK, self.head.vocabulary.full(logits_B1V))


def model_of(run: Run) -> PreTrainedModel:
    """Return the target of a run as transformers knows it."""
    return cast(PreTrainedModel, run.target.runner.module)


def nothing(batch: Batch) -> Draft:
    """Return an empty draft."""
    return Draft(batch.tokens_BS[:, :0])


class PairHead(Head, Protocol):
    """A head with a transformer that is fed pairs of a feature and the token after it."""

    @property
    def backbone(self) -> PreTrainedModel:
        """Takes ``features`` (B, T, D) and ``input_ids``, and gives its output states (B, T, D) as ``logits``: the layers
        that make logits of them are called for the few states that need them."""

    def logits(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return the logits after output states, (B, T, V_d)."""

    def fed_back(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return the features for the tokens drafted after output states, (B, T, D)."""


class PairDrafter(HeadDrafter):
    """Base of drafters whose head is fed pairs of a feature and the token after it: EAGLE, MTP.

    Pair t is (g_t, token t + 1). It has place t in the head's cache: a batch is seen by the head as rows without their first
    token. In a round each row is fed the pairs of the tokens that were accepted, and after them those of the tokens being drafted,
    whose features are the head's own output. The latter are overwritten in the next round by pairs with true features.

    The cache has a ragged layout under every alignment: rows end in different places after the true pairs are fed, whatever the
    target's rows do. Where the target's store keeps what rows begin with, the head's does so, too: pair t depends on the tokens up
    to t + 1, so a row begins with the first pairs of another where one token more is the same.
    """

    head: PairHead
    _spare = 0
    """The slots of a row that trees take beyond those of their nodes, for the budgets that were asked for."""

    def budget(self, depth: int | None = None) -> Budget | None:
        """Return the budget of a tree, or None: a chain of any length."""
        if (found := super().budget(depth)) is not None:
            self._spare = max(self._spare, self.trees.spare(found))
        return found

    def start(self, run: Run) -> None:
        """Open the head's cache."""
        super().start(run)
        self.open()

    def open(self) -> None:
        """Open the cache of the head's transformer."""
        self.cache = open_ragged(
            self.run, self.head.backbone, self.run.capacity + MOST_WAITING + self.beyond(), self.past
        )

    def beyond(self) -> int:
        """Return the slots per row needed beyond those of the target's rows."""
        return 1 + self._spare

    def follow(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of the cache."""
        self.cache.follow(batch)

    def read(self, piece: FeatureChunk) -> None:
        """Feed the pairs of a prompt, or of a prefill chunk, in parts."""
        view, start, width = pairs_of(piece.batch), piece.start + 1, piece.features_BTD.shape[1]
        chunk = self.cache.tokens_at_once(view)
        for begin in range(0, width, chunk):
            features_BTD = piece.features_BTD[:, begin : begin + chunk]
            fed = features_BTD.shape[1]
            ids_BT = view.last_tokens(fed, start + begin + fed)
            self.feed(view, ids_BT, start + begin, features_BTD, counts=piece.real(begin, fed))

    def feed(
        self,
        view: Batch,
        ids_BT: torch.Tensor,
        start: int,
        features_BTD: torch.Tensor,
        keep: int = 1,
        counts: np.ndarray | None = None,
    ) -> torch.Tensor:
        """Feed pairs to the head, ``counts`` real ones of each row; return its last ``keep`` output states, (B, keep, D)."""
        block = Block(ids_BT, start, extra={"features": features_BTD}, counts=counts)
        return self.cache.feed(view, block, keep).logits_BTV

    def caught_up(self, batch: Batch, waiting: Waiting) -> torch.Tensor:
        """Feed the pairs with the features that wait; return the output state of each row's last pair, (B, 1, D).

        Rows with fewer pairs than others are fed some more after their own, which are overwritten before they are seen.
        """
        view = waiting.beginning(pairs_of(batch))
        width = waiting.features_BWD.shape[1]
        places_BW = view.positions(0, width).clamp_(max=view.tokens_BS.shape[1] - 1)
        ids_BW = view.tokens_BS.gather(1, places_BW).clamp(min=0)
        return waiting.last(self.feed(view, ids_BW, 0, waiting.features_BWD, keep=width))

    def draft(self, batch: Batch, waiting: Waiting, budget: Budget) -> Draft:
        """Return a chain of ``budget.depth`` tokens, or a tree within the budget."""
        states_B1D = self.caught_up(batch, waiting)
        if budget.depth == 0:
            return nothing(batch)
        if self.trees.chain:
            return self.chain(batch, states_B1D, budget)
        return self.tree(batch, states_B1D, budget)

    def chain(self, batch: Batch, states_B1D: torch.Tensor, budget: Budget) -> Draft:
        """Return a chain; ``states_B1D`` are the output states of the rows' last pairs."""
        view, chain = pairs_of(batch), GrowingChain(batch, budget)
        for offset in range(budget.depth):
            if offset:
                states_B1D = self.feed(view, chain.tokens_BK[:, -1:], offset - 1, self.head.fed_back(states_B1D))
            if not self.lengthen(batch, chain, self.head.logits(states_B1D)):
                break
        return chain.draft

    def tree(self, batch: Batch, states_B1D: torch.Tensor, budget: Budget) -> Draft:
        """Return a tree. Each level is fed together with those above it, whose keys and values are written anew in their places."""
        view, level_BFD, features_BMD = pairs_of(batch), states_B1D, states_B1D[:, :0]
        full = self.head.vocabulary.full

        def run(level: Frontier) -> torch.Tensor:
            nonlocal level_BFD, features_BMD
            parents_BFD = at(level_BFD, level.above_BF.expand(len(batch), -1))
            features_BMD = torch.cat([features_BMD, self.head.fed_back(parents_BFD)], dim=1)
            block = Block(level.tokens_BM, 0, level.parents_BM, {"features": features_BMD})
            level_BFD = self.cache.feed(view, block, level.width).logits_BTV
            return apply_processors(batch, level.tokens_BM, full(self.head.logits(level_BFD)), level.parents_BM)

        first_B1V = apply_processors(batch, batch.tokens_BS[:, :0], full(self.head.logits(states_B1D)))
        return self.trees.grow(batch, budget, self.rule, first_B1V, run, self._spare).draft


def pairs_of(batch: Batch, first: int = 1) -> Batch:
    """Return a batch as a head sees it that is fed pairs, a feature and the token ``first`` places after its own.

    Rows have no tokens before that one. A row that is shorter has a negative length.
    """
    moved = attrs.evolve(
        batch,
        tokens_BS=batch.tokens_BS[:, first:],
        lengths_B=batch.lengths_B - first,
        tokens=batch.tokens[:, first:],
        lengths=batch.lengths - first,
        limits=batch.limits - first,
    )
    return bounded(moved, batch.least - first) if isinstance(batch, Bounded) else moved


def open_ragged(run: Run, model: PreTrainedModel, capacity: int, past: bool = False) -> CachedModel:
    """Return a head's transformer with a ragged cache of its own, which the run counts and releases.

    It is a slab, but for a run whose store keeps what rows begin with: there it is such a store, of pairs.

    Args:
        run: the run; forwards are recorded as its own are.
        model: the transformer.
        capacity: slots per row.
        past: whether all pairs are fed, cached or not.
    """
    if not past and {"scatter", "prefix"} <= run.kv.offers:
        return run.open_cache(model, layout=RaggedLayout, capacity=capacity, ahead=1)
    return run.open_cache(model, layout=RaggedLayout, kv=Slab(), capacity=capacity)
