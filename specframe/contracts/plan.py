"""Plans: the logits processors of one sequence."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs


@attrs.frozen(cache_hash=True)
class Kind:
    """What a logits processor computes. Processors of equal kinds are one formula: one call serves all rows that have it."""

    formula: type
    """Their class."""
    parameters: Hashable
    """What the formula depends on, beside scores and token ids."""


@attrs.frozen(eq=False)
class Plan:
    """The logits processors of one sequence, in the order in which they are applied."""

    processors: tuple[Any, ...] = ()
    kinds: tuple[Kind | None, ...] = ()
    """The kind of each processor; None: it is called for one place of one row at a time."""
    greedy: bool = True
    lead: tuple[int, ...] = ()
    """Ids put before the sequence's ids for processors: the padding, as in transformers' ``generate``."""
    own: bool = False
    """Whether the user's own processors are among them. Their scores are checked."""


GREEDY = Plan()
