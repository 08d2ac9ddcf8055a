"""Features of the accepted tokens, carried with each row until the head has consumed them.

A head's input at token t is the target's hidden states at t, the *feature* g_t, mostly with the embedding of token t + 1. A
feature is known a round before the token after it is: the target computes g_t when it is fed token t, and chooses token t + 1
then. So the features of a round come with its outcome, and are consumed when the next draft is made.

Tensor names carry their shape: B rows, T tokens fed, W features that wait, D size of a feature, R all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import attrs
import numpy as np
import torch
import torch.nn.functional as F

from specframe.contracts.drafts import Draft, Scores
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch, Bounded, bounded
from specframe.model.run import Run
from specframe.row_map import RowMap

GROWTH = 8
"""Features per row by which the buffer grows: without drafts it is made anew once in this many rounds, not in each."""

Fuse = Callable[[torch.Tensor], torch.Tensor]
"""Makes what a head is fed of hidden states: (B, T, layers * D of the target), in the order of the layers -> (B, T, D)."""


@attrs.frozen(eq=False)
class FeatureChunk:
    """Features of a prompt, or of a chunk of it, that the head is to read now."""

    batch: Batch
    features_BTD: torch.Tensor
    """One for each token; a row with fewer tokens than T has padding before its first."""
    start: int
    """The first of them is that of the token ``start`` places after each row's length; it is negative."""
    counts: np.ndarray
    """How many of the last ones of each row are of tokens that were fed; those before them mean nothing, as the caches have what
    was made of them."""

    def real(self, begin: int, width: int) -> np.ndarray:
        """Return how many of the ``width`` features from ``begin`` on mean something, (B,); they are the last of them."""
        real: np.ndarray = (self.counts + begin + width - self.features_BTD.shape[1]).clip(0, width)
        return real


@attrs.frozen(eq=False)
class Waiting:
    """The features of each row that the head has not consumed: of the tokens ``first`` to ``first + counts - 1``."""

    features_BWD: torch.Tensor
    """The first ``counts_B[i]`` of row i mean something; W is the most that any row has."""
    first: np.ndarray
    first_B: torch.Tensor
    """The place of the token that the first feature is of."""
    counts: np.ndarray
    """The most that each row has, where the host does not know."""
    counts_B: torch.Tensor
    known: bool = True
    """Whether ``first`` is what the host knows, or else the least that it may be."""

    def beginning(self, view: Batch) -> Batch:
        """Return a batch whose rows end where the first feature is to be fed."""
        view = attrs.evolve(view, lengths_B=self.first_B, lengths=self.first)
        return bounded(view, self.first) if isinstance(view, Bounded) or not self.known else view

    def last(self, values_BWD: torch.Tensor) -> torch.Tensor:
        """Return the value at each row's last feature, (B, 1, D): of the feature itself, or of the head's output there."""
        return at(values_BWD, (self.counts_B - 1)[:, None])


