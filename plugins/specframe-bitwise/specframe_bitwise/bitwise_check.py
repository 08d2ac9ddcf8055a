"""Whether a model can be computed bitwise alike: its operators are looked at, then its logits are compared."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch.utils.module_tracker import ModuleTracker
from transformers import PreTrainedModel

from specframe.errors import ModelError, sentence
from specframe_bitwise import bitwise_forwards, bitwise_operators, mode, tiles
from specframe_bitwise.mode import BitwiseMode, bitwise
from specframe_bitwise.own_states import OwnStates, SteppedCache

TOKENS, BATCH = 6, 3
"""Tokens and rows that a model is tried on: more of either than one."""

_faults: weakref.WeakKeyDictionary[PreTrainedModel, dict[Any, str | None]] = weakref.WeakKeyDictionary()
"""Results of :func:`require_bitwise`, by device and dtype."""


class Watching(BitwiseMode):
    """Notes the operators for which no rule is known, with the module that uses each, and tiles in which a place matters."""

    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()
        self._tracker = tracker
        self.faults: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute one operator and look at it."""
        with tiles.watch_tiles(self._alike):
            output = super().__torch_dispatch__(func, types, args, kwargs)
        if mode.RULES[func] is None and rounds(func, output):
            self.refusal(func)
        return output

    def refusal(self, func: Any) -> ModelError:
        """Note an operator that cannot be computed."""
        self.faults.append(f"{self._module} {mode.unknown_operator(func)}")
        return super().refusal(func)

    @property
    def _module(self) -> str:
        """The innermost module under way."""
        inner = max(self._tracker.parents - {"Global"}, key=len, default="")
        return inner.partition(".")[2] or "the model"

    def _alike(self, product: tiles.Product, tile: torch.Tensor) -> None:
        """Note a product that gives equal rows other values by their places."""
        found = product(tile[:1].expand_as(tile).contiguous())
        if not torch.equal(found, found[:1].expand_as(found)):
            self.faults.append(f"{self._module} has products whose rows depend on their place")


def rounds(func: Any, output: Any) -> bool:
    """Return whether an operator without a rule may round in another way for other shapes."""
    outputs = output if isinstance(output, tuple | list) else [output]
    floating = any(isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex()) for one in outputs)
    alike = mode.name(func).removesuffix("_") in bitwise_operators.MOVED | (
        bitwise_operators.ROUNDED_ONCE - bitwise_operators.TWO_STEPS
    )
    return floating and not (alike or func.is_view or torch.Tag.pointwise in func.tags)


def require_bitwise(model: PreTrainedModel, name: str) -> None:
    """Raise :class:`ModelError` when a model cannot be computed bitwise alike; a model is tried the first time this is asked.

    Args:
        model: on its device, in its precision.
        name: of the model, for the error.
    """
    known = _faults.setdefault(model, {})
    key = model.device, model.dtype
    if key not in known:
        known[key] = fault(model)
    if known[key] is not None:
        raise ModelError(
            f"{name} cannot be decoded with bitwise: {known[key]}; expected a model made of linear layers and sdpa, and of states "
            "whose kind offers 'bitwise'"
        )


@torch.inference_mode()
def fault(model: PreTrainedModel) -> str | None:
    """Return why a model cannot be computed bitwise alike, or None if it can."""
    ids_BT = (
        torch.arange(TOKENS * BATCH, device=model.device).view(BATCH, TOKENS)
        * 7
        % model.config.get_text_config().vocab_size
    )
    with bitwise_forwards.active():
        layers = OwnStates(model).layers
    for layer in layers.values():
        if layer.by_token is None:
            return f"layer {layer.number} keeps a state of {layer}, which does not take in one token after the other"
    with ModuleTracker() as tracker, bitwise_forwards.active(), Watching(tracker) as watching:
        try:
            logits(model, ids_BT, [TOKENS])
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model raises
            return next(iter(watching.faults), f"it raises {type(error).__name__} ({sentence(error)})")
    if watching.faults:
        return watching.faults[0]
    with bitwise(model.device):
        alone_TV = logits(model, ids_BT[:1], [TOKENS])[0]
        others = {
            "in a batch": logits(model, ids_BT.flip(0), [TOKENS])[-1],
            "in pieces": logits(model, ids_BT[:1], [1, 2, TOKENS - 3])[0],
        }
        found = {how for how, found_TV in others.items() if not torch.equal(found_TV, alone_TV)}
        if layers and not found and not states_settle(model, ids_BT):
            return "its states are others after tokens that were rejected"
    return difference(found)


def difference(ways: Collection[str]) -> str | None:
    """Return the message about logits that differ, or None if none do."""
    return f"its logits are others {' and '.join(sorted(ways))}" if ways else None


def states_settle(model: PreTrainedModel, ids_BT: torch.Tensor) -> bool:
    """Return whether states that take in the first tokens of those fed, by row another number, are those after these alone."""
    ends = [row * TOKENS // (BATCH - 1) for row in range(BATCH)]
    whole = SteppedCache(model, prompts=True)
    feed(whole, ids_BT, [TOKENS])
    counts_B = torch.tensor(ends, device=ids_BT.device)
    settled = {
        number: layer.advance(noted.before, noted.inputs, counts_B.to(noted.before[0].device))
        for number, layer in whole.states.layers.items()
        for noted in [whole.states.noted[number]]
    }
    for row, end in enumerate(ends):
        alone = SteppedCache(model, prompts=True)
        if end:
            feed(alone, ids_BT[row : row + 1, :end], [1] * end)
        for number, parts in settled.items():
            wanted = (
                alone.states.noted[number].after if end else [part[:1] for part in whole.states.noted[number].before]
            )
            if not all(torch.equal(one[row : row + 1], other) for one, other in zip(parts, wanted, strict=True)):
                return False
    return True


def logits(model: PreTrainedModel, ids_BT: torch.Tensor, widths: list[int]) -> torch.Tensor:
    """Return the logits (B, T, V) of tokens fed in chunks of these widths, as ``generate`` feeds them."""
    return feed(SteppedCache(model, prompts=True), ids_BT, widths)


def feed(alone: SteppedCache, ids_BT: torch.Tensor, widths: list[int]) -> torch.Tensor:
    """Return the logits (B, T, V) of the first tokens of rows, fed in chunks of these widths."""
    positions_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand(ids_BT.shape)
    fed = zip(ids_BT.split(widths, 1), positions_BT.split(widths, 1), strict=True)
    return torch.cat([alone.feed(ids, positions) for ids, positions in fed], dim=1)
