"""P-EAGLE (arXiv 2602.01469): an EAGLE-3 head that predicts all tokens of a draft in one pass.

After the pairs with true features, which an EAGLE-3 head is fed, too, come pairs of a mask token and one learned feature, causally.
The last true pair predicts the first token, the mask pairs after it the others.

Tensor names carry their shape: B rows, W features that wait, T pairs fed, K draft tokens, D size of the head's states.
"""

from __future__ import annotations

import attrs
import torch

from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.round import Batch
from specframe.errors import ModelError
from specframe_heads.blocks.block_weights import required
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.eagle.eagle_layers import EagleHead
from specframe_heads.eagle.eagle_weights import speculators_3
from specframe_heads.features import Waiting, at
from specframe_heads.formats.format import Format
from specframe_heads.head import PairDrafter, pairs_of
from specframe_heads.place_by_place import at_once, drawn
from specframe_heads.target import Target
from specframe_heads.tensors import Tensors, require_weights

LONGEST = 64
"""The most tokens of one draft, far more than heads are trained for (8): the cache has room for as many masks."""


class PEagleHead(EagleHead):
    """An EAGLE-3 head with the pair that is fed for unknown tokens.

    Args:
        head: the EAGLE-3 head.
        mask: the mask token.
        hidden_11D: the hidden states of that pair, which are fused as the target's are.
    """

    def __init__(self, head: EagleHead, mask: int, hidden_11D: torch.Tensor) -> None:
        super().__init__(head.backbone, head.norm, head.lm_head, head.fusion, head._fed_back)
        self.vocabulary, self.mask = head.vocabulary, mask
        with torch.inference_mode():
            self.masked_D = self.fuse(hidden_11D).flatten()


def speculators(checkpoint: Checkpoint, form: Format, target: Target, tensors: Tensors) -> PEagleHead:
    """Return the head of a peagle checkpoint of ``speculators``."""
    head = speculators_3(checkpoint, form, target, tensors)
    known = head.backbone.embed_tokens.num_embeddings
    mask = required(checkpoint, "mask_token_id", checkpoint.config.get("mask_token_id"))
    if mask >= known:
        raise ModelError(f"{checkpoint} has mask_token_id {mask}: expected an id that is embedded, below {known}")
    size = len(form.ids(checkpoint, target.layers)) * target.hidden
    hidden = tensors.get("mask_hidden")
    if hidden is None or hidden.numel() != size:
        found = "none" if hidden is None else f"one of shape {tuple(hidden.shape)}"
        raise ModelError(f"{checkpoint}: expected a tensor 'mask_hidden' with {size} values, got {found}")
    require_weights(str(checkpoint), "mask_hidden", hidden)
    return PEagleHead(head, mask, hidden.to(target.device, target.dtype).view(1, 1, -1))


class PEagle(PairDrafter):
    """Proposes the tokens of one pass of an EAGLE-3 head over true pairs and masks: P-EAGLE (arXiv 2602.01469).

    Options:
        checkpoint: an alias, a directory or a hub id, in the format of speculators.
        shift: added to the numbers of the hidden states that the head is fed, for finding out whether a format is read rightly.
        tree, branch, nodes, top: the shape of the draft, as for ``dflash``.
    """

    name = "peagle"
    head: PEagleHead
    wide = True

    def beyond(self) -> int:
        """Return the slots per row needed beyond those of the target's rows: for masks, and for those that fill a row up."""
        return 2 * LONGEST

    def draft(self, batch: Batch, waiting: Waiting, budget: Budget) -> Draft:
        """Return a chain or a tree within the budget, at most :data:`LONGEST` deep."""
        count = min(budget.depth, LONGEST)
        if count == 0:
            return super().draft(batch, waiting, budget)
        view = waiting.beginning(pairs_of(batch))
        features_BTD, ids_BT = self._pairs(view, waiting, count - 1)
        states_BTD = self.feed(view, ids_BT, 0, features_BTD, keep=ids_BT.shape[1])
        slots_BK = waiting.counts_B[:, None] - 1 + torch.arange(count, device=ids_BT.device)
        logits_BKV = self.head.logits(at(states_BTD, slots_BK))
        return drawn(self, batch, attrs.evolve(budget, depth=count), *at_once(logits_BKV))

    def _pairs(self, view: Batch, waiting: Waiting, masks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features (B, T, D) and ids (B, T) of each row's pairs that wait and of the masks after them.

        A row with fewer pairs than others is filled up with masks, which no slot that is read sees.
        """
        rows, most, size = waiting.features_BWD.shape
        width = most + masks
        true_BT = torch.arange(width, device=waiting.counts_B.device) < waiting.counts_B[:, None]
        places_BT = view.positions(0, width).clamp_(max=view.tokens_BS.shape[1] - 1)
        ids_BT = view.tokens_BS.gather(1, places_BT).where(true_BT, self.head.mask)
        features_BTD = self.head.masked_D.expand(rows, width, size).clone()
        features_BTD[:, :most] = waiting.features_BWD.where(true_BT[:, :most, None], features_BTD[:, :most])
        return features_BTD, ids_BT
