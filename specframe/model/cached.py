"""A model with one KV cache, as drafter and verifier use it.

Tensor names carry their shape: B rows, T tokens fed per row, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import attrs
import torch

from specframe.contracts.cache import KVStore, Placement
from specframe.contracts.drafts import Block, Scores
from specframe.contracts.graphs import ModelGraphs
from specframe.contracts.model import PLAIN, ForwardOptions, Model
from specframe.contracts.roles import Layout
from specframe.contracts.round import Batch, Kept, Sequence
from specframe.contracts.states import PrefixStates
from specframe.errors import ModelError
from specframe.model.padding_free import MANY, MixedBatch, prefill_chunk
from specframe.observe.watch import Watch

Choose = Callable[[Batch, int, torch.Tensor], torch.Tensor]
"""Chooses the token at the place ``offset`` after each row's end: (batch, offset, logits (B, 1, V)) -> (B, 1)."""


class CachedModel:
    """A model with one KV cache, fed through a layout: that of the run's alignment, or one of its own.

    What strategies may use of it is listed in docs/stability.md; the rest is the engine's.

    Forwards of layers with a state are not compiled; ``graphs`` is None where nothing is captured.

    Raises:
        ModelError: forwards cannot be run so, or the model has layers that keep a state, and there are no states.
    """

    runner: Model
    """The model."""
    layout: Layout
    """The places of its tokens."""
    store: KVStore
    """Its keys and values. A drafter that attends by itself writes to it at the places that :meth:`place` returns."""

    def __init__(
        self,
        runner: Model,
        store: KVStore,
        layout: Layout,
        watch: Watch,
        how: ForwardOptions = PLAIN,
        graphs: ModelGraphs | None = None,
    ) -> None:
        if runner.state_layers and how.states is None:
            raise ModelError(
                f"{runner} has layers that keep a state: expected a strategy whose cache run.open_cache() opens without a "
                "layout of its own, or a model whose layers all attend"
            )
        runner.require(how)
        self.runner, self.store, self.layout, self._watch = runner, store, layout, watch
        self._how, self._static, self.states = how, layout.static, how.states
        self._together: tuple[list[Sequence], list[Sequence], list[Sequence]] = [], [], []
        """The rows of the last two batches of one forward, and of both together."""
        self._committed: weakref.ref[Kept] | None = None
        """The last ``Kept`` that the layout received."""
        self._reserved: dict[int, Sequence] = {}
        """The sequences that the store has room for."""
        self._hidden: tuple[int, ...] = ()
        self._past = False
        """Whether hidden states of all of a row's tokens are needed."""
        self._borrowed = False
        """Whether the cache is another model's: what this one writes is never known to be committed."""
        self.keeps_states = False
        """Whether states, where there are any, are :class:`specframe.contracts.states.PrefixStates`."""
        self._captured: Callable[..., Scores] | None = None
        self._graphs: ModelGraphs | None = None
        if graphs is not None and (slots := store.slots) is not None:
            self._graphs = graphs
            self._captured = graphs.begin(self._forward, store, slots)

    @property
    def new_shapes(self) -> int:
        """See :attr:`specframe.model.run.Run.new_shapes`; of this model alone."""
        return self._graphs.new_shapes if self._graphs else 0

    @property
    def rounds(self) -> Any | None:
        """The rounds that are captured, where this is the target, or None: places do not follow from lengths on the device alone,
        or memory moves."""
        return self._graphs.rounds if self._graphs and self._static else None

    @property
    def mixes(self) -> bool:
        """Whether a block and a prefill chunk are fed in one captured forward."""
        return self.rounds is not None and self.runner.leaves_out_padding(MANY, 1)

    @property
    def packs(self) -> bool:
        """Whether captured forwards attend by lengths alone, to all slots."""
        return self.runner.by_lengths(self._how)

    def shared(self, runner: Model, how: ForwardOptions, graphs: ModelGraphs | None) -> CachedModel:
        """Return another model on this one's cache."""
        made = self._beside(runner, attrs.evolve(how, states=self.states) if self.states is not None else how, graphs)
        made._borrowed = True
        return made

    def _beside(self, runner: Model, how: ForwardOptions, graphs: ModelGraphs | None) -> CachedModel:
        return CachedModel(runner, self.store, self.layout, self._watch, how, graphs)

    def _forward(self, block: Block, placement: Placement, keep: int, hidden: tuple[int, ...] = ()) -> Scores:
        """Return the scores of a forward, as one that is to be captured is run."""
        return self.runner.forward(block, placement, self.store, keep=keep, hidden=hidden, how=self._how)

    def capture(self, layers: Iterable[int], past: bool = True) -> None:
        """Add these hidden states to the scores of every later feed, in addition to those asked for before.

        Args:
            layers: numbers of hidden states, as transformers has them: 0 is the embedding, the last what follows the final norm;
                one more is what precedes that norm.
            past: whether the hidden states of all of a row's tokens are needed, so that all are fed, or only of those that some
                cache of the run lacks.

        Raises:
            ModelError: the model has no such hidden states, or does not say which of its modules are layers.
        """
        wanted = tuple(sorted({*self._hidden, *layers}))
        self.runner.require(self._how, wanted)
        self._hidden, self._past = wanted, self._past or (past and bool(wanted))

    def release(self) -> None:
        """Have the store release what it has room for, and let go of it and of what is captured over it."""
        try:
            for sequence in [*self._reserved.values()]:
                self.forget(sequence)
        finally:
            self._graphs = None
            del self.store, self.layout, self.states, self._captured

    def reserve(self, sequence: Sequence, tokens: int) -> int | None:
        """Make room for a sequence that begins with ``tokens`` tokens; return how many need not be fed, or None without room.

        Where hidden states of all tokens are needed, or a layer keeps a state that is not cached, all have to be.
        """
        cached = self.store.reserve(sequence, tokens)
        if cached is not None:
            self._reserved[id(sequence)] = sequence
        if cached is None or (self.states is None and not self._past):
            return cached
        if self._past or not self.keeps_states:
            return 0
        return cached if self.runner.kv_shapes else tokens

    def begin_after(self, sequence: Sequence, tokens: int) -> int:
        """Return after how many tokens, ``tokens`` at most, a sequence can begin whose keys and values are cached up to there."""
        if self.states is None or not self.keeps_states:
            return tokens
        return cast(PrefixStates, self.states).begin_after(sequence, tokens)

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended, or gives its room back; nothing happens where there is none for it."""
        if self._reserved.pop(id(sequence), None) is None:
            return
        try:
            self.store.release(sequence)
        except BaseException:
            self._reserved[id(sequence)] = sequence  # it is asked once more, when it is closed
            raise

    def feed(
        self, batch: Batch, block: Block, keep: int = 1, mixed: Batch | None = None, followed: bool = False
    ) -> Scores:
        """Feed a block of tokens to every row; return the scores of the last ``keep`` of them, logits (B, keep, V).

        Rows with fewer tokens than that are padded on the left, with any ids.

        Args:
            batch: the rows.
            block: what they are fed.
            keep: tokens whose logits are asked for.
            mixed: the batch of a prefill chunk, which was fed in the same forward if the returned scores have its scores as well.
                It is not where places do not follow from lengths alone, where a layer keeps a state or padding is computed, and
                where masks would be too large.
            followed: whether the batch's sequences are the rows of this cache already.
        """
        if mixed is not None:
            chunk = prefill_chunk(mixed, mixed.left, mixed.uncached - mixed.left)
            if self._fit(batch, block, mixed, chunk):
                return self._feed_both(batch, block, keep, mixed, chunk)
        if not followed:
            self.follow(batch)
        placement = self._place(batch, block)
        if self._borrowed:
            placement = placement.by_a_draft()
        if self.states is not None:
            self.states.begin(batch, block)
        self._watch.forward(self.runner.role, *block.ids_BT.shape)
        if self._captured is None or self._watch.held is not None:  # a part of a round that is captured
            scores = self.runner.forward(block, placement, self.store, keep=keep, hidden=self._hidden, how=self._how)
        else:
            scores = self._captured(block, placement, keep, self._hidden, self.store.first)
        self._watch.fed(self.runner.role, block.tokens, scores.computed or block.ids_BT.numel())
        return scores

    def _fit(self, batch: Batch, block: Block, mixed: Batch, chunk: Block) -> bool:
        """Return whether a block and a prefill chunk can be fed in one forward."""
        places = (len(batch) + len(mixed)) * max(block.width, chunk.width)
        most = self.runner.tokens_at_once(max(batch.longest, mixed.longest), self._how)
        if not self._static or block.extra or places > most:
            return False
        return self.runner.leaves_out_padding(places, block.tokens + chunk.tokens)

    def _feed_both(self, batch: Batch, block: Block, keep: int, mixed: Batch, chunk: Block) -> Scores:
        """Return the scores of a block, with those of a prefill chunk that is fed in the same forward."""
        of_chunk = self.place(mixed, chunk)  # first: checks of scores follow the places that they saw last
        room = self._graphs.room(len(mixed), chunk.width) if self._graphs and self._watch.held is None else None
        both = MixedBatch.of(block, chunk, (self.place(batch, block), of_chunk), room)
        if self._together[:2] != (batch.sequences, mixed.sequences):
            self._together = batch.sequences, mixed.sequences, [*batch.sequences, *mixed.sequences]
        with self._watch.stage("schedule"):
            self.store.arrange(self._together[2])
        self._watch.forward(self.runner.role, *both.block.ids_BT.shape)
        forward = self._forward if room is None or self._captured is None else self._captured
        scores = forward(both.block, both.placement, keep, self._hidden)
        self._watch.fed(self.runner.role, block.tokens + chunk.tokens, both.padding_free.tokens)
        self.follow(batch)  # it alone is committed
        return both.parted(scores)

    def extend(self, batch: Batch, ids_BT: torch.Tensor, count: int, choose: Choose) -> torch.Tensor:
        """Feed the tokens that end at each row's length, then, one after the other, those chosen after them.

        Args:
            batch: the rows.
            ids_BT: the tokens that are fed first.
            count: tokens to choose; the last of them is not fed.
            choose: chooses one token of every row; none, (B, 0), ends the chain.

        Returns:
            (B, count) ids, or fewer where the chain was ended.
        """
        self.follow(batch)
        chosen = [ids_BT[:, :0]]
        for offset in range(count):
            scores = self.feed(batch, Block(ids_BT, offset - ids_BT.shape[1]), followed=True)
            chosen.append(ids_BT := choose(batch, offset, scores.logits_BTV))
            if not ids_BT.shape[1]:
                break
        return torch.cat(chosen, dim=1)

    def place(self, batch: Batch, block: Block) -> Placement:
        """Return the places of the tokens about to be fed, after moving whatever has to move for them."""
        self.follow(batch)
        return self._place(batch, block)

    def _place(self, batch: Batch, block: Block) -> Placement:
        """Return the places of the tokens about to be fed to a batch that is arranged."""
        placement = self.layout.place(batch, block)
        by_rows = self.runner.by_rows
        return placement if by_rows is None else by_rows.placed(batch, placement)

    def follow(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of this cache and its layout: they are where a round is captured."""
        if self._watch.held is not None:
            return
        with self._watch.stage("schedule"):
            self.store.arrange(batch.sequences)
            if self.states is not None:
                self.states.arrange(batch.sequences)
            if self._static:
                self.layout.arrange(batch)
        if not self._static:
            with self._watch.stage("align"):
                self.layout.arrange(batch)

    def tokens_at_once(self, batch: Batch) -> int:
        """Return how many tokens of each row's prompt are fed in one forward."""
        return max(1, self.runner.tokens_at_once(max(1, batch.longest), self._how) // len(batch))

    def read(self, batch: Batch, left: int = 0, uncached: int | None = None) -> Scores:
        """Prefill: feed the prompts, or as much of them as the batch says, in chunks.

        Args:
            batch: rows of which all is cached but their last ``uncached`` tokens.
            left: tokens at the end of each row that are not fed, if the batch does not leave more.
            uncached: in place of the batch's, or None for that.

        Returns:
            The scores of the last token fed, logits (B, 1, V), with the hidden states of all tokens fed; no logits, (B, 0, V),
            and no hidden states when there was nothing to feed.
        """
        if uncached is not None:
            batch = attrs.evolve(batch, uncached=uncached, uncached_rows=None)
        ahead = batch.uncached
        scores = Scores(torch.empty(len(batch), 0, self.runner.vocabulary, device=self.runner.device))
        left, hidden = max(left, batch.left), list[Mapping[int, torch.Tensor]]()
        chunk, forks = self.tokens_at_once(batch), self._forks(batch)
        self._remember(batch, forks and ahead == 1)
        while ahead > left:
            step = min(ahead - left, chunk)
            if forks and ahead > 1:
                step = min(step, ahead - 1)  # forks begin before the prompt's last token
            ahead -= step
            scores = self.feed(batch, prefill_chunk(batch, ahead, step))
            hidden.append(scores.hidden)
            if self.states is not None:
                left_B = ahead if batch.uncached_rows is None else batch.uncached_rows.clip(max=ahead)
                self.commit(batch, Kept(-left_B))
            self._remember(batch, forks and ahead == 1)
        if len(hidden) < 2 or not self._hidden:
            return scores
        return Scores(scores.logits_BTV, {n: torch.cat([one[n] for one in hidden], dim=1) for n in self._hidden})

    def _forks(self, batch: Batch) -> bool:
        """Return whether states at the end of these prompts have to be kept for forks."""
        return self.states is not None and not batch.left and any(sequence.forks for sequence in batch.sequences)

    def _remember(self, batch: Batch, now: bool) -> None:
        """Keep the states that forks start from, if this is where they do: before their prompt's last token."""
        if now and self.states is not None:
            self.follow(batch)
            self.states.remember(batch)

    def commit(self, batch: Batch, kept: Kept) -> None:
        """Crop the cache: forget all tokens that were fed but the accepted ones.

        The loop commits the target's cache once it knows the acceptance result, a drafter its own before it feeds tokens in place
        of others. :meth:`read` commits what it has fed. A ``Kept`` that was committed last is passed over.
        """
        if self.states is not None:
            self.states.commit(batch, kept)
        if kept.path_BT is None and self._static:
            return  # the next block overwrites what was not accepted
        if self._committed is not None and self._committed() is kept:
            return
        with self._watch.stage("align"):
            self.layout.commit(batch, kept)
        self._committed = weakref.ref(kept)  # a reference of its own would hold a round's logits
