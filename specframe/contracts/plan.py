"""What the logits of one sequence go through before a token is chosen."""

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
"""Processors that look at the scores of one position alone, so that all positions can go through at once.

A class that inherits from one of them may look at the prefix."""


@attrs.frozen(eq=False)
class Plan:
    """What the logits of one sequence go through before a token is chosen.

    ``prefixed`` ends with the last processor that looks at the prefix: each position is a call of its own, on the exact prefix. The
    processors after it look at one position alone, and take all positions of all rows that share them in one call.
    """

    prefixed: tuple[Any, ...] = ()
    positionwise: tuple[Any, ...] = ()
    greedy: bool = True
    lead: tuple[int, ...] = ()
    """Ids shown to processors before the sequence's own: the padding that transformers' ``generate`` shows them."""
    own: bool = False
    """Whether a user's own processors are among them: what they return is looked at."""

    @classmethod
    def split(cls, processors: Rows[Any], greedy: bool, lead: tuple[int, ...] = ()) -> Plan:
        """Return the plan that applies ``processors`` in their order."""
        looking = [place for place, one in enumerate(processors) if type(one) not in POSITIONWISE]
        first = looking[-1] + 1 if looking else 0
        return cls(tuple(processors[:first]), tuple(processors[first:]), greedy, lead)


GREEDY = Plan()
