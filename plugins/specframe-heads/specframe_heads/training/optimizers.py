"""The optimizer of heads: Muon for matrices inside of layers, AdamW for all else, one schedule for both.

Muon (Jordan et al. 2024) takes about half the steps of AdamW.
"""

from __future__ import annotations

from typing import Any

import torch

WARM = 50
"""Steps until the full rate: the first gradients point in no direction that lasts."""
HELD = 0.4
"""The part of all steps at the full rate; it then falls to nothing in a line."""


class Optimizers:
    """Both optimizers of a module.

    Args:
        module: its parameters that need gradients are trained. Those with "lm_head" or "embed" in their name go to AdamW.
        rate: AdamW's; Muon's is three times that.
        steps: how many there will be, or None for a training without an end, whose rate does not fall.
        warm: steps until the full rate.
    """

    def __init__(self, module: torch.nn.Module, rate: float, steps: int | None, warm: int = WARM) -> None:
        trained = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
        inner = [weight for name, weight in trained if weight.ndim == 2 and not set(OUTER) & set(name.split("."))]
        known = {id(weight) for weight in inner}
        others = [weight for _, weight in trained if id(weight) not in known]
        self._rates, self._steps, self._warm = list[float](), steps, warm
        self._parts = list[torch.optim.Optimizer]()
        if inner:
            muon = torch.optim.Muon(inner, 3 * rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
            self._add(muon, 3 * rate)
        if others:
            self._add(torch.optim.AdamW(others, rate, betas=(0.9, 0.95), weight_decay=0.0), rate)
        self._all = [weight for _, weight in trained]

    def _add(self, part: torch.optim.Optimizer, rate: float) -> None:
        self._parts.append(part)
        self._rates.append(rate)

    def step(self, step: int, loss: torch.Tensor) -> bool:
        """Update by the gradients of a loss, at the rate of this step; return whether they were finite, or else do nothing."""
        loss.backward(inputs=self._all)  # a target that learns as well has gradients of its own
        finite = bool(torch.nn.utils.clip_grad_norm_(self._all, 1.0).isfinite())
        share = min(1.0, (step + 1) / self._warm)
        if self._steps is not None:
            share = min(share, max(0.02, (self._steps - step) / ((1 - HELD) * self._steps)))
        for part, rate in zip(self._parts, self._rates, strict=True):
            part.param_groups[0]["lr"] = rate * share
            if finite:
                part.step()
            part.zero_grad(set_to_none=True)
        return finite

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint of the training needs."""
        return [part.state_dict() for part in self._parts]

    def load(self, states: list[dict[str, Any]]) -> None:
        """Go on from a checkpoint."""
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)


OUTER = ("lm_head", "lm_heads", "embed_tokens", "embed")
"""Parts of names of parameters that map to or from tokens: Muon is for matrices between states."""
