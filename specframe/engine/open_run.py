"""A run that is open, its rounds between launch and landing, and what its end leaves behind."""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Check, Draft, Scores, Transfer
from specframe.contracts.graphs import CapturedRounds
from specframe.contracts.reports import Outcome, RoundReport
from specframe.contracts.round import Batch
from specframe.model.run import Run
from specframe.plugins.compose import Composition
from specframe.plugins.registry import registry


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
    """Whether the drafter received it, before the next round was launched or as it was captured, or needs not receive it."""


@attrs.frozen(eq=False)
class Opened:
    """A run that is open: its strategies, and the requests it has room for."""

    run: Run
    use: Composition
    greedy: bool
    """Whether its rule was chosen for requests without a temperature."""
    most: int
    """Rows that it could have."""
    longest: int
    """Tokens of a sequence at most, as the rows have room for."""
    prompt: int | None
    """Tokens of a prompt at most, where memory is bounded, or None if it is not."""
    check: Check | None
    """Checks a round's numbers when they come to the host, or None if they are checked at once."""
    plain: bool = False
    """Whether it decodes without drafts, so that rounds call neither drafter nor policy for one."""
    deferred: bool = False
    """Whether a round is launched before the one before it is landed."""
    captured: CapturedRounds | None = None
    """The rounds that are captured whole, or None if none are."""
    ahead: list[Flight] = attrs.Factory(list)
    """The round that was launched and has not landed, if there is one."""
    inference: torch.inference_mode = attrs.Factory(torch.inference_mode)
    """The mode of its rounds, which is made once."""


def captured_rounds(use: Composition, run: Run, check: Check | None) -> CapturedRounds | None:
    """Return the rounds of a run that are captured whole, or None if none are."""
    if run.target.rounds is None or not stays_on_device(use, run):
        return None
    made: CapturedRounds | None = registry().entry("option", "rounds").factory(run, use, check)
    return made


def stays_on_device(use: Composition, run: Run) -> bool:
    """Return whether all that a round computes depends on no number that the host has of the round before."""
    roles = use.drafter, use.verifier, use.rule, use.alignment, use.kv
    return all("deferred" in one.offers for one in roles) and not run.forgetful


def defers(use: Composition, run: Run) -> bool:
    """Return whether all strategies do with the most that rows' lengths may be, and no layer keeps a state."""
    return stays_on_device(use, run) and all("deferred" in one.offers for one in (use.scheduler, use.policy))


def share_memory(use: Composition) -> bool:
    """Return whether rows share the memory of their caches, so that one that is preempted leaves its own to the others."""
    return bool({"paged", "pooled"} & use.kv.offers)


def leaves_nan(report: RoundReport) -> bool:
    """Return whether a row has ended of which the target's logits are no distribution at some place.

    Its keys and values are nan then. Attention multiplies what a query does not see by 0, and 0 times nan is nan: a sequence
    that had these slots next would end like this one.
    """
    undecided = report.detail.host.undecided
    if undecided is None or not undecided.any() or report.logits_BTV is None:
        return False
    rows = [row for row, one in enumerate(report.sequences) if one.finished and undecided[row].any()]
    return bool(rows) and not bool(report.logits_BTV[rows].amax(-1).isfinite().all())
