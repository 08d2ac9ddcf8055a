"""Requests to a run, with the processors of their logits, and their results."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal, Protocol

import attrs
import numpy as np

FinishReason = Literal["eos", "length", "stop", "error", "abort"]
"""Why a sequence ended; "error": it could not be decoded, "abort": nobody wants it any more."""


@attrs.frozen(cache_hash=True)
class ProcessorKind:
    """What a logits processor computes. Processors of equal kinds are one formula: one call serves all rows that have it."""

    formula: type
    """Their class."""
    parameters: Hashable
    """What the formula depends on, apart from scores and token ids."""


@attrs.frozen(eq=False)
class SamplingPlan:
    """The logits processors of one sequence, in the order in which they are applied."""

    processors: tuple[Any, ...] = ()
    kinds: tuple[ProcessorKind | None, ...] = ()
    """The kind of each processor, or None if it is called for one place of one row at a time."""
    greedy: bool = True
    lead: tuple[int, ...] = ()
    """Ids put before the sequence's ids for processors: the padding, as in transformers' ``generate``."""
    own: bool = False
    """Whether the user's own processors are among them. Their scores are checked."""


GREEDY = SamplingPlan()


class StopCheck(Protocol):
    """Check for the end of a sequence inside a block."""

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return the first of the ``fresh`` tokens of this round at which the sequence ends, counted from 0, or None. ``ids`` are
        all its tokens, prompt included, (L,)."""


@attrs.frozen
class Request:
    """A request for a run: one prompt, and the end of its continuation. ``stop_token_ids`` stay in the output."""

    index: int
    prompt_ids: list[int]
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    plan: SamplingPlan = GREEDY
    """Logits processors of the request."""
    stream: int = 0
    """Index of the request's stream of random numbers."""
    arrival: float = 0.0
    """Arrival time in seconds after the start of the run. The run does not see the request earlier."""
    stop_checks: tuple[StopCheck, ...] = ()
    """Further checks for the end, evaluated for each token."""
    max_time: float | None = None
    """Most seconds from the start of the request's decoding to its end."""
    sample: int = 0
    """Number of the continuation among all samples of the prompt ``index``. The samples share the reading of the prompt."""
    logprobs: int | None = None
    """Number of most likely tokens with log-probabilities, in addition to each token's own, or None for no log-probabilities."""
    speculate: bool = True
    """Whether tokens are drafted for it; without, its row gains the bonus token of every round."""
    constraint: Any = None
    """What its tokens have to keep to: a constraint by name, as ``name,key=value``, or a
    :class:`specframe.contracts.constraints.Constraint`, or None for what the run says."""

    @property
    def key(self) -> tuple[int, int]:
        """Sort key of the request's result among all results."""
        return self.index, self.sample


@attrs.define
class SequenceMetrics:
    """Counts of one sequence, as docs/figures.md has them. The acceptance histogram does not count the bonus token."""

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: dict[int, int] = attrs.Factory(dict)
    prefix_hit_tokens: int = 0

    def count(self, drafted: int, accepted: int) -> None:
        """Count one round with ``drafted`` proposed and ``accepted`` accepted draft tokens."""
        self.num_spec_steps += 1
        self.num_draft_tokens += drafted
        self.num_accepted_draft_tokens += accepted
        self.acceptance_histogram[accepted] = self.acceptance_histogram.get(accepted, 0) + 1

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted draft tokens per round, the bonus token included, or 0 before the first round."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over proposed draft tokens, or 0 if none were proposed."""
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
    """Reason of the failure, if ``finish_reason`` is "error"."""
    prompt_tokens: int = 0
    latency: float = 0.0
    """Seconds from the request's arrival to its end, on the run's clock."""
    sample: int = 0
    """Number of the continuation among the samples of its prompt."""
    logprobs: list[float] | None = None
    """The target's log-probability of each token, if asked for."""
    top_logprobs: list[dict[int, float]] | None = None
    """The log-probabilities of the most likely tokens at each place, the most likely first."""


@attrs.frozen
class Chunk:
    """The text and tokens that one round adds to one continuation."""

    index: int
    sample: int
    text: str
    """Whole characters only. Characters that may still change or begin a stop string come with a later chunk."""
    token_ids: list[int]
    result: Result | None = None
    """The complete result, in the last chunk only."""
