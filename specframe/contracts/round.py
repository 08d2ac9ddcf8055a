"""The rows of one round.

Tensor names carry their shape: B rows of the batch, S places of a buffer. Host copies of device state are numpy arrays.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch

from specframe.contracts.requests import FinishReason, Request, SequenceMetrics
from specframe.devices.kinds import on_device

if TYPE_CHECKING:
    from specframe.text.constrained_logits import Guide

Logprobs = tuple[list[float] | None, list[dict[int, float]] | None]
"""The log-probability of each token, and those of the most likely tokens at each place, or None: not asked for."""


class SequenceState(enum.Enum):
    """The states of a sequence, in order. One that is preempted has ended, and another begins in its place."""

    WAITING = enum.auto()
    """The sequence has no row yet."""
    READING = enum.auto()
    """The sequence has a row, and is in prefill, of one or several chunks."""
    STARTING = enum.auto()
    """The sequence has a copy of its parent's row, and feeds the prompt's last token instead of reading the prompt."""
    DECODING = enum.auto()
    """The prompt is cached and a token is generated. Rounds draft from now on."""
    FINISHED = enum.auto()
    """The sequence has ended, or was preempted."""


@attrs.define(eq=False)
class Sequence:
    """One request's live state. Its tokens are in the pool's buffers until it finishes."""

    request: Request
    limit: int
    """Length at which the sequence ends, prompt included, at most the target's context."""
    state: SequenceState = SequenceState.WAITING
    uncached: int = 0
    """Number of last tokens not read yet. Reading a long prompt may take several rounds."""
    parent: Sequence | None = None
    """Parent of a fork: a sequence of the same prompt, whose row the fork copies instead of reading the prompt again."""
    forks: int = 0
    """Number of live forks that have not copied the row yet."""
    scheduled_at: float = 0.0
    """When it became live, on the pool's clock, or 0 if its time is not limited."""
    token_ids: list[int] = attrs.Factory(list)
    """The generated tokens; set when the sequence finishes or is preempted."""
    finish_reason: FinishReason | None = None
    """Reason of the end; "error": no token could be chosen after the last token, or as ``error`` says."""
    error: str | None = None
    """Why it cannot be decoded, where more is known than its reason says."""
    logprobs: Logprobs | None = None
    """The log-probabilities of a sequence that another process has decoded, or None if observers of this process take them."""
    waited: int = 0
    """Rounds since the sequence was last in a batch, which schedulers have to bound."""
    metrics: SequenceMetrics = attrs.Factory(SequenceMetrics)
    guide: Guide | None = None
    """Its constraint, from when it is live, or None if it has none."""
    resumed_as: Sequence | None = None
    """The sequence that waits in its place while caches release its row, if it was preempted, or None."""

    @property
    def start_ids(self) -> list[int]:
        """Tokens to read before decoding goes on: the prompt, and the tokens generated before it was preempted."""
        return [*self.request.prompt_ids, *self.token_ids]

    @property
    def finished(self) -> bool:
        """Whether the sequence has ended."""
        return self.state is SequenceState.FINISHED

    @property
    def ready(self) -> bool:
        """Whether the prompt has been read, by the sequence or its parent, so that the sequence can decode."""
        reader = self.parent if self.parent and self.state is SequenceState.WAITING else self
        return reader.state in (SequenceState.DECODING, SequenceState.FINISHED)

    @property
    def gone(self) -> bool:
        """Whether the sequence's row is no longer needed."""
        return self.finished and not self.forks

    def finish(self, reason: FinishReason) -> None:
        """End the sequence for this reason."""
        self.state, self.finish_reason, self.guide = SequenceState.FINISHED, reason, None

    def again(self) -> Sequence:
        """End the sequence for now, and return the one that waits in its place, to read its prompt and generated tokens again."""
        waiting = attrs.evolve(
            self, state=SequenceState.WAITING, uncached=0, parent=None, forks=0, waited=0, guide=None
        )
        self.state, self.forks, self.guide, self.resumed_as = SequenceState.FINISHED, 0, None, waiting
        return waiting


