"""The optimizer of heads: Muon for matrices inside of layers, AdamW for all else, one schedule for both.

Muon (Jordan et al. 2024) takes about half the steps of AdamW. ``torch.optim.Muon`` iterates in bfloat16, which many CPUs emulate.
"""

from __future__ import annotations

from typing import Any

import torch

WARM = 50
"""Steps until the full rate: the first gradients point in no direction that lasts."""
HELD = 0.4
"""The part of all steps at the full rate; it then falls to nothing in a line."""


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton-Schulz iterations; its update is as large as AdamW's."""

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter once."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonal(torch.lerp(parameter.grad, average, group["momentum"]))
                parameter.add_(update, alpha=-group["lr"] * 0.2 * max(parameter.shape) ** 0.5)


def orthogonal(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Return roughly the nearest matrix whose singular values are equal, by a quintic iteration with Jordan's coefficients."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(iterations):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


class Optimizers:
    """Both optimizers of a module.

    Args:
        module: its parameters that need gradients are trained. Those with "lm_head" or "embed" in their name go to AdamW.
        rate: AdamW's; Muon's is three times that.
        steps: how many there will be.
    """

    def __init__(self, module: torch.nn.Module, rate: float, steps: int) -> None:
        trained = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
        inner = [weight for name, weight in trained if weight.ndim == 2 and not set(OUTER) & set(name.split("."))]
        known = {id(weight) for weight in inner}
        others = [weight for _, weight in trained if id(weight) not in known]
        self._rates, self._steps, self._parts = list[float](), steps, list[torch.optim.Optimizer]()
        if inner:
            self._add(Muon(inner, 3 * rate), 3 * rate)
        if others:
            self._add(torch.optim.AdamW(others, rate, betas=(0.9, 0.95), weight_decay=0.0), rate)
        self._all = [weight for _, weight in trained]

    def _add(self, part: torch.optim.Optimizer, rate: float) -> None:
        self._parts.append(part)
        self._rates.append(rate)

    def step(self, step: int, loss: torch.Tensor) -> None:
        """Update by the gradients of a loss, at the rate of this step."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._all, 1.0)
        share = min(1.0, (step + 1) / WARM, max(0.02, (self._steps - step) / ((1 - HELD) * self._steps)))
        for part, rate in zip(self._parts, self._rates, strict=True):
            part.param_groups[0]["lr"] = rate * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint of the training needs."""
        return [part.state_dict() for part in self._parts]

    def load(self, states: list[dict[str, Any]]) -> None:
        """Go on from a checkpoint."""
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)


OUTER = ("lm_head", "lm_heads", "embed_tokens", "embed")
"""Parts of names of parameters that map to or from tokens: Muon is for matrices between states."""
