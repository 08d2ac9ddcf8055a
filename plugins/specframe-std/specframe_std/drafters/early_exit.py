"""Early exit: the first layers of the target draft (LayerSkip, Elhoushi et al. 2024, arXiv 2404.16710)."""

from __future__ import annotations

from typing import cast

import torch
from transformers import PreTrainedModel

from specframe.contracts.model import Model
from specframe.errors import ModelError
from specframe.model.decoder_layers import decoder_layers
from specframe.model.runner import ModelRunner
from specframe.value_checks import whole
from specframe_std.drafters.self_drafting import SelfDrafter, require_one_device
from specframe_std.partial.model_copies import with_module
from specframe_std.partial.part_runner import PartRunner

DEFAULT_SHARE = 4
"""The first of this many parts of the layers drafts by default: LayerSkip's authors exit after layer 8 of 32."""


class EarlyExit(SelfDrafter):
    """Proposes the choices of the target's first layers, of which the final norm and the language head make logits.

    These layers' keys and values are the target's own, so draft and target have one cache: no prompt is read twice. What the draft
    fed is forgotten before the target verifies it, which writes it anew. Targets that were trained for early exit (LayerSkip)
    have their drafts accepted; of others next to none.

    Options:
        layers: number of first layers that draft; a quarter of the target's without it.
        tree: "chain", "static" or "dynamic", as the drafter "model" has them; also ``branch``, ``nodes`` and ``top``.
    """

    def __init__(
        self,
        layers: int | None = None,
        tree: str = "chain",
        branch: str | int | None = None,
        nodes: int | None = None,
        top: int | None = None,
    ) -> None:
        super().__init__(tree, branch, nodes, top)
        self._layers = None if layers is None else whole("layers", layers, 1)

    def part(self, target: Model) -> ModelRunner:
        """Return the target's first layers."""
        part = first_layers(target, self._layers)
        if target.state_layers:  # their numbers and the shapes of what attends are known of the whole alone
            return PartRunner(cast(PreTrainedModel, target.module), part, "draft")
        return ModelRunner(part, "draft")


def first_layers(target: Model, count: int | None) -> PreTrainedModel:
    """Return a model of a target's first layers, whose modules are the target's own.

    Args:
        target: the target.
        count: number of layers, or None for one of :data:`DEFAULT_SHARE` of them.

    Raises:
        ModelError: there are too few layers, or the target does not keep them in one list.
    """
    model = cast(PreTrainedModel, target.module)
    layers = decoder_layers(model)
    count = max(1, len(layers) // DEFAULT_SHARE) if count is None else count
    holders = [name for name, one in model.named_modules() if isinstance(one, torch.nn.ModuleList) and [*one] == layers]
    if not layers or not holders:
        raise ModelError(f"{target} does not keep its layers in one list: expected that for the drafter 'early-exit'")
    require_one_device(target, "early-exit")
    if count >= len(layers):
        raise ModelError(f"drafter 'early-exit': expected layers below the {len(layers)} of {target}, got {count}")
    return cast(PreTrainedModel, with_module(model, holders[0].split("."), torch.nn.ModuleList(layers[:count])))