@attrs.frozen(eq=False)
class Batch:
    """The rows of one round. Row i holds ``sequences[i]``; tensors are views of the pool's device state."""

    sequences: list[Sequence]
    tokens_BS: torch.Tensor
    """Token ids of each row from place 0; ids beyond a row's length have no meaning."""
    lengths_B: torch.Tensor
    """Number of real tokens of each row."""
    tokens: np.ndarray
    """``tokens_BS`` on the host, read-only."""
    lengths: np.ndarray
    """``lengths_B`` on the host, read-only."""
    limits: np.ndarray
    """The length at which each row ends, on the host."""
    streams_B: torch.Tensor
    """Index of each row's stream of random numbers."""
    prefill: bool
    """Whether this round reads prompts. The draft length is then 0."""
    uncached: int = 0
    """The most last tokens of a row that are unread before this round: not all, if others were read in chunks or are cached."""
    left: int = 0
    """Number of these tokens that stay unread for later rounds. If it is above 0, the round generates no token."""
    starts: bool = False
    """Whether the rows are fresh copies of their parents' rows. The first token is not drafted, as after reading a prompt."""
    uncached_rows: np.ndarray | None = None
    """Number of last tokens of each row that are unread, (B,), on the host, or None for ``uncached``, or all of a shorter row."""
    mixed: Batch | None = None
    """Other sequences, of whose prompts this round reads a chunk; some of them stays unread. It is a batch of its own, so that
    a strategy never has to distinguish rows in prefill from rows that decode."""
    waiting: int = 0
    """Number of sequences without a row that had arrived when rows were last given."""

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def longest(self) -> int:
        """Length of the longest row."""
        return int(max(self.lengths.tolist()))

    @property
    def even(self) -> int | None:
        """Length of every row, where the host knows that all have the same; else None."""
        lengths = self.lengths.tolist()
        return lengths[0] if min(lengths) == max(lengths) else None

    @property
    def least(self) -> np.ndarray:
        """Length that each row has at least, (B,), on the host."""
        return self.lengths

    def positions(self, offset: int, count: int) -> torch.Tensor:
        """Return the ``count`` positions from ``offset`` after each row's last token on, (B, count)."""
        return self.lengths_B[:, None] + torch.arange(offset, offset + count, device=self.lengths_B.device)

    def last_tokens(self, width: int, offset: int = 0) -> torch.Tensor:
        """Return the ``width`` tokens of every row that end ``offset`` places after its length, (B, width), not to be written to.
        Places before a row's first token are padding."""
        if (even := self.even) is not None and even + offset >= width:
            return self.tokens_BS[:, even + offset - width : even + offset]
        return self.tokens_BS.gather(1, self.positions(offset - width, width).clamp_(min=0))


@attrs.frozen(eq=False)
class Bounded(Batch):
    """A batch whose rows have their lengths on the device alone: on the host ``lengths`` are the most that they may be."""

    least: np.ndarray = attrs.field(kw_only=True)

    @property
    def even(self) -> None:
        """None, since the host does not know the rows' lengths."""


def bounded(batch: Batch, least: np.ndarray) -> Bounded:
    """Return a batch as one whose lengths are the most that rows may have, and ``least`` the least."""
    return Bounded(**{field.name: getattr(batch, field.name) for field in attrs.fields(Batch)}, least=least)


@attrs.frozen(eq=False)
class Kept:
    """How many of each row's tokens a cache keeps, beyond the row's length: 0 for its own tokens and nothing that was fed after
    them, -2 if its last two are to be fed again. And the path of a tree that was fed."""

    beyond: int | np.ndarray | torch.Tensor
    """One number for all rows, or (B,)."""
    path_BT: torch.Tensor | None = None
    """The nodes of the path in the block fed last, (B, K); node 0 is its first token after the row's last. Or None for a chain."""
    on_host: Callable[[], np.ndarray] | None = None
    """Returns a tensor's numbers on the host; the first call may synchronise."""

    def host(self, batch: Batch) -> np.ndarray:
        """Return the number of each row's tokens that are kept, (B,), on the host."""
        beyond = self.on_host() if self.on_host else self.beyond
        assert not isinstance(beyond, torch.Tensor), "numbers on the device come with a function that brings them"
        stands: np.ndarray = np.maximum(batch.lengths + beyond, 0)
        return stands

    def device(self, batch: Batch) -> torch.Tensor:
        """Return the number of each row's tokens that are kept, (B,), on the device, without synchronisation."""
        beyond = on_device(self.beyond, batch.lengths_B.device) if isinstance(self.beyond, np.ndarray) else self.beyond
        return (batch.lengths_B + beyond).clamp(min=0)
