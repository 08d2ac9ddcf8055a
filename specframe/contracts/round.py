"""The rows of one round.

Tensor names carry their shape: B rows of the batch, S places of a buffer. Host copies of device state are numpy arrays.
"""

from __future__ import annotations

import enum

import attrs
import numpy as np
import torch

from specframe.contracts.requests import FinishReason, Request, SequenceMetrics


class State(enum.Enum):
    """The stages of a sequence's life, in their order. One that gives its row back begins again."""

    WAITING = enum.auto()
    """It has no row yet."""
    READING = enum.auto()
    """It has a row, and its prompt is read, in one piece or in several."""
    STARTING = enum.auto()
    """It has a copy of its parent's row, and feeds the prompt's last token instead of reading the prompt."""
    DECODING = enum.auto()
    """Its prompt is cached and it has generated a token: its rounds draft."""
    FINISHED = enum.auto()
    """It has ended."""


@attrs.define(eq=False)
class Sequence:
    """One request's live state. Its tokens are in the pool's buffers until it finishes."""

    request: Request
    limit: int
    """Length at which it ends: prompt and new tokens, never beyond the target's context."""
    state: State = State.WAITING
    unread: int = 0
    """Tokens before its end that no round has read yet; reading a long prompt may take several."""
    parent: Sequence | None = None
    """The sequence of the same prompt whose row it copies, instead of reading the prompt again: it is a fork of that one."""
    forks: int = 0
    """Live sequences that have yet to copy its row."""
    taken_up: float = 0.0
    """When it became live, on the pool's clock; 0 where its time is not limited."""
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
        return self.state is State.FINISHED

    @property
    def ready(self) -> bool:
        """Whether its prompt has been read, by itself or by its parent, so that it can decode."""
        reader = self.parent if self.parent and self.state is State.WAITING else self
        return reader.state in (State.DECODING, State.FINISHED)

    @property
    def gone(self) -> bool:
        """Whether nothing needs its row any more."""
        return self.finished and not self.forks

    def finish(self, reason: FinishReason) -> None:
        """End it for this reason."""
        self.state, self.finish_reason = State.FINISHED, reason

    def wait(self) -> None:
        """Make it a sequence without a row: it reads its prompt, and what it has generated, before it goes on."""
        self.state, self.unread, self.parent, self.forks, self.waited = State.WAITING, 0, None, 0, 0


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
    """Whether its rows are fresh copies of their parents': their first token, too, is not drafted."""

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
