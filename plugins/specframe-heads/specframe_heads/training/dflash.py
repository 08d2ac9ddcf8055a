"""Training of DFlash (arXiv 2602.06036): blocks of masks that are filled in one pass.

A block begins at a token of the target's own, its anchor, and sees the features of all tokens before it. Many blocks of a text are
trained at once, each as a row of its own; the keys and values of the text are computed once.

Tensor names: B texts, A blocks of each, T tokens, K masks of a block, H hidden size, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from specframe_heads.backbone import configured
from specframe_heads.blocks.block_weights import BlockHead
from specframe_heads.blocks.net import BlockReach, DFlash, sight
from specframe_heads.stepwise.step_head import sizes
from specframe_heads.stepwise.writing import of_speculators, write
from specframe_heads.target import Target
from specframe_heads.training.learner import WRITTEN, Learner, mean
from specframe_heads.training.training_batches import Lesson

TRAINED = BlockReach(sliding_causal=True, from_anchor=True)
"""What blocks see in the format in which heads are written."""
LAYERS = 5
"""Layers of the published heads."""
ANCHORS = 24
"""Blocks of each text: about as many as make the masks of a text as many as its tokens."""


class DFlashLearner(Learner):
    """DFlash with the target's embedding and language head, neither of which is trained.

    Args:
        target: the model that it is for.
        places: masks of a block.
        layers: of the network, or None for :data:`LAYERS`.
    """

    def __init__(self, target: Target, places: int, layers: int | None = None) -> None:
        super().__init__(target, places)
        count, last = layers or LAYERS, target.layers - 1
        self._config = sizes(target) | {"model_type": "qwen3", "num_hidden_layers": count}
        del self._config["mlp_bias"]
        self._taken = tuple(sorted({max(1, round(1 + place * (last - 1) / 2)) for place in range(3)}))
        self.net = DFlash(configured("the head", self._config), len(self._taken) * target.hidden)

    @classmethod
    def like(cls, target: Target, head: BlockHead, layers: tuple[int, ...], places: int) -> DFlashLearner | None:
        """Return a learner of blocks as long; blocks that see otherwise, or begin with another mask, are not trained here."""
        made, facts = cls(target, head.longest, len(head.net.layers)), head.facts
        same = facts.reach == TRAINED and facts.mask == made.mask and not facts.anchored and head.vocabulary.ids is None
        return made if same else None

    @property
    def layers(self) -> tuple[int, ...]:
        """The hidden states of a low, the middle and a high layer."""
        return self._taken

    @property
    def mask(self) -> int:
        """The token of masks: the one that ends texts, which no draft has to begin with."""
        config = self.target.model.config.get_text_config()
        given = getattr(config, "eos_token_id", None)
        return int(given[0] if isinstance(given, list) else given or 0)

    def blocks(self, lesson: Lesson, anchors_BA: torch.Tensor) -> torch.Tensor:
        """Return the logits of the masks after each anchor, (B, A, K, V)."""
        texts, blocks = anchors_BA.shape
        places_T = torch.arange(lesson.ids_BT.shape[1], device=anchors_BA.device)
        fused_BTH = self.net.fused(torch.cat([lesson.hidden[one] for one in self._taken], dim=-1))
        known = self._known(fused_BTH, places_T[None].expand(texts, -1), blocks)
        anchors_R1 = anchors_BA.reshape(-1, 1)
        index_RT = anchors_R1 + torch.arange(self.places + 1, device=anchors_BA.device)
        before_RT = places_T.where(places_T < anchors_R1, -1)  # what follows the anchor is not known yet

        def put(layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return tuple(torch.cat(both, dim=2) for both in zip(known[layer], (keys, values), strict=True))  # type: ignore[return-value]

        ids_RT = torch.full_like(index_RT, self.mask)
        ids_RT[:, :1] = lesson.ids_BT.gather(1, anchors_BA).reshape(-1, 1)
        embedded_RTH = self.target.model.get_input_embeddings()(ids_RT)
        seen = sight(torch.cat([before_RT, index_RT], dim=1), index_RT, self.net.windows, TRAINED, embedded_RTH.dtype)
        states_RKH = self.net(embedded_RTH, index_RT, seen, put)[:, 1:]
        return self.target.model.get_output_embeddings()(states_RKH).unflatten(0, (texts, blocks))

    def _known(
        self, fused_BTH: torch.Tensor, places_BT: torch.Tensor, blocks: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the keys and values of texts in every layer, once for each block."""
        found: list[tuple[torch.Tensor, torch.Tensor]] = []

        def take(layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            found.append((keys.repeat_interleave(blocks, 0), values.repeat_interleave(blocks, 0)))
            return found[-1]

        self.net.remember(fused_BTH, places_BT, take)
        return found

    def _wanted(self, lesson: Lesson, anchors_BA: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens after each anchor, (B, A, K), and where they are the target's own."""
        places_BAK = anchors_BA[..., None] + 1 + torch.arange(self.places, device=anchors_BA.device)
        within_BAK = places_BAK < lesson.ids_BT.shape[1]
        places_BN = places_BAK.clamp(max=lesson.ids_BT.shape[1] - 1).flatten(1)
        tokens_BAK, own_BAK = (one.gather(1, places_BN).view_as(places_BAK) for one in (lesson.ids_BT, lesson.own_BT))
        return tokens_BAK, own_BAK & within_BAK

    def loss(self, lesson: Lesson, places: int) -> torch.Tensor:
        """Return the cross entropy with the tokens after some anchors; earlier places weigh more, by exp(-k / half the block)."""
        anchors_BA = some(lesson, ANCHORS, int(lesson.ids_BT.sum()))  # a resumed training draws the same ones
        logits_BAKV, (wanted_BAK, counts_BAK) = self.blocks(lesson, anchors_BA), self._wanted(lesson, anchors_BA)
        losses_BAK = F.cross_entropy(logits_BAKV.flatten(0, 2), wanted_BAK.flatten(), reduction="none").view_as(
            wanted_BAK
        )
        weights_K = torch.exp(-torch.arange(self.places, device=anchors_BA.device) / (self.places / 2))
        return mean(losses_BAK, counts_BAK * weights_K)

    def save(self, folder: Path) -> None:
        """Write the head in the format of `speculators`, without the target's embedding and language head."""
        tensors = {name: one.detach() for name, one in self.net.state_dict().items()}
        config = of_speculators("dflash", "DFlashDraftModel", self.target, self._config, self.places)
        config |= {
            "draft_vocab_size": self.target.vocabulary,
            "block_size": self.places + 1,
            "mask_token_id": self.mask,
            "aux_hidden_state_layer_ids": list(self._taken),
        }
        write(folder, config, tensors, WRITTEN)


def some(lesson: Lesson, count: int, seed: int) -> torch.Tensor:
    """Return anchors, (B, A): tokens that one of the target's own follows, drawn by a seed."""
    generator = torch.Generator().manual_seed(seed)
    fits_BT = lesson.own_BT[:, 1:].float().cpu() + 1e-6  # a text without any gets some that do not count
    return torch.multinomial(fits_BT, count, replacement=True, generator=generator).to(lesson.ids_BT.device)
