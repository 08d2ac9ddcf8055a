"""Medusa: heads that each predict one place from the same feature (Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from specframe_heads.stepwise.residual import Residual
from specframe_heads.stepwise.steps import Steps


class Medusa(Steps):
    """Head k: residual blocks, then a linear layer without bias to the vocabulary. It predicts the token k + 2 after the feature's.

    Args:
        size: of a feature.
        vocabulary: tokens that the heads know.
        count: heads.
        layers: residual blocks of each.
        bias: whether blocks have one.
        shared: whether one linear layer serves all heads.
    """

    reads_tokens = False

    def __init__(
        self, size: int, vocabulary: int, count: int, layers: int = 1, bias: bool = True, shared: bool = False
    ) -> None:
        super().__init__()
        self.count = count
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(*(Residual(size, bias=bias) for _ in range(layers))) for _ in range(count)
        )
        lm_heads = (torch.nn.Linear(size, vocabulary, bias=False) for _ in range(1 if shared else count))
        self.lm_heads = cast(Sequence[torch.nn.Linear], torch.nn.ModuleList(lm_heads))

    def step(self, place: int, states_BND: torch.Tensor, tokens_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of head ``place`` and the feature as it was."""
        lm_head = self.lm_heads[place if len(self.lm_heads) > 1 else 0]
        return lm_head(self.blocks[place](states_BND)), states_BND
