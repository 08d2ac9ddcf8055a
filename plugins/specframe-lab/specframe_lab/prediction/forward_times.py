"""What forwards read and compute: those of a target, and those by which a draft is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import attrs


@attrs.frozen
class Load:
    """What one forward reads and computes."""

    tokens: int
    """Tokens fed, over all rows."""
    weights: float
    """Weights read."""
    bytes: float
    """Bytes read and written: weights, keys and values, logits."""
    operations: float
    """Operations, a product and a sum being two."""
    weight_bytes: float
    """The bytes of the weights."""
    layers: float
    """Layers by which a forward takes longer than it reads or computes; a part of one for a few products."""


@attrs.frozen
class Drafting:
    """How a draft is made in a round."""

    depth: int
    """The most draft tokens that a row can gain."""
    nodes: int
    """Draft tokens of a row that the target is fed."""
    loads: Iterable[Load] = ()
    """The forwards."""


class Drafts(Protocol):
    """Whatever drafts, by what its forwards read and compute."""

    def drafting(self, rows: int, length: int, context: int) -> Drafting:
        """Return how drafts of a length are made.

        Args:
            rows: sequences.
            length: the draft length that is asked for, at least 1.
            context: tokens of each in the cache.
        """


class FreeDrafts:
    """Drafts that cost nothing, as those that are looked up."""

    def drafting(self, rows: int, length: int, context: int) -> Drafting:
        """Return a draft without forwards."""
        return Drafting(length, length)
