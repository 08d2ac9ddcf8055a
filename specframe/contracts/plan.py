"""Plans: the logits processors of one sequence."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

import attrs
from transformers import generation as hf

POSITIONWISE = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.TopHLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.SuppressTokensLogitsProcessor,
    hf.InfNanRemoveLogitsProcessor,
    hf.LogitNormalization,
)
"""Processors that depend on the scores of one position only, so that one call processes all positions.

A subclass may depend on the prefix and is not among them."""


@attrs.frozen(eq=False)
class Plan:
    """The logits processors of one sequence, in two parts.

    ``prefixed`` ends with the last processor that depends on the prefix. Its processors are called for each position, with the
    exact prefix. ``positionwise`` are the processors after it. One call processes all positions of all rows that share them.
    """

    prefixed: tuple[Any, ...] = ()
    positionwise: tuple[Any, ...] = ()
    greedy: bool = True
    lead: tuple[int, ...] = ()
    """Ids put before the sequence's ids for processors: the padding, as in transformers' ``generate``."""
    own: bool = False
    """Whether the user's own processors are among them. Their scores are checked."""

    @classmethod
    def split(cls, processors: Rows[Any], greedy: bool, lead: tuple[int, ...] = ()) -> Plan:
        """Return the plan that applies ``processors`` in their order."""
        looking = [place for place, one in enumerate(processors) if type(one) not in POSITIONWISE]
        first = looking[-1] + 1 if looking else 0
        return cls(tuple(processors[:first]), tuple(processors[first:]), greedy, lead)


GREEDY = Plan()
