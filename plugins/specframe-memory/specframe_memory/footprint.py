"""What a run takes of memory, in all and by parts, and for which number of sequences and lengths."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from specframe_memory.allocations import KEPT, OTHERS, Peak

CACHE, VIEWS, STATES, LOGITS, MASKS = "keys and values", "views of the cache", "states", "logits", "masks"
TARGET, DRAFT, HEAD = "target's weights", "draft model's weights", "head's weights"

PASSING = (OTHERS, KEPT, LOGITS, MASKS, VIEWS)
"""The parts that come and go with forwards."""
FEW, SHARE = 16384, 128
"""Planned for beyond what was counted: ``FEW`` bytes, and one in ``SHARE`` of those that come and go. A run has index tensors that
depend on what is accepted, of which memory profiling knows nothing, and small constants that earlier runs have left."""


@attrs.frozen
class Footprint:
    """The bytes that a run takes at most, in all and by parts."""

    total: int
    parts: Mapping[str, int]
    """The bytes of each part when most are in use. They add up to the total."""
    kv_bytes: int
    """Bytes of all caches, states included: what a run reports as ``peak_kv_bytes``."""


@attrs.frozen
class Workload:
    """Sequences that are decoded at the same time."""

    rows: int
    prompt: int
    """Tokens of each prompt."""
    longest: int
    """Tokens of each sequence at its end, its prompt included."""


def with_part(peak: Peak, name: str, nbytes: int) -> Peak:
    """Return a peak with ``nbytes`` bytes of a part in place of the counted ones."""
    return Peak(peak.total - peak.parts.get(name, 0) + nbytes, {**peak.parts, name: nbytes})


def of_some(parts: Mapping[str, int]) -> dict[str, int]:
    """Return the parts that have bytes."""
    return {name: count for name, count in parts.items() if count}
