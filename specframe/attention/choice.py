"""Which attention can be had on a device: tried on a few tokens, and taken where it agrees with masked attention."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from specframe.attention import Maskless, attend
from specframe.attention.flex import Blocks
from specframe.attention.masks import mask
from specframe.attention.packed import Packing
from specframe.compiled import ints_and_sizes_left_open
from specframe.types import Placement

ATTENTION = ("auto", "packed", "flex", "masked")
"""What ``attention=`` may be."""

WAYS: dict[str, Callable[[Placement, int], Maskless]] = {
    "packed": Packing.of,
    "flex": lambda placement, slots: Blocks(placement),
}
"""What takes the mask's place, made from a placement over so many slots."""

HALF = (torch.float16, torch.bfloat16)


@functools.cache
def agrees(way: str, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> bool:
    """Return whether ``way`` can be had on CUDA and agrees with masked attention: it is tried once.

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
    """Return the largest difference to masked attention on random rows of 5, 290 and 130 tokens, 3 of them fed.

    Windows of 4 and of all tokens are tried. Entries are of the order of 1.
    """
    generator = torch.Generator().manual_seed(0)
    slots, fed = 300, 3
    used_B = torch.tensor([5, 290, 130], device=device)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    query = normal(3, heads, fed, size)
    key, value = (normal(3, slots, key_heads, size).transpose(1, 2) for _ in range(2))
    places_BT = used_B[:, None] - fed + torch.arange(fed, device=device)
    slots_1S = torch.arange(slots, device=device)[None]
    placement = Placement(places_BT, places_BT, places_BT, slots_1S, used_B.int())
    largest = 0.0
    for window in (None, 4):
        expected, _ = attend(torch.nn.Module(), query, key, value, mask(placement, window, dtype))
        with ints_and_sizes_left_open():
            found = WAYS[way](placement, slots).attend(query, key, value, None, window)
        largest = max(largest, float((found - expected).abs().max()))
    return largest
