"""Clover and Clover-2: one recurrent state takes in the draft's tokens (Xiao et al. 2024, arXiv 2405.00263 and 2408.00264)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specframe_heads.stepwise.gates import Cosine, Sigmoid
from specframe_heads.stepwise.residual import Residual
from specframe_heads.stepwise.steps import Steps


class Clover(Steps):
    """State k takes in token k by the gate; head k is a residual block, then the target's language head.

    The embedding of a token is its row of the language head, at length 1.

    Args:
        size: of a state.
        heads: of the gate.
        count: places.
        lm_head: the target's language head, (V, D). It is no part of the heads.
        eps: of the gate's norm.
    """

    def __init__(self, size: int, heads: int, count: int, lm_head: torch.Tensor, eps: float = 1e-6) -> None:
        super().__init__()
        self.count, self._lm_head = count, (lm_head,)  # in a tuple: no parameter
        self.gate = Sigmoid(size, heads, eps)
        self.blocks = torch.nn.ModuleList(Residual(size) for _ in range(count))

    def step(self, place: int, states_BND: torch.Tensor, tokens_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of head ``place`` and the state after the tokens."""
        lm_head = self._lm_head[0]
        states_BND = self.gate(states_BND, F.normalize(F.embedding(tokens_BN, lm_head), dim=-1))
        return F.linear(self.blocks[place](states_BND), lm_head), states_BND


class Clover2(Steps):
    """The first state has the last token already; each further one takes in a token of the draft by the gate.

    Args:
        size: of a state.
        heads: of the gate.
        count: places. All but the first share their weights.
        embedding: of tokens, (V, D): it is in the file, and never trained.
        lm_head: the target's language head, (V, D). Neither is a part of the heads.
        eps: of the norms.
    """

    def __init__(
        self, size: int, heads: int, count: int, embedding: torch.Tensor, lm_head: torch.Tensor, eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.count, self._shared = count, (embedding, lm_head)  # in a tuple: no parameters
        self.gate = Cosine(size, heads, eps)
        self.first, self.later = torch.nn.Linear(size, size), torch.nn.Linear(2 * size, size)
        self.head_norm = torch.nn.RMSNorm(size, eps)

    def predicted(
        self, place: int, states_BND: torch.Tensor, tokens_BN: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features predicted for the places after these nodes, as the language head takes them, and the states."""
        if place == 0:
            return self.head_norm(self.first(states_BND)), states_BND
        e_BND = F.embedding(tokens_BN, self._shared[0])
        states_BND = self.gate(states_BND, e_BND)
        return self.head_norm(self.later(torch.cat([states_BND, e_BND], dim=-1))), states_BND

    def step(self, place: int, states_BND: torch.Tensor, tokens_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits after these nodes and their states."""
        features_BND, states_BND = self.predicted(place, states_BND, tokens_BN)
        return F.linear(features_BND, self._shared[1]), states_BND
