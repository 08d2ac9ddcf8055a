"""The rows of one round.

Tensor names carry their shape: B rows of the batch, S places of a buffer. Host copies of device state are numpy arrays.
"""

from __future__ import annotations

import attrs
import numpy as np
import torch

from specframe.contracts.requests import FinishReason, Request, SequenceMetrics


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
