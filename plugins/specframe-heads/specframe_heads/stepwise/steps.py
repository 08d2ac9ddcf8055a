"""Heads that predict one place after the other: Medusa, Hydra, Clover and Clover-2.

- Medusa: heads that each predict one place from the same feature (Cai et al. 2024, arXiv 2401.10774).
- Hydra: Medusa's heads, each of which also reads the tokens before its own (Ankner et al. 2024, arXiv 2402.05109).
- Clover and Clover-2: one recurrent state takes in the draft's tokens (Xiao et al. 2024, arXiv 2405.00263 and 2408.00264), as far
  as the state asks for it. One query attends to one key, so that a softmax would always be 1: the score itself is the weight, head
  by head.

Tensor names: B rows, N nodes of one depth of a draft, V vocabulary of the head, D size of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F


class Steps(torch.nn.Module):
    """Heads for a number of places, and the state that goes from one place to the next along a path of the draft."""

    count: int
    """The number of places that the heads predict: the longest path of a draft."""

    def step(self, place: int, states_BND: torch.Tensor, tokens_BN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits (B, N, V) of the tokens after these nodes, and the nodes' states.

        Args:
            place: the depth of the nodes, 0 for a row's last token, the only node of its depth.
            states_BND: the states of the nodes' parents, with ``N`` = 1 if they are the same for all; at place 0 the feature.
            tokens_BN: the tokens of the nodes.
        """
        raise NotImplementedError

    def unrolled(self, features_BTD: torch.Tensor, ids_BT: torch.Tensor, places: int | None = None) -> list[Any]:
        """Return the logits of every place after every token of whole texts, (B, T, V) each: training sees them all at once.

        Args:
            features_BTD: the feature before each token, the first state.
            ids_BT: the tokens. The nodes at place k are the tokens k places on, from the beginning again past the end.
            places: how many, or None for all.
        """
        states, found = features_BTD, []
        for place in range(self.count if places is None else places):
            logits_BTV, states = self.step(place, states, ids_BT.roll(-place, dims=1))
            found.append(logits_BTV)
        return found


class Residual(torch.nn.Module):
    """x + SiLU(W x + b); for an input of several features side by side, R x + r takes the place of x.

    Args:
        size: of a feature.
        inputs: features in the input.
        bias: whether there is a b.
    """

    def __init__(self, size: int, inputs: int = 1, bias: bool = True) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs * size, size, bias=bias)
        torch.nn.init.zeros_(self.linear.weight)  # as published: a new block changes nothing
        if bias:
            torch.nn.init.zeros_(self.linear.bias)
        self.carried = torch.nn.Linear(inputs * size, size) if inputs > 1 else torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, (..., D)."""
        return self.carried(x) + F.silu(self.linear(x))


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


class Gate(torch.nn.Module):
    """h + score(Q norm(h), K e) V e, with one score per head.

    Args:
        size: of a state and of an embedding.
        heads: parts of the state that have a score each.
        eps: of the norm.
        bias: whether Q, K and V have one.
    """

    def __init__(self, size: int, heads: int, eps: float = 1e-6, bias: bool = True) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(size, eps)
        self.q, self.k, self.v = (torch.nn.Linear(size, size, bias=bias) for _ in range(3))
        self.heads, self.eps = heads, eps

    def reset_parameters(self, noise: float = 0.01) -> None:
        """Set the weights that training starts from: Q and K the identity with noise, V nothing."""
        for linear in (self.q, self.k):
            torch.nn.init.eye_(linear.weight)
            with torch.no_grad():
                linear.weight += noise * torch.rand_like(linear.weight)
        torch.nn.init.zeros_(self.v.weight)
        for linear in (self.q, self.k, self.v):
            if linear.bias is not None:
                torch.nn.init.zeros_(linear.bias)

    def score(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return the weight of the value for queries and keys (..., H, D), (..., H)."""
        raise NotImplementedError

    def forward(self, states: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        """Return the states after the tokens whose embeddings are ``e``, (..., D)."""
        q, k, v = (x.unflatten(-1, (self.heads, -1)) for x in (self.q(self.norm(states)), self.k(e), self.v(e)))
        return states + (v * self.score(q, k)[..., None]).flatten(-2)


class Sigmoid(Gate):
    """Clover's gate (Xiao et al. 2024, arXiv 2405.00263): the scaled product of query and key, through a sigmoid."""

    def score(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return sigmoid(q k / sqrt(d))."""
        return torch.sigmoid((q * k).sum(-1) * q.shape[-1] ** -0.5)


class Cosine(Gate):
    """Clover-2's gate (Xiao et al. 2024, arXiv 2408.00264): the cosine between query and key."""

    def score(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return cos(q, k)."""
        return F.cosine_similarity(q, k, dim=-1, eps=self.eps)


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
