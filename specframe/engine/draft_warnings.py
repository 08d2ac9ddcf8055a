"""Warnings of drafts that are worse than they could be; the tokens are the target's all the same."""

from __future__ import annotations

import warnings

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Drafter
from specframe.engine.error_words import strategy_name
from specframe.errors import SpecframeWarning


def warn_of_undrawn(report: RoundReport, drafter: Drafter) -> bool:
    """Name the drafter where it has drawn tokens of a round from logits that are no distribution; return whether it has."""
    undrawn = report.detail.host.undrawn
    if undrawn is None or not undrawn.any():
        return False
    warnings.warn(
        f"{strategy_name('drafter', drafter)}: expected logits with a highest one, got nan or infinity; rows go on "
        "as if nothing had been drafted there, so the tokens are drawn from the target's distribution all the same",
        SpecframeWarning,
        stacklevel=4,
    )
    return True


def warn_of_short_draft(context: int | None, longest: int) -> None:
    """Say that a draft model drafts badly beyond its context, where sequences of ``longest`` tokens come there."""
    if context is not None and longest > context:
        warnings.warn(
            f"the draft model's context of {context} tokens is shorter than sequences of up to {longest}: beyond "
            "it little of what is drafted is accepted; the tokens are the target's all the same",
            SpecframeWarning,
            stacklevel=3,
        )
