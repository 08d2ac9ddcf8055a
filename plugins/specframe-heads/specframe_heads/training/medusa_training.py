"""Training of Medusa's heads on a frozen target: Medusa-1 (Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.nn.functional as F

from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.stepwise import writing
from specframe_heads.stepwise.step_head import StepHead
from specframe_heads.stepwise.steps import Medusa
from specframe_heads.target import Target
from specframe_heads.training.learner import WRITTEN, Learner, mean
from specframe_heads.training.training_batches import Lesson

DECAY = 0.8
"""The weight of each head, times that of the head before: the paper's."""


class MedusaLearner(Learner):
    """Medusa's heads, each with one block and a language head that starts as the target's.

    Args:
        target: the model that they are for.
        places: how many there are.
        ids: the target's ids that they know, or None for all. Language heads are the larger part of Medusa.
    """

    def __init__(self, target: Target, places: int, ids: torch.Tensor | None = None) -> None:
        super().__init__(target, places)
        lm_head = target.head("the head", target.hidden)
        self._vocabulary = DraftVocabulary(ids, target.vocabulary).to(target.device)
        self.steps = Medusa(target.hidden, len(lm_head) if ids is None else len(ids), places, bias=False)
        with torch.no_grad():
            for one in self.steps.lm_heads:
                one.weight.copy_(lm_head if ids is None else lm_head[ids])

    @classmethod
    def like(cls, target: Target, head: StepHead, layers: tuple[int, ...], places: int) -> MedusaLearner:
        """Return a learner with a copy of the heads in float32, whatever their blocks are."""
        assert isinstance(head.steps, Medusa)
        made = cls(target, head.steps.count, head.vocabulary.ids)
        made.steps = copy.deepcopy(head.steps).float().requires_grad_(True)
        return made

    @property
    def layers(self) -> tuple[int, ...]:
        """The state after the final norm."""
        return (self.target.layers,)

    def predicted(self, lesson: Lesson, places: int) -> list[torch.Tensor]:
        """Return the logits of each head."""
        return self.steps.unrolled(lesson.hidden[self.target.layers][:, :-1], lesson.after_BT, places)

    def loss(self, lesson: Lesson, places: int) -> torch.Tensor:
        """Return the cross entropy of all heads with the target's choices; those that a head does not know count nothing."""
        total, known = lesson.logits_BTV.new_zeros(()), self._known(lesson.logits_BTV.device)
        for place, logits_BTV in enumerate(self.predicted(lesson, places)):
            wanted_BT = known[lesson.ahead(lesson.logits_BTV, place).argmax(-1)]
            counts_BT = lesson.counts(place) * (wanted_BT >= 0)
            losses_BT = F.cross_entropy(logits_BTV.transpose(1, 2), wanted_BT.clamp(min=0), reduction="none")
            total = total + DECAY**place * mean(losses_BT, counts_BT)
        return total

    def _known(self, device: torch.device) -> torch.Tensor:
        """Return the heads' id of each of the target's, (V,); -1: they do not know it."""
        if self._vocabulary.ids is None:
            return torch.arange(self._vocabulary.size, device=device)
        known = torch.full((self._vocabulary.size,), -1, device=device)
        return known.index_copy_(0, self._vocabulary.ids, torch.arange(len(self._vocabulary.ids), device=device))

    def save(self, folder: Path) -> None:
        """Write the heads under vLLM's names."""
        ids, blocks = self._vocabulary.ids, self.steps.blocks[0]
        tensors = writing.tensors_of(StepHead(self.steps, self._vocabulary), writing.MEDUSA)
        config = {
            "model_type": "medusa",
            "architectures": ["MedusaModel"],
            "hidden_size": self.target.hidden,
            "vocab_size": self.target.vocabulary,
            "truncated_vocab_size": self.target.vocabulary if ids is None else len(ids),
            "num_heads": self.places,
            "num_hidden_layers": sum(1 for _ in blocks.children()),
            "medusa_fc_bias": "0.linear.bias" in blocks.state_dict(),
            "original_lm_head": False,
        }
        writing.write(folder, config, tensors | ({} if ids is None else {"token_map": ids}), WRITTEN)
