"""The check of a kernel before its first use: whether a backend gives what masked attention gives."""

from __future__ import annotations

import itertools
import math

import torch

from specframe.contracts.attention import AttentionBackend
from specframe.contracts.cache import DenseView, Placement
from specframe.model.attention.interface import attend
from specframe.model.attention.masks import masks
from specframe.model.decoder_layers import ints_and_sizes_left_open

HALF = (torch.float16, torch.bfloat16)


def agrees(
    backend: AttentionBackend, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int
) -> bool:
    """Return whether a backend works on a device and gives what masked attention gives."""
    try:
        return error(backend, device, dtype, heads, key_heads, size) < (3e-2 if dtype in HALF else 1e-3)
    except Exception:  # whatever a kernel or a compiler raises
        return False


@torch.inference_mode()
def error(
    backend: AttentionBackend, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int
) -> float:
    """Return the largest difference to masked attention on random rows of 5, 290, 130, 2 and no tokens.

    The last 3 of them are fed, and the last 200, which kernels may treat apart, with windows of 4 and of all tokens. Entries are of
    the order of 1. The output of padding has to be finite, or the error is infinite.
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
        placement = Placement(places_BT, places_BT, places_BT, torch.arange(slots, device=device)[None], in_order=True)
        expected, _ = attend(torch.nn.Module(), query, key, value, masks(placement, [window], dtype)[window])
        with ints_and_sizes_left_open():
            plan = backend.plan(placement)
            assert plan is not None
            found = plan.attend(query, DenseView(key, value), None, window)
        if not found.isfinite().all():
            return math.inf
        off_BT = (found - expected).abs().amax((2, 3))
        largest = max(largest, float(off_BT[places_BT >= 0].max()))
    return largest
