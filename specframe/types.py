"""The data a round works on.

Tensor names carry their shape: B rows of the batch, K draft tokens, T = tokens fed per row, S slots or buffer places,
V vocabulary. Host copies of device state are numpy arrays.
"""

from __future__ import annotations

from typing import Literal

import attrs
import numpy as np
import torch

from specframe.plan import GREEDY, Plan
from specframe.stopping import StopCheck

FinishReason = Literal["eos", "length", "stop", "error"]


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


@attrs.define(eq=False)
class Sequence:
    """One request's live state. Its tokens are in the pool's buffers until it finishes."""

    request: Request
    limit: int
    """Length at which it ends: prompt and new tokens, never beyond the target's context."""
    prefilled: bool = False
    unread: int = 0
    """Tokens before its end that no round has read yet; reading a long prompt may take several."""
    joining: bool = False
    """Whether the batch it was last in did not decode: it read prompts, or had just started from others' rows."""
    donor: Sequence | None = None
    """A sequence of the same prompt whose row it starts from, instead of reading the prompt again."""
    heirs: int = 0
    """Sequences that still wait to start from its row."""
    taken_up: float = 0.0
    """When it became live, on the pool's clock."""
    token_ids: list[int] = attrs.Factory(list)
    """The generated tokens; filled when it finishes, or has to give its row back."""
    finish_reason: FinishReason | None = None
    """Why it ended; "error": no token could be chosen after its last one."""
    waited: int = 0
    """Rounds since it was last in a batch, the bound schedulers keep."""
    metrics: SequenceMetrics = attrs.Factory(SequenceMetrics)

    @property
    def start_ids(self) -> list[int]:
        """What is read before it goes on: its prompt, and what it had generated when it last lost its row."""
        return [*self.request.prompt_ids, *self.token_ids]

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    @property
    def ready(self) -> bool:
        """Whether it can decode: its prompt has been read, by itself or by the sequence it starts from."""
        reader = self if self.prefilled or self.donor is None else self.donor
        return reader.prefilled and not reader.unread

    @property
    def gone(self) -> bool:
        """Whether nothing needs its row any more."""
        return self.finished and not self.heirs


@attrs.frozen(eq=False)
class Batch:
    """The rows of one round. Row i holds ``sequences[i]``; tensors are views of the pool's device state."""

    sequences: list[Sequence]
    tokens_BS: torch.Tensor
    """Token ids of each row from place 0; what lies beyond a row's length means nothing."""
    lengths_B: torch.Tensor
    """Number of real tokens of each row."""
    lengths: np.ndarray
    """``lengths_B`` on the host."""
    limits: np.ndarray
    """The length at which each row ends, on the host."""
    streams_B: torch.Tensor
    """Which stream of random numbers is each row's own."""
    prefill: bool
    """Whether this round reads prompts: the draft length is then 0 and no row has anything cached."""
    unread: int = 0
    """Tokens before the end of each row, or all of a shorter one, that this round starts to read."""
    left: int = 0
    """How many of those it leaves to later rounds: where there are any, it gives no token."""
    starts: bool = False
    """Whether its rows have just started from others' rows: their first token, too, is not drafted."""

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def longest(self) -> int:
        """Length of the longest row."""
        return int(self.lengths.max())

    def positions(self, offset: int, count: int) -> torch.Tensor:
        """Return the ``count`` positions from ``offset`` after each row's last token on, (B, count)."""
        return self.lengths_B[:, None] + torch.arange(offset, offset + count, device=self.lengths_B.device)

    def last_tokens(self, width: int, offset: int = 0) -> torch.Tensor:
        """Return the ``width`` tokens of every row that end ``offset`` places after its length, (B, width).

        Places before a row's first token repeat that token: they are padding to whoever feeds them.
        """
        return self.tokens_BS.gather(1, self.positions(offset - width, width).clamp_(min=0))


@attrs.frozen(eq=False)
class Draft:
    """What a drafter proposes for a batch."""

    tokens_BK: torch.Tensor
    logits_BKV: torch.Tensor | None = None
    """The drafter's logits each token was chosen from, where it has a distribution."""

    @property
    def length(self) -> int:
        """Number of tokens proposed for every row."""
        return self.tokens_BK.shape[1]


@attrs.frozen(eq=False)
class Verdict:
    """What stands of a draft: per row, ``accepted_B`` draft tokens and one token of the target's own.

    ``tokens_BT`` (B, K + 1) holds the accepted tokens and the bonus token from place 0; what follows them means nothing.
    """

    accepted_B: torch.Tensor
    tokens_BT: torch.Tensor
    _host: list[np.ndarray] = attrs.field(factory=list, init=False, repr=False)
    _undecided: list[torch.Tensor] = attrs.field(factory=list, init=False, repr=False)

    def host(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (accepted, tokens) on the host. The first call is the round's one synchronisation."""
        if not self._host:
            width = self.tokens_BT.shape[1] + 1
            packed = torch.cat([self.accepted_B[:, None], self.tokens_BT, *self._undecided], dim=1).cpu().numpy()
            self._host.extend((packed[:, 0], packed[:, 1:width], packed[:, width:]))
        return self._host[0], self._host[1]

    def mark(self, undecided_BT: torch.Tensor) -> None:
        """Say at which places no token can be chosen, (B, K + 1), bool; it goes to the host with the rest.

        The first mark holds.
        """
        if not self._undecided:
            self._undecided.append(undecided_BT.to(self.tokens_BT.dtype))

    @property
    def undecided(self) -> np.ndarray | None:
        """At which places no token can be chosen, (B, K + 1), on the host; None where all could be."""
        if not self._undecided:
            return None
        self.host()
        packed = self._host[2] if self._host[2].size else self._undecided[0].cpu().numpy()  # marked after the transfer
        return packed.astype(bool)


@attrs.frozen(eq=False)
class Placement:
    """Where the tokens about to be fed go, and what they may see.

    A query attends to a slot when the slot's order is at least 0 and at most the query's own. Order is a token's place
    among its row's real tokens, which is also its position in every correct alignment.
    """

    positions_BT: torch.Tensor
    """Position ids handed to the model."""
    slots_BT: torch.Tensor
    """The slot of each fed token in its row's cache."""
    order_BT: torch.Tensor
    """Place of each fed token among its row's tokens; negative for padding."""
    key_order_BS: torch.Tensor
    """Place of the token in each slot, (B, S) or (1, S); negative where a slot holds none. S is the extent attended to."""
    used_B: torch.Tensor | None = None
    """Where every slot's place is its number: tokens per row after this forward, int32.

    In a row with fewer than are fed, the first of those are padding.
    """


@attrs.frozen
class KVShape:
    """Shape of one layer's keys and values for one token."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype


@attrs.frozen(eq=False)
class RoundReport:
    """What observers are told once per round. Arrays are per row, on the host."""

    number: int
    sequences: list[Sequence]
    prefill: bool
    draft: Draft
    verdict: Verdict
    lengths: np.ndarray
    """Lengths before the round."""
    accepted: np.ndarray
    """Accepted draft tokens that stand."""
    gained: np.ndarray
    """Tokens each row gained, cut at its stop."""
    finished: list[Sequence]
    logits_BTV: torch.Tensor | None = None
    """The target's own logits of this round, on the device, where the next round may write over them."""
    scores_BTV: torch.Tensor | None = None
    """The logits after each row's processors."""


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
