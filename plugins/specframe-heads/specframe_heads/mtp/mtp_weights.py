"""MTP layers from a target's checkpoint, or from a file of their own.

Where transformers knows the names of a target's MTP layers, which it does for the published ones, its loader reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import MtpModel

from specframe.errors import ModelError, sentence
from specframe_heads.backbone import made
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.formats.format import Format
from specframe_heads.mtp.mtp_formats import LAYOUTS, TensorLayout, after_the_last, places
from specframe_heads.mtp.mtp_layers import MtpBackbone, MtpHead, block_config
from specframe_heads.target import Target
from specframe_heads.tensors import Tensors, require_weights


def of_target(checkpoint: Checkpoint, form: Format, target: Target, tensors: Tensors) -> MtpHead:
    """Return the MTP layers in a target's own checkpoint."""
    layout = layout_of(checkpoint, target)
    if layout is after_the_last and known_to_transformers(checkpoint, target):
        tensors.ledger.leave(lambda name: True, "transformers reads the layers")
        return by_transformers(checkpoint, target)
    tensors.ledger.leave(lambda name: layout(name, target.layers) is None, "the target's own")
    return assembled(checkpoint, layout, target, tensors)


def known_to_transformers(checkpoint: Checkpoint, target: Target) -> bool:
    """Return whether transformers' loader finds the MTP layers of a checkpoint: it looks for names that the target's class has."""
    patterns = getattr(target.model, "_keys_to_ignore_on_load_unexpected", None) or ()
    names = places(after_the_last, checkpoint.names, target.layers)
    known = all(any(re.search(pattern, name) for pattern in patterns) for name in names)
    return known and bool(getattr(target.model.config.get_text_config(), "num_mtp_layers", None))


def in_a_file(checkpoint: Checkpoint, form: Format, target: Target, tensors: Tensors) -> MtpHead:
    """Return the MTP layers of a checkpoint of ``speculators``."""
    return assembled(checkpoint, layout_of(checkpoint, target), target, tensors)


def layout_of(checkpoint: Checkpoint, target: Target) -> TensorLayout:
    """Return the layout of the MTP layers in a checkpoint; raise :class:`ModelError` where there are none."""
    for layout in LAYOUTS:
        if places(layout, checkpoint.names, target.layers):
            return layout
    raise ModelError(
        f"{checkpoint} has no MTP layers: expected tensors model.layers.{target.layers}.*, mtp.* or mtp_layers.0.*, as targets "
        "that were trained with them have in their checkpoint"
    )


def by_transformers(checkpoint: Checkpoint, target: Target) -> MtpHead:
    """Return the MTP layers that transformers reads."""
    try:
        read: Any = MtpModel.from_pretrained(target.model)
    except Exception as error:  # of a library that reads a file; its type depends on the fault
        raise ModelError(f"the MTP layers of {checkpoint} cannot be read: {sentence(error)}") from error
    config, backbones = block_config(target), []
    if any(layer.post_norm is None for layer in read.layers):
        raise ModelError(f"the MTP layers of {checkpoint} have no norm of their output: expected one for each layer")
    for layer in read.layers:
        with torch.device("meta"):
            one: Any = MtpBackbone(config, target)
        one.enorm, one.hnorm, one.eh_proj, one.post_norm = layer.enorm, layer.hnorm, layer.eh_proj, layer.post_norm
        one.layers[0] = layer.mtp_block
        backbones.append(ready(one, target))
    return MtpHead(backbones, target)


def ready(backbone: MtpBackbone, target: Target) -> MtpBackbone:
    """Return a layer for inference, alone in its cache."""
    modules: Iterable[Any] = backbone.modules()
    for module in modules:
        if hasattr(module, "layer_idx"):
            module.layer_idx = 0
    for name, weight in backbone.named_parameters():
        if not in_full(name, target):
            weight.data = weight.data.to(target.dtype)
    nn.Module.to(backbone, target.device).eval().requires_grad_(False)
    backbone.borrow(target)
    return backbone


def in_full(name: str, target: Target) -> bool:
    """Return whether the target's class keeps a tensor in 32 bits whatever the precision, as the bias of a router."""
    return any(part in name for part in getattr(target.model, "_keep_in_fp32_modules_strict", None) or ())


def assembled(checkpoint: Checkpoint, layout: TensorLayout, target: Target, tensors: Tensors) -> MtpHead:
    """Return the MTP layers whose tensors a checkpoint has under a layout's names."""
    found, config = places(layout, tensors, target.layers), block_config(target)
    numbers = sorted({layer for layer, _ in found.values() if layer is not None})
    backbones = []
    for number in numbers:
        own = {part: tensors[name] for name, (layer, part) in found.items() if layer in (number, None)}
        renamed = {re.sub(r"^block\.", "layers.0.", part): one for part, one in together(own).items()}
        backbone = made(str(checkpoint), lambda: MtpBackbone(config, target), renamed, target)
        require_places(checkpoint, renamed, backbone)
        for name, weight in backbone.named_parameters():
            if in_full(name, target):
                weight.data = renamed[name].to(target.device, torch.float32)
        backbones.append(ready(backbone, target))
    return MtpHead(backbones, target)


def require_places(checkpoint: Checkpoint, tensors: Iterable[str], layer: nn.Module) -> None:
    """Raise :class:`ModelError` where a layer of the target's kind has no place for a tensor."""
    if rest := sorted(set(tensors) - set(layer.state_dict())):
        raise ModelError(
            f"the MTP layers of {checkpoint} have the tensor {rest[0]!r}: expected only those of a layer of the target's kind"
        )


def together(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with those of single experts stacked, as transformers keeps them: (E, 2 I, D) and (E, D, I)."""
    kept, experts = dict[str, torch.Tensor](), dict[str, dict[str, dict[int, torch.Tensor]]]()
    for name, tensor in tensors.items():
        require_weights("the MTP layers", name, tensor)
        if found := re.fullmatch(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name):
            experts.setdefault(found[1], {}).setdefault(found[3], {})[int(found[2])] = tensor
        else:
            kept[name] = tensor
    for prefix, parts in experts.items():
        stacked = {part: torch.stack([one for _, one in sorted(found.items())]) for part, found in parts.items()}
        kept[f"{prefix}.gate_up_proj"] = torch.cat([stacked["gate"], stacked["up"]], dim=1)
        kept[f"{prefix}.down_proj"] = stacked["down"]
    return kept
