"""Clover's regressive step: a token is added to a state as far as the state asks for it.

One query attends to one key, so that a softmax would always be 1: the score itself is the weight, head by head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
