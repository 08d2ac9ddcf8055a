"""The block that Medusa, Hydra and Clover are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
