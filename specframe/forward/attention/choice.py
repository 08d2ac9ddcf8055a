"""The attention backend of each forward. A backend is tried on a few tokens, and used where it agrees with mask tensors."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Mapping

import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Dense, KVShape, Placement
from specframe.contracts.roles import AttentionBackend, AttentionFacts
from specframe.errors import ModelError, SpecframeWarning
from specframe.forward.attention import flex, packed
from specframe.forward.attention.interface import attend
from specframe.forward.attention.masks import Masked, masks
from specframe.forward.compiled import ints_and_sizes_left_open
from specframe.forward.ongoing import own
from specframe.values import unwrapped

WAYS: dict[str, AttentionBackend] = {"masked": Masked(), "packed": packed.Packed(), "flex": flex.Flex()}
"""The backends that "auto" chooses from."""

PREFILL_TOKENS = 4096
"""Prompt tokens read in one forward pass, over all rows, at most."""

LARGEST_MASK = 2**28
"""Bytes that the masks of one forward may take: flex attention takes their place beyond that, or shorter pieces of prompts."""

HALF = (torch.float16, torch.bfloat16)

LIMITS: Mapping[type, str] = {packed.Packed: "CUDA, half precision and a flash kernel for its heads"}
"""What a backend expects of a model, in words."""

Asked = str | AttentionBackend
"""An attention backend, the name of one in :data:`WAYS`, or "auto"."""


class Choice:
    """The attention backends of one model.

    Args:
        model: on its device, in its precision.
        name: of the model, for errors.
        shapes: of every layer's keys and values.
        windows: the sliding window of each kind of layer, each of which has a mask; None: a kind without one.
        fault: tells in which way the model attends wrongly when a backend takes the place of its masks; None: in no way.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        shapes: list[KVShape],
        windows: Mapping[str, int | None],
        fault: Callable[[AttentionBackend], str | None],
    ) -> None:
        self._config, self._name = model.config.get_text_config(), name
        self._fault = fault
        heads = getattr(self._config, "num_attention_heads", 1)
        self._facts = AttentionFacts(
            model.device, model.dtype, heads, tuple(dict.fromkeys(shapes)), tuple(dict.fromkeys(windows.values()))
        )
        shared = max(heads // shape.heads for shape in shapes)
        self._masks = len(windows) + (shared if shared > 1 else 0)
        self._found: dict[str, bool] = {}
        self._suited: dict[int, tuple[AttentionBackend, bool]] = {}

    def way(self, asked: Asked, placement: Placement) -> AttentionBackend | None:
        """Return the backend that takes the mask's place in a forward; None: it has a mask."""
        if asked != "auto":
            backend = resolved(asked)
            return None if goes_by_masks(backend) or not takes(backend, placement) else backend
        if takes(WAYS["packed"], placement) and self._agrees("packed"):
            return WAYS["packed"]
        large = placement.order_BT.numel() * self._mask_bytes(placement.key_order_BS.shape[1]) > LARGEST_MASK
        return WAYS["flex"] if large and self._agrees("flex") else None

    def packs(self, asked: Asked) -> bool:
        """Return whether tokens whose slots are their places attend by lengths alone."""
        return self._agrees("packed") if asked == "auto" else "lengths" in resolved(asked).offers

    def prefill_tokens(self, asked: Asked, slots: int) -> int:
        """Return how many tokens of prompts, over all rows, are read in one forward that attends to so many slots."""
        tokens = min(PREFILL_TOKENS, LARGEST_MASK // self._mask_bytes(slots))
        if tokens == PREFILL_TOKENS:
            return tokens
        if asked == "auto":
            return PREFILL_TOKENS if self._agrees("flex") else tokens
        backend = resolved(asked)
        return tokens if goes_by_masks(backend) or "lengths" in backend.offers else PREFILL_TOKENS

    def check(self, asked: Asked) -> None:
        """Raise :class:`ModelError` when this model cannot attend as asked on its device, and warn where that is slow."""
        if asked == "auto" or goes_by_masks(backend := resolved(asked)):
            return
        name, facts = repr(title(backend)), self._facts
        if (attends := own(self._config, "_attn_implementation")) != "sdpa":
            raise ModelError(
                f"attention {name} takes the place of sdpa, but {self._name} was loaded with "
                f"{attends}: load it with sdpa, or ask for 'masked'"
            )
        if any(facts.windows) and "window" not in backend.offers:
            raise ModelError(
                f"attention {name} cannot be had for {self._name}: expected a model without sliding windows"
            )
        if not self._suits(backend):
            expected = LIMITS.get(type(unwrapped(backend)), "a model that it suits")
            raise ModelError(
                f"attention {name} cannot be had for {self._name} on {facts.device.type} in {str(facts.dtype)[6:]}: "
                f"expected {expected}; 'auto' takes it where it can be had"
            )
        if fault := self._fault(backend):
            raise ModelError(
                f"attention {name} cannot be had for {self._name}, because {fault}: ask for 'auto' or 'masked'"
            )
        if isinstance(unwrapped(backend), flex.Flex) and facts.device.type != "cuda":
            slow = f"attention {name} holds all scores on {facts.device.type}: it is there to be compared; 'masked' is faster"
            warnings.warn(slow, SpecframeWarning, stacklevel=2)

    def _suits(self, backend: AttentionBackend) -> bool:
        """Return whether a backend suits this model, asked once."""
        if (key := id(unwrapped(backend))) not in self._suited:
            self._suited[key] = backend, backend.suits(self._facts) and has_kernel(backend, self._facts)
        return self._suited[key][1]

    def _mask_bytes(self, slots: int) -> int:
        """Return what one token's masks take: one for each kind of layer, and one query's for each that shares its head."""
        return slots * self._facts.dtype.itemsize * self._masks

    def _agrees(self, way: str) -> bool:
        """Return whether "auto" takes "packed" or "flex" for this model on its device, found out when it is first asked."""
        if way not in self._found:
            sdpa = own(self._config, "_attn_implementation") == "sdpa"
            self._found[way] = sdpa and fits(way, self._facts) and self._fault(WAYS[way]) is None
        return self._found[way]


def resolved(asked: Asked) -> AttentionBackend:
    """Return the backend of a name, or the backend given."""
    return WAYS[asked] if isinstance(asked, str) else asked


def title(backend: AttentionBackend) -> str:
    """Return what errors call a backend."""
    return type(unwrapped(backend)).__name__.lower()


def goes_by_masks(backend: AttentionBackend) -> bool:
    """Return whether a backend leaves everything to mask tensors."""
    return isinstance(unwrapped(backend), Masked)


def takes(backend: AttentionBackend, placement: Placement) -> bool:
    """Return whether a backend can plan a placement; what it cannot is left to mask tensors, where there are plain tensors.

    Raises:
        ModelError: it cannot, and reads nothing but pages.
    """
    tree = placement.sees_BTT is not None and "tree" not in backend.offers
    if not tree and ("lengths" not in backend.offers or placement.used_B is not None):
        return True
    if "dense" in backend.offers:
        return False
    lacking = "trees" if tree else "placements without lengths"
    raise ModelError(f"attention {title(backend)!r} takes no {lacking}, and mask tensors need plain keys and values")


def has_kernel(backend: AttentionBackend, facts: AttentionFacts) -> bool:
    """Return whether the kernel of a backend of :data:`WAYS` can be had; a stranger's says so by ``suits``."""
    if isinstance(unwrapped(backend), packed.Packed):
        return fits("packed", facts)
    return not isinstance(unwrapped(backend), flex.Flex) or facts.device.type != "cuda" or fits("flex", facts)


def fits(way: str, facts: AttentionFacts) -> bool:
    """Return whether "packed" or "flex" agrees with mask tensors for every shape of a model's layers, on CUDA."""
    return all(
        shape.key_size == shape.value_size
        and agrees(way, facts.device, shape.dtype, facts.heads, shape.heads, shape.key_size)
        for shape in facts.shapes
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
            plan = WAYS[way].plan(placement)
            assert plan is not None
            found = plan.attend(query, Dense(key, value), None, window)
        if not found.isfinite().all():
            return math.inf
        off_BT = (found - expected).abs().amax((2, 3))
        largest = max(largest, float(off_BT[places_BT >= 0].max()))
    return largest
