"""A round between its launch and its landing."""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Draft, Scores, Transfer
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch


@attrs.define(eq=False)
class Flight:
    """A round that the device has been given, whose numbers the host has not read yet."""

    batch: Batch
    draft: Draft
    scores: Scores
    transfer: Transfer
    logits_BTV: torch.Tensor
    """The target's logits along the accepted path."""
    processed_BTV: torch.Tensor
    """These logits after each row's processors."""
    computed: int
    """Tokens that the target computed."""
    pieces: list[Outcome] = attrs.Factory(list)
    """The prefill chunk that was read beside it, if there was one."""
    most_B: np.ndarray | None = None
    """The most tokens that each row gains, where the next round may be launched before this one is landed, or None."""
    told: bool = False
    """Whether the drafter received it: before the next round was launched, or as it was captured."""
