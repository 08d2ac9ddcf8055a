"""How a model attends in each forward. What takes no mask is tried on a few tokens, and taken where it agrees with what does."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Dense, KVShape, Placement
from specframe.errors import ModelError, SpecframeWarning
from specframe.forward.attention import Maskless, attend
from specframe.forward.attention.flex import Blocks
from specframe.forward.attention.masks import masks
from specframe.forward.attention.packed import Packing
from specframe.forward.compiled import ints_and_sizes_left_open
from specframe.forward.ongoing import own

ATTENTION = ("auto", "packed", "flex", "masked")
"""What ``attention=`` may be."""

WAYS: dict[str, Callable[[Placement, int], Maskless]] = {
    "packed": Packing.of,
    "flex": lambda placement, slots: Blocks(placement),
}
"""What takes the mask's place, made from a placement over so many slots."""

PREFILL_TOKENS = 4096
"""Prompt tokens read in one forward pass, over all rows, at most."""

LARGEST_MASK = 2**28
"""Bytes that the masks of one forward may take: flex attention takes their place beyond that, or shorter pieces of prompts."""

HALF = (torch.float16, torch.bfloat16)


class Choice:
    """The ways one model can attend.

    Args:
        model: on its device, in its precision.
        name: of the model, for errors.
        shapes: of every layer's keys and values.
        kinds: how many kinds of layers, and so masks, there are.
        fault: tells in which way the model attends wrongly when "packed" or "flex" takes the place of its masks; None: in no way.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        shapes: list[KVShape],
        kinds: int,
        fault: Callable[[str], str | None],
    ) -> None:
        self._config, self._name, self._shapes = model.config.get_text_config(), name, set(shapes)
        self._fault = functools.cache(fault)
        self._device, self._dtype = model.device, model.dtype
        heads = getattr(self._config, "num_attention_heads", 1)
        shared = max(heads // shape.heads for shape in shapes)
        self._heads, self._masks = heads, kinds + (shared if shared > 1 else 0)
        self._found: dict[str, bool] = {}

    def way(self, asked: str, placement: Placement) -> str | None:
        """Return what takes the mask's place in a forward, "packed" or "flex"; None: it has a mask."""
        if placement.used_B is not None and placement.sees_BTT is None and self.packs(asked):
            return "packed"
        if asked == "flex":
            return "flex"
        large = placement.order_BT.numel() * self._mask_bytes(placement.key_order_BS.shape[1]) > LARGEST_MASK
        return "flex" if asked == "auto" and large and self._agrees("flex") else None

    def packs(self, asked: str) -> bool:
        """Return whether tokens whose slots are their places attend packed."""
        return asked == "packed" or (asked == "auto" and self._agrees("packed"))

    def prefill_tokens(self, asked: str, slots: int) -> int:
        """Return how many tokens of prompts, over all rows, are read in one forward that attends to so many slots."""
        tokens = min(PREFILL_TOKENS, LARGEST_MASK // self._mask_bytes(slots))
        if tokens < PREFILL_TOKENS and (asked == "flex" or (asked == "auto" and self._agrees("flex"))):
            return PREFILL_TOKENS
        return tokens

    def check(self, asked: str) -> None:
        """Raise :class:`ModelError` when this model cannot attend as asked on its device, and warn where that is slow."""
        if asked in WAYS and (attends := own(self._config, "_attn_implementation")) != "sdpa":
            raise ModelError(
                f"attention {asked!r} takes the place of sdpa, but {self._name} was loaded with "
                f"{attends}: load it with sdpa, or ask for 'masked'"
            )
        if asked == "packed" and not self._has_kernel("packed"):
            raise ModelError(
                f"attention 'packed' cannot be had for {self._name} on {self._device.type} in {str(self._dtype)[6:]}: "
                "expected CUDA, half precision and a flash kernel for its heads; 'auto' takes it where it can be had"
            )
        if asked in WAYS and (fault := self._fault(asked)):
            raise ModelError(
                f"attention {asked!r} cannot be had for {self._name}, because {fault}: ask for 'auto' or 'masked'"
            )
        if asked == "flex" and self._device.type != "cuda":
            slow = f"attention 'flex' holds all scores on {self._device.type}: it is there to be compared; 'masked' is faster"
            warnings.warn(slow, SpecframeWarning, stacklevel=2)

    def _mask_bytes(self, slots: int) -> int:
        """Return what one token's masks take: one for each kind of layer, and one query's for each that shares its head."""
        return slots * self._dtype.itemsize * self._masks

    def _agrees(self, way: str) -> bool:
        """Return whether this model can attend "packed" or "flex" on its device, found out when it is first asked."""
        if way not in self._found:
            sdpa = own(self._config, "_attn_implementation") == "sdpa"
            self._found[way] = sdpa and self._has_kernel(way) and self._fault(way) is None
        return self._found[way]

    def _has_kernel(self, way: str) -> bool:
        return all(
            shape.key_size == shape.value_size
            and agrees(way, self._device, shape.dtype, self._heads, shape.heads, shape.key_size)
            for shape in self._shapes
        )


@functools.cache
def agrees(way: str, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> bool:
    """Return whether the backend ``way`` works on CUDA and agrees with masked attention; the self-test runs once.

    Args:
        way: "packed" or "flex".
        device, dtype: of the model.
        heads, key_heads, size: the shape of its attention.
    """
    if device.type != "cuda" or (way == "packed" and (dtype not in HALF or size > 256 or size % 8)):
        return False
    try:
        return error(way, device, dtype, heads, key_heads, size) < (3e-2 if dtype in HALF else 1e-3)
    except Exception:  # whatever a kernel or a compiler raises
        return False


@torch.inference_mode()
def error(way: str, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> float:
    """Return the largest difference to masked attention on random rows of 5, 290, 130, 2 and no tokens.

    The last 3 of them are fed, and the last 200, which kernels may treat apart, with windows of 4 and of all tokens. Entries are of
    the order of 1. What padding gives has to be finite, or all is lost.
    """
    generator = torch.Generator().manual_seed(0)
    slots, used_B = 300, torch.tensor([5, 290, 130, 2, 0], device=device)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(len(used_B), *shape, generator=generator).to(device, dtype)

    key, value = (normal(slots, key_heads, size).transpose(1, 2) for _ in range(2))
    largest = 0.0
    for fed, window in itertools.product((3, 200), (None, 4)):
        query = normal(heads, fed, size)
        places_BT = used_B[:, None] - fed + torch.arange(fed, device=device)
        placement = Placement(places_BT, places_BT, places_BT, torch.arange(slots, device=device)[None], used_B.int())
        expected, _ = attend(torch.nn.Module(), query, key, value, masks(placement, [window], dtype)[window])
        with ints_and_sizes_left_open():
            found = WAYS[way](placement, slots).attend(query, Dense(key, value), None, window)
        if not found.isfinite().all():
            return math.inf
        off_BT = (found - expected).abs().amax((2, 3))
        largest = max(largest, float(off_BT[places_BT >= 0].max()))
    return largest
