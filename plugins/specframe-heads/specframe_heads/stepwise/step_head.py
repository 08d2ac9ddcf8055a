"""A head that predicts one place after the other, as the drafter runs it."""

from __future__ import annotations

import torch

from specframe_heads.head_vocabulary import DraftVocabulary
from specframe_heads.stepwise.layers import HeadLayers
from specframe_heads.stepwise.steps import Steps


class StepHead(torch.nn.Module):
    """The steps, the layers before them, and the vocabulary of both.

    Args:
        steps: from state to state.
        vocabulary: of the logits.
        backbone: makes the first state of the features so far, or None if it is the last feature itself.
    """

    def __init__(self, steps: Steps, vocabulary: DraftVocabulary, backbone: HeadLayers | None = None) -> None:
        super().__init__()
        self.steps, self.vocabulary, self.backbone = steps, vocabulary, backbone

    def fuse(self, states_BTD: torch.Tensor) -> torch.Tensor:
        """Return the hidden states as they are."""
        return states_BTD

    def states(self, features_BTD: torch.Tensor, ids_BT: torch.Tensor) -> torch.Tensor:
        """Return the first states of whole texts, (B, T, D), from features and the tokens after them: for training."""
        if self.backbone is None:
            return features_BTD
        return self.backbone(ids_BT, features=features_BTD).logits