class Features:
    """The features of one run's rows: taken from outcomes, moved with the rows, handed to the head once.

    Of a decoding round the features of the accepted path are kept, of a prompt the head is given all but the last at once
    (:meth:`observe` returns them), because its tokens are known. A fork starts with those of its own first round. After running
    out of memory a run is opened anew, and with it this.

    Args:
        run: the run; its target captures the layers from now on.
        layers: the hidden states to take, as transformers numbers them.
        fuse: makes what is kept.
        past: whether features of all tokens are needed, or False if the head keeps what it makes of them as long as the target
            keeps its keys.
    """

    def __init__(self, run: Run, layers: Sequence[int], fuse: Fuse, past: bool) -> None:
        run.target.capture(layers, past=past)
        self._layers, self._fuse = tuple(layers), fuse
        self._row_map = RowMap(run.rows)
        self._consumed = np.zeros(run.rows, dtype=np.int64)
        self._consumed_R = torch.zeros(run.rows, dtype=torch.long, device=run.runner.device)
        self._took = self._bounded = False
        """Whether this round has consumed features, and whether the host did not know the rows' lengths when it did."""
        self._known = True
        """Whether the host knows how many were consumed, and not only the least."""
        self._width = 0
        """The features that :meth:`draw` takes."""
        self._kept_RWD: torch.Tensor | None = None

    def follow(self, batch: Batch) -> None:
        """Make the batch's sequences the first rows, in its order. A drafter calls it first in ``propose``."""
        self._took = False  # whoever has replayed a round has not told of it
        moves = self._row_map.arrange(batch.sequences)
        moves.apply_host(self._consumed)
        moves.apply(self._consumed_R)
        self._consumed[moves.fresh] = 0
        if self._kept_RWD is not None:
            moves.apply(self._kept_RWD)
        if batch.starts:  # the parent has consumed the prompt up to its last token, which is fed again now
            self._consumed[: len(batch)] = batch.lengths - 1
            self._consumed_R[: len(batch)] = batch.lengths_B - 1
        if self._bounded:
            self._known = isinstance(batch, Bounded)
            if self._known:  # the host has read the round before
                self._consumed[: len(batch)] = batch.least - 2
        self._bounded = False

    def observe(self, outcome: Outcome) -> FeatureChunk | None:
        """Take a round's features. Returns those that the head has to read now, of a prompt; else None."""
        states_BTD = self._states(outcome.scores)
        if not outcome.batch.prefill:
            self._keep(outcome.before, self._fuse(on_path(outcome, states_BTD)))
            return None
        batch, features_BTD = outcome.before, self._fuse(states_BTD)
        self.follow(batch)
        waits = int(batch.left == 0)
        self._consumed[: len(batch)] = np.maximum(batch.lengths - batch.left - waits, 0)
        self._consumed_R[: len(batch)] = (batch.lengths_B - batch.left - waits).clamp_(min=0)
        if waits:
            self._keep(batch, features_BTD[:, -1:])
        read_BTD = features_BTD[:, : features_BTD.shape[1] - waits]
        if not read_BTD.shape[1]:
            return None
        return FeatureChunk(batch, read_BTD, -batch.uncached, (uncached(batch) - batch.left - waits).clip(0))

    def waiting(self, batch: Batch) -> int:
        """Return the most features that wait in any row of a batch that decodes."""
        return int((batch.lengths - 1 - self._consumed[: len(batch)]).max())

    def take(self, batch: Batch) -> Waiting:
        """Return the features of all tokens before each row's last that were not consumed, and count them as consumed."""
        first = self._consumed[: len(batch)].copy()
        counts = batch.lengths - 1 - first
        known = self._taken(batch)
        first_B, counts_B, kept_BWD = self._taken_on_device(batch, int(counts.max()))
        return Waiting(kept_BWD, first, first_B, counts, counts_B, known)

    def _taken(self, batch: Batch) -> bool:
        """Count all features as consumed, on the host; return whether it knew how many were before."""
        self._consumed[: len(batch)] = batch.least - 1
        self._took, self._bounded = True, isinstance(batch, Bounded)
        known, self._known = self._known, True
        return known

    def _taken_on_device(self, batch: Batch, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what was consumed of each row, how many features wait, and ``width`` features; count them as consumed."""
        assert self._kept_RWD is not None, "a decoding batch has been read"
        first_B, ends_B = self._consumed_R[: len(batch)].clone(), batch.lengths_B - 1
        self._consumed_R[: len(batch)] = ends_B
        counts_B = (ends_B - first_B).clamp_(min=1)  # rows that have ended have none
        return first_B, counts_B, self._kept_RWD[: len(batch), :width]

    def prepare(self, batch: Batch, depth: int) -> Hashable | None:
        """Count all features as consumed for a draft of a depth, on the host; return how many :meth:`draw` takes, of how large a
        buffer: it is another one when it has grown."""
        if self._kept_RWD is None:
            return None
        width = self.waiting(batch)
        room = self._room(max(width, depth + 1), self._kept_RWD)
        self._taken(batch)
        self._width = width
        return width, room.shape[1]

    def draw(self, batch: Batch) -> Waiting:
        """Return the features that were prepared, of a batch of which the host knows bounds alone."""
        rows, width = len(batch), self._width
        first_B, counts_B, kept_BWD = self._taken_on_device(batch, width)
        return Waiting(kept_BWD, batch.lengths - 1, first_B, np.full(rows, width), counts_B, known=False)

    def keep(self, batch: Batch, draft: Draft, scores: Scores) -> None:
        """Put the features of a round whose draft is a chain in place of those that were taken."""
        states_BTD = self._states(scores)
        features_BTD = self._fuse(states_BTD[:, states_BTD.shape[1] - draft.nodes - 1 :])
        assert self._kept_RWD is not None, "a decoding batch has been read"
        self._kept_RWD[: len(batch), : features_BTD.shape[1]] = features_BTD

    def _states(self, scores: Scores) -> torch.Tensor:
        """Return the hidden states that were taken in a forward, side by side."""
        return torch.cat([scores.hidden[layer] for layer in self._layers], dim=-1)

    def _keep(self, batch: Batch, features_BTD: torch.Tensor) -> None:
        """Put the features of each row's last token, and of those after it, behind those that wait."""
        rows, width, size = features_BTD.shape
        waiting = np.maximum(batch.lengths - 1 - self._consumed[:rows], 0) * (not self._took)
        self._took = False
        kept_RWD = self._room(int(waiting.max()) + width, features_BTD)
        if not waiting.any():
            kept_RWD[:rows, :width] = features_BTD
            return
        places_B1 = (batch.lengths_B - 1 - self._consumed_R[:rows]).clamp_(min=0)[:, None]
        places_BT1 = (places_B1 + torch.arange(width, device=features_BTD.device))[..., None]
        kept_RWD[:rows].scatter_(1, places_BT1.expand(-1, -1, size), features_BTD)

    def _room(self, width: int, like: torch.Tensor) -> torch.Tensor:
        """Return the buffer, grown to ``width`` features per row; zeros are finite, as whatever is attended to has to be."""
        width = -(-width // GROWTH) * GROWTH
        if self._kept_RWD is None:
            self._kept_RWD = like.new_zeros(len(self._consumed), width, like.shape[-1])
        elif (more := width - self._kept_RWD.shape[1]) > 0:
            self._kept_RWD = F.pad(self._kept_RWD, (0, 0, 0, more))
        return self._kept_RWD


def uncached(batch: Batch) -> np.ndarray:
    """Return how many of each row's last tokens were not cached when a batch that reads prompts was made, (B,)."""
    found: np.ndarray = batch.lengths.clip(max=batch.uncached) if batch.uncached_rows is None else batch.uncached_rows
    return found


def on_path(outcome: Outcome, states_BTD: torch.Tensor) -> torch.Tensor:
    """Return the states after each row's last token and after the nodes of the acceptance result's path, (B, K + 1, D).

    In row i the first ``accepted_B[i] + 1`` mean something.
    """
    states_BTD = states_BTD[:, states_BTD.shape[1] - outcome.draft.nodes - 1 :]
    path_BK = None if outcome.acceptance is None else outcome.acceptance.path_BT
    if path_BK is None:
        return states_BTD
    places_BT = F.pad(path_BK + 1, (1, 0)).clamp(0, states_BTD.shape[1] - 1)
    return at(states_BTD, places_BT)


def at(states_BTD: torch.Tensor, places_BN: torch.Tensor) -> torch.Tensor:
    """Return the states at places of each row, (B, N, D)."""
    return states_BTD.gather(1, places_BN[..., None].expand(-1, -1, states_BTD.shape[-1]))
