"""Requests and results: what is asked of a run, and what it answers."""

from __future__ import annotations

from typing import Literal, Protocol

import attrs
import numpy as np

from specframe.contracts.plan import GREEDY, Plan

FinishReason = Literal["eos", "length", "stop", "error", "abort"]
"""Why a sequence ended; "error": it could not be decoded, "abort": nobody wants it any more."""


class StopCheck(Protocol):
    """Finds where in a block a sequence ends."""

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the first of the last ``fresh`` tokens at which the sequence ends, counted from 0, or None.

        Args:
            ids: the sequence's tokens, prompt included, (L,).
            prompt_length: how many of them are the prompt's.
            fresh: how many of them this round added.
        """


@attrs.frozen
class Request:
    """What was asked for: one prompt and when its continuation ends.

    ``max_new_tokens`` counts generated tokens; ``stop_token_ids`` end a sequence and stay in its output.
    """

    index: int
    prompt_ids: list[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    plan: Plan = GREEDY
    """What its logits go through before a token is chosen."""
    stream: int = 0
    """Which stream of random numbers is its own."""
    arrival: float = 0.0
    """Seconds after the start of the run at which it may first be seen."""
    stop_checks: tuple[StopCheck, ...] = ()
    """What else may end it, looked at token by token."""
    max_time: float | None = None
    """Seconds after it was taken up at which it ends."""
    sample: int = 0
    """Which of several continuations of the prompt ``index`` it is: they share the reading of the prompt."""
    logprobs: int | None = None
    """How many of the most likely tokens to tell log-probabilities of beside each token's own; None: tell nothing."""

    @property
    def key(self) -> tuple[int, int]:
        """The place of its result among all results."""
        return self.index, self.sample


@attrs.define
class SequenceMetrics:
    """Counts of one sequence, in vLLM's names; the acceptance histogram leaves the bonus token out."""

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: dict[int, int] = attrs.Factory(dict)

    def count(self, drafted: int, accepted: int) -> None:
        """Count one round in which ``drafted`` tokens were proposed and ``accepted`` stood."""
        self.num_spec_steps += 1
        self.num_draft_tokens += drafted
        self.num_accepted_draft_tokens += accepted
        self.acceptance_histogram[accepted] = self.acceptance_histogram.get(accepted, 0) + 1

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted draft tokens per round, the bonus token included; 0 before the first round."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over proposed draft tokens; 0 when none were proposed."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


@attrs.frozen
class Result:
    """One prompt's continuation."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    metrics: SequenceMetrics
    error: str | None = None
    """Why it failed, when ``finish_reason`` is "error"."""
    prompt_tokens: int = 0
    latency: float = 0.0
    """Seconds from its arrival to its end, on the run's clock."""
    sample: int = 0
    """Which of several continuations of its prompt it is."""
    logprobs: list[float] | None = None
    """The target's log-probability of each token, where they were asked for."""
    top_logprobs: list[dict[int, float]] | None = None
    """The log-probabilities of the most likely tokens at each place, the most likely first."""


@attrs.frozen
class Chunk:
    """What one round adds to one continuation."""

    index: int
    sample: int
    text: str
    """Whole characters only: those that could still change, or begin a stop string, come with a later chunk."""
    token_ids: list[int]
    result: Result | None = None
    """The whole continuation, with its last chunk."""
