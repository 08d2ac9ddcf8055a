"""PARD (arXiv 2504.18583): a small language model that predicts all tokens of a draft in one pass.

The model is trained to predict token n + k after k mask tokens. A draft of K tokens is then one pass over the tokens that the
model has not read and K - 1 masks. It reads no features: one model drafts for every target of its vocabulary.

Tensor names carry their shape: B rows, K draft tokens, T tokens fed, V vocabulary.
"""

from __future__ import annotations

from typing import cast

import attrs
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specframe.contracts.drafts import Block, Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch, Bounded, Kept
from specframe.devices import kinds
from specframe.errors import CompositionError, ModelError, sentence
from specframe.model.run import Run
from specframe.models.loading import load_model, load_tokenizer, read_config, silent
from specframe.models.vocabulary import check_vocabularies
from specframe.row_map import RowMap
from specframe_heads.checkpoint import Checkpoint, number
from specframe_heads.formats.format import Format
from specframe_heads.head import HeadDrafter, model_of, nothing
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.place_by_place import at_once, drawn
from specframe_heads.target import Target
from specframe_heads.tensors import Tensors


@attrs.frozen(eq=False)
class PardHead:
    """A model trained with masks, and the id of its mask."""

    model: PreTrainedModel
    mask: int
    vocabulary: DraftVocabulary


def pard(checkpoint: Checkpoint, form: Format, target: Target, tensors: Tensors) -> PardHead:
    """Return the model of a checkpoint on the target's device, in its precision."""
    tensors.ledger.leave(lambda name: True, "transformers reads the model")
    mask = number(checkpoint.config, "pard_token")
    model = model_for(str(checkpoint.folder), target)
    known = cast(torch.nn.Embedding, model.get_input_embeddings()).weight.shape[0]
    if mask is None or not 0 <= mask < known:
        found = checkpoint.config.get("pard_token")
        raise ModelError(f"{checkpoint} has pard_token {found!r}: expected an id that is embedded, 0 to {known - 1}")
    return PardHead(model, mask, DraftVocabulary(None, target.vocabulary))


def model_for(folder: str, target: Target) -> PreTrainedModel:
    """Return the model in a folder, without weights where the target has none."""
    if kinds.of(target.device).values:
        return load_model(folder, "draft", target.device, target.dtype)
    config = read_config(folder, "draft")
    try:
        with target.device, silent():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=target.dtype)
    except Exception as error:  # whatever transformers raises on sizes that do not fit
        raise ModelError(f"no model can be made of the configuration in {folder}: {sentence(error)}") from error
    return model.eval()


class Pard(HeadDrafter):
    """Proposes the tokens that a language model trained with masks predicts in one pass: PARD (arXiv 2504.18583).

    Between rounds the cache has the tokens that each row had when the last draft was made. A round feeds K + 1 of each row's last
    tokens, as many as may be new, and the masks, so the shape is the same whatever was accepted. A token that was read before is
    written again in its own place. Where the host does not know lengths, it takes as read what rows had at least.

    Options:
        checkpoint: an alias, a directory or a hub id of a model whose configuration has a ``pard_token``.
        tree, branch, nodes, top: the shape of the draft, as for ``dflash``.
    """

    needs: frozenset[str] = frozenset()
    name = "pard"
    head: PardHead
    wide = True

    def __init__(
        self,
        checkpoint: str,
        tree: str = "chain",
        branch: str | int | None = None,
        nodes: int | None = None,
        top: int | None = None,
    ) -> None:
        super().__init__(checkpoint, 0, tree, branch, nodes, top)

    def start(self, run: Run) -> None:
        """Load the model when it first meets a target, and open its cache."""
        self.make(run)
        if run.target_tokenizer is not None:
            tokenizer = load_tokenizer(str(self.checkpoint.folder))
            check_vocabularies(model_of(run), self.head.model, run.target_tokenizer, tokenizer)
        self._cache = run.open_cache(self.head.model)
        if self._cache.runner.state_layers:
            raise CompositionError(
                f"{self.checkpoint} has layers that keep a state, and drafter 'pard' feeds tokens again: expected others"
            )
        self._row_map, self._read = RowMap(run.rows), np.zeros(run.rows, dtype=np.int64)
        self._drafted = False

    def observe(self, outcome: Outcome) -> None:
        """Read the prefill chunk that the target has read; all else follows from the next batch's lengths."""
        if outcome.acceptance is None:
            self._cache.read(outcome.batch)

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return a chain of ``budget.depth`` tokens per row, or a tree within the budget."""
        self._row_map.arrange(batch.sequences).apply_host(self._read)
        read = self._read[: len(batch)]
        if self._drafted and isinstance(batch, Bounded):  # by now the host has the lengths of the draft before
            read[:] = batch.least - 1
        np.minimum(read, batch.least - 1, out=read)  # the last token is fed again: the first prediction is after it
        self._drafted = budget.depth > 0
        if batch.prefill:
            self._cache.read(batch, left=1)
            read[:] = batch.lengths - 1
        if budget.depth == 0:
            self._cache.follow(batch)
            return nothing(batch)
        width = max(budget.depth + 1, int((batch.lengths - read).max()))
        self._cache.commit(batch, Kept(-width))
        read[:] = batch.least
        masks_BT = batch.tokens_BS.new_full((len(batch), budget.depth - 1), self.head.mask)
        block = Block(torch.cat([batch.last_tokens(width), masks_BT], dim=1), -width)
        logits_BKV = self._cache.feed(batch, block, keep=budget.depth).logits_BTV[..., : self.head.vocabulary.size]
        return drawn(self, batch, budget, *at_once(logits_BKV))
