"""The logits of every token that a run keeps, to be compared with another run's to the bit."""

from __future__ import annotations

from typing import Any

import torch

from specframe.contracts.drafts import Acceptance, Draft, Scores, along_path
from specframe.contracts.round import Batch
from specframe.plugins.compose import strategy
from specframe.plugins.registry import registry

Logits = dict[tuple[int, int], torch.Tensor]
"""Logits (V,) by prompt and by the number of tokens that they follow."""


class KeptLogits:
    """An acceptance rule that keeps the logits of every accepted token, and otherwise is the rule it is given.

    Args:
        rule: the rule, by name or as an object.
    """

    def __init__(self, rule: Any = "greedy") -> None:
        self._rule = strategy(registry(), "acceptance rule", rule)
        self.logits: Logits = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def accept(self, batch: Batch, draft: Draft, scores: Scores) -> Acceptance:
        """Apply the rule, and keep the logits of the accepted tokens and of the bonus token."""
        acceptance: Acceptance = self._rule.accept(batch, draft, scores)
        logits_BTV = along_path(acceptance, scores.logits_BTV)
        for row, (sequence, accepted) in enumerate(zip(batch.sequences, acceptance.accepted_B.tolist(), strict=True)):
            places = zip(range(int(batch.lengths[row]), 2**62), logits_BTV[row, : accepted + 1].clone())
            self.logits |= {(sequence.request.index, length): logits_V for length, logits_V in places}
        return acceptance


def parted(one: Logits, other: Logits) -> dict[int, int]:
    """Return the prompts whose logits differ in a bit, each with the tokens before the first place where they do.

    Places that only one of the two has are passed over, so both have to be complete up to the length compared.
    """
    places = sorted(one.keys() & other.keys(), reverse=True)
    return {index: length for index, length in places if not torch.equal(one[index, length], other[index, length])}
