"""Training of Clover-2 (Xiao et al. 2024, arXiv 2408.00264)."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from specframe_heads.backbone import configured
from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.stepwise import writing
from specframe_heads.stepwise.step_head import HeadLayers, StepHead, sizes
from specframe_heads.stepwise.steps import Clover2
from specframe_heads.target import Target
from specframe_heads.training.learner import WRITTEN, Learner, mean, soft_cross_entropy
from specframe_heads.training.training_batches import Lesson

DECAY, FEATURES = 0.7, 10.0
"""The weight of each place, times that of the place before, and that of the features against the tokens: the paper's."""
LAYERS = 2
"""Transformer layers before the steps: the paper's."""


class Clover2Learner(Learner):
    """Clover-2, whose embedding is the target's language head; neither is trained.

    Args:
        target: the model that it is for.
        places: how many it predicts.
        layers: transformer layers before the steps, or None for :data:`LAYERS`.
    """

    def __init__(self, target: Target, places: int, layers: int | None = None) -> None:
        super().__init__(target, places)
        self._config = sizes(target) | {"num_hidden_layers": layers or LAYERS}
        config, lm_head = configured("the head", self._config), target.head("the head", target.hidden)
        steps = Clover2(target.hidden, config.num_attention_heads, places, lm_head, lm_head, config.rms_norm_eps)
        backbone = HeadLayers(config, norm=True, enter=True)
        backbone.embed_tokens.weight = torch.nn.Parameter(lm_head, requires_grad=False)
        self.head = StepHead(steps, DraftVocabulary(None, target.vocabulary), backbone)
        self._begin()

    @classmethod
    def like(cls, target: Target, head: StepHead, layers: tuple[int, ...], places: int) -> Clover2Learner:
        """Return a learner of as many layers; the format does not say how many places a head was trained for."""
        assert head.backbone is not None
        return cls(target, places, len(head.backbone.layers))

    @torch.no_grad()
    def _begin(self) -> None:
        """Set the weights that training starts from: gates that add nothing, and the identity."""
        steps, layers = self.head.steps, self.head.backbone
        assert isinstance(steps, Clover2)
        assert layers is not None
        assert layers.enter is not None
        for gate in (steps.gate, layers.enter):
            gate.reset_parameters()
        for linear in (steps.first, steps.later):
            torch.nn.init.uniform_(linear.weight, -0.01, 0.01)
            linear.weight[:, : self.target.hidden] += torch.eye(self.target.hidden)
            torch.nn.init.zeros_(linear.bias)

    @property
    def layers(self) -> tuple[int, ...]:
        """The output of the last layer before the final norm, which the head reads, and the state after it, which it foresees."""
        return self.target.layers + 1, self.target.layers

    def foreseen(self, lesson: Lesson, places: int) -> list[torch.Tensor]:
        """Return the features predicted for each place, (B, T, D) each."""
        steps, found = self.head.steps, list[torch.Tensor]()
        assert isinstance(steps, Clover2)
        states_BTD = self.head.states(lesson.hidden[self.target.layers + 1][:, :-1], lesson.after_BT)
        for place in range(places):
            features_BTD, states_BTD = steps.predicted(place, states_BTD, lesson.ahead(lesson.ids_BT, place))
            found.append(features_BTD)
        return found

    def loss(self, lesson: Lesson, places: int) -> torch.Tensor:
        """Return the distances from the target's features and distributions."""
        total = lesson.logits_BTV.new_zeros(())
        for place, features_BTD in enumerate(self.foreseen(lesson, places)):
            counts_BT, wanted_BTD = lesson.counts(place), lesson.ahead(lesson.hidden[self.target.layers], place)
            apart_BT = F.smooth_l1_loss(features_BTD, wanted_BTD, reduction="none").mean(-1)
            words = soft_cross_entropy(self._logits(features_BTD), lesson.ahead(lesson.logits_BTV, place), counts_BT)
            total = total + DECAY**place * (FEATURES * mean(apart_BT, counts_BT) + words)
        return total

    def _logits(self, features_BTD: torch.Tensor) -> torch.Tensor:
        return F.linear(features_BTD, self.target.head("the head", self.target.hidden))

    def save(self, folder: Path) -> None:
        """Write the head under the authors' names."""
        config = {"architectures": ["Clover2Model"], **self._config, "clover_num_heads": self.places}
        writing.write(folder, config, writing.tensors_of(self.head, writing.CLOVER2), WRITTEN)
