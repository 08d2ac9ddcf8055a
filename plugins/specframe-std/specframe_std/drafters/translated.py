"""A draft language model with another tokenizer than the target's: text goes between them.

String-level exact match (Timor et al. 2025, arXiv 2502.05202), in transformers universal assisted generation, for batches and
drafting greedily. What is proposed is a function of the row's tokens alone, a distribution with all its mass on one
continuation, so every lossless rule stays lossless.
"""

from __future__ import annotations

import itertools
import weakref

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Block, Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch, Sequence
from specframe.devices.kinds import on_device
from specframe.errors import CompositionError
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe_std.drafters.texts import Transcript, Translation, codecs, common
from specframe_std.kv.ragged_layout import RaggedLayout
from specframe_std.kv.slab import Slab

FILLER = [0]
"""Text that the draft model reads for a row without text."""


@attrs.define(eq=False)
class TranslatedRow:
    """One sequence in both vocabularies."""

    target: Transcript
    draft: Translation
    cached: list[int]
    """The tokens whose keys and values the draft model's cache holds for it, rejected ones among them."""

    @property
    def ids(self) -> list[int]:
        """Its tokens in the draft model's vocabulary, at least one."""
        return self.draft.ids or FILLER

    def read(self, ids: list[int]) -> None:
        """Take the target's next tokens."""
        text = self.target.text
        if added := self.target.read(ids):
            self.draft.grow(text, added)

    def translated(self, drafted: list[int]) -> list[int]:
        """Return draft tokens, up to one that is no text, in the target's."""
        codec = self.draft.codec
        voiced = list(itertools.takewhile(lambda token: token not in codec.silent, drafted))
        added = codec.after(self.draft.ids, voiced)
        return self.target.tokens(added) if added else []


