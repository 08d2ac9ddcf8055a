"""Hydra: Medusa's heads, each of which also reads the tokens before its own (Ankner et al. 2024, arXiv 2402.05109)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specframe_heads.stepwise.residual import Residual
from specframe_heads.stepwise.steps import Steps


class Hydra(Steps):
    """Head k reads the feature and the embeddings of k + 1 tokens, the last token and the draft's, side by side.

    Args:
        size: of a feature and of an embedding.
        vocabulary: tokens that the heads know.
        count: heads.
        layers: blocks of each; the first reads everything.
        embedding: the target's, (V, D). It is no part of the heads.
        grounded: whether tokens are read. Without them the heads are Medusa's with a bias.
    """

    def __init__(
        self, size: int, vocabulary: int, count: int, layers: int, embedding: torch.Tensor, grounded: bool = True
    ) -> None:
        super().__init__()
        self.count, self.reads_tokens, self._embedding = count, grounded, (embedding,)  # in a tuple: no parameter
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                Residual(size, place + 2 if grounded else 1), *(Residual(size) for _ in range(layers - 1))
            )
            for place in range(count)
        )
        self.lm_heads = torch.nn.ModuleList(torch.nn.Linear(size, vocabulary) for _ in range(count))

    def step(self, place: int, states_BND: torch.Tensor, tokens_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of head ``place``, and the state with the tokens' embeddings put behind it."""
        if self.reads_tokens:
            e_BND = F.embedding(tokens_BN, self._embedding[0])
            states_BND = torch.cat([states_BND.expand(*e_BND.shape[:2], -1), e_BND], dim=-1)
        return self.lm_heads[place](self.blocks[place](states_BND)), states_BND