class TranslatedDrafter:
    """Proposes the continuation of a draft model with another tokenizer, by way of text.

    Each round a row's new tokens become text, the text becomes tokens of the draft model, which continues them greedily by K
    tokens of its own, and the text of these becomes tokens of the target, as far as they follow the row's own: K at most,
    with fewer the rest is padding. Special tokens pass where both tokenizers know them.

    The draft model's cache lives as long as its sequences. Its rows have lengths of their own, in its own tokens, so it is a
    ragged slab under every alignment; what a row's tokens have in common with those cached is not read again. Strings are
    made on the host: a round synchronises with the device once more than with the drafter ``model``.
    """

    needs: frozenset[str] = frozenset()
    offers = frozenset({"chain"})

    def start(self, run: Run) -> None:
        """Open the draft model's cache."""
        if run.draft_model is None:
            raise CompositionError(
                "drafter 'translated' needs a draft language model: pass one as --drafter or drafter="
            )
        for role, tokenizer in (("target", run.target_tokenizer), ("draft", run.draft_tokenizer)):
            if tokenizer is None:
                raise CompositionError(f"drafter 'translated' needs the tokenizers of both models: the {role} has none")
        self._run, self._model = run, run.draft_model
        self._target, self._draft = codecs(run.target_tokenizer, run.draft_tokenizer)
        self._rows: weakref.WeakKeyDictionary[Sequence, TranslatedRow] = weakref.WeakKeyDictionary()
        self._cache = self._open(run.capacity)
        self._vocabulary = min(self._cache.runner.vocabulary, len(self._draft.tokenizer))

    def observe(self, outcome: Outcome) -> None:
        """Read the prefill chunk that the target has read; the tokens of a round are in the next batch."""
        if outcome.transfer is None:
            self._follow(outcome.batch, outcome.batch.left, 0)

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return up to ``budget.depth`` tokens per row; they are certain, so there are no logits."""
        draft_length = budget.depth
        view, rows, width = self._follow(batch, 0, draft_length)
        if draft_length == 0:
            return Draft(batch.tokens_BS[:, :0])
        drafted = self._continue(view, width, draft_length).tolist()
        proposed = np.zeros((len(batch), draft_length), dtype=np.int64)
        counts = np.zeros(len(batch), dtype=np.int64)
        for place, (row, ids) in enumerate(zip(rows, drafted, strict=True)):
            row.cached = row.ids + ids[:-1]
            known = itertools.takewhile(lambda token: token < self._run.runner.vocabulary, row.translated(ids))
            tokens = [*itertools.islice(known, draft_length)]
            proposed[place, : len(tokens)], counts[place] = tokens, len(tokens)
        sent_BX = on_device(np.column_stack([counts, proposed]), batch.tokens_BS.device)
        return Draft(sent_BX[:, 1:], counts_B=sent_BX[:, 0], counts=counts)

    def _follow(self, batch: Batch, left: int, draft_length: int) -> tuple[Batch, list[TranslatedRow], int]:
        """Read what is new in a batch, but for the ``left`` last tokens of each row.

        Returns:
            The batch in the draft model's tokens, its rows, and how many last tokens of each are to be fed.
        """
        rows = self._read(batch, left)
        self._reserve(max(len(row.ids) for row in rows) + draft_length)
        view = self._view(batch, rows)
        self._cache.follow(view)
        return view, rows, self._catch_up(view, rows)

    def _read(self, batch: Batch, left: int) -> list[TranslatedRow]:
        """Return the batch's rows after reading what is new in them, but for the ``left`` last tokens."""
        rows = [self._row(sequence) for sequence in batch.sequences]
        for row, tokens, length in zip(rows, batch.tokens, batch.lengths.tolist(), strict=True):
            if ids := tokens[row.target.count : max(length - left, 0)].tolist():
                row.read(ids)
        return rows

    def _row(self, sequence: Sequence) -> TranslatedRow:
        """Return the state of a sequence. A fork starts with its parent's cached tokens."""
        if sequence not in self._rows:
            parent = self._rows.get(sequence.parent) if sequence.parent else None
            cached = list(parent.cached) if parent else []
            self._rows[sequence] = TranslatedRow(Transcript(self._target), Translation(self._draft), cached)
        return self._rows[sequence]

    def _view(self, batch: Batch, rows: list[TranslatedRow]) -> Batch:
        """Return the batch in the draft model's tokens."""
        lengths = np.array([len(row.ids) for row in rows])
        sent = np.zeros((len(rows), 1 + lengths.max()), dtype=np.int64)
        sent[:, 0] = lengths
        for row, places in zip(rows, sent, strict=True):
            places[1 : 1 + len(row.ids)] = row.ids
        sent_BX = on_device(sent, self._cache.runner.device)
        lengths_B, tokens_BS = sent_BX[:, 0], sent_BX[:, 1:]
        batch = attrs.evolve(batch, tokens_BS=tokens_BS, lengths_B=lengths_B, tokens=sent[:, 1:])
        return attrs.evolve(batch, lengths=lengths, limits=lengths, left=0)

    def _catch_up(self, view: Batch, rows: list[TranslatedRow]) -> int:
        """Read prompts, and rows of which nothing is cached, up to their last tokens; return how many last tokens are to be fed."""
        cached = np.array([min(common(row.cached, row.ids), len(row.ids) - 1) for row in rows])
        if view.prefill or not cached.any():
            self._cache.read(view, left=1, uncached=int((view.lengths - cached).max()))
            cached = view.lengths - 1
            for row in rows:
                row.cached = row.ids[:-1]
        return max(2, int((view.lengths - cached).max()))

    def _continue(self, view: Batch, width: int, count: int) -> torch.Tensor:
        """Return the draft model's own next tokens, (B, count)."""
        ids_BT = view.last_tokens(width)
        drafted = []
        for offset in range(count):
            logits_B1V = self._cache.feed(view, Block(ids_BT, offset - ids_BT.shape[1])).logits_BTV[
                ..., : self._vocabulary
            ]
            ids_BT = logits_B1V.argmax(-1)
            drafted.append(ids_BT)
        return torch.cat(drafted, dim=1)

    def _reserve(self, length: int) -> None:
        """Make room for rows of ``length`` tokens; in a new cache everything has to be read again, which doubling bounds."""
        if length <= self._capacity:
            return
        self._run.close_cache(self._cache)
        self._cache = self._open(2 * length)
        for row in self._rows.values():
            row.cached = []

    def _open(self, capacity: int) -> CachedModel:
        self._capacity = capacity
        return self._run.open_cache(self._model, layout=RaggedLayout, kv=Slab(), capacity=capacity)
