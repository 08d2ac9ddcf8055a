"""The life of sequences: waiting, live in a row, finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import torch

from specframe.arrivals import Clock, HandClock
from specframe.seating import Seating
from specframe.types import Batch, Draft, Request, RoundReport, Sequence, Verdict


class Pool:
    """Requests waiting for a row, the sequences that have one, and their tokens.

    Tokens and lengths live on the device, one row per live sequence, with a host copy kept in step from the one transfer of
    each round. A waiting request costs its token ids and nothing else.

    Args:
        requests: what to decode. One that has not arrived yet is not seen; those that arrive together keep their order.
        rows: sequences that may be live at once.
        capacity: places per row: the longest sequence, and the draft tokens beyond its end.
        context: the target's longest sequence, in tokens.
        clock: tells when requests arrive; without one, time passes only where there is nothing to do.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        rows: int,
        capacity: int,
        context: int,
        device: torch.device | str = "cpu",
        clock: Clock | None = None,
    ) -> None:
        self._coming = deque(sorted(requests, key=lambda request: request.arrival))
        self._waiting: deque[Request] = deque()
        self._clock = clock or HandClock()
        self.live: list[Sequence] = []
        self.rows, self.context = rows, context
        self._seating = Seating(rows)
        self._batch: list[Sequence] = []
        self._tokens_RS = torch.zeros(rows, capacity, dtype=torch.long, device=device)
        self._lengths_R = torch.zeros(rows, dtype=torch.long, device=device)
        self._tokens = np.zeros((rows, capacity), dtype=np.int64)
        self._lengths = np.zeros(rows, dtype=np.int64)
        self._limits = np.zeros(rows, dtype=np.int64)
        self._streams_R = torch.zeros(rows, dtype=torch.long, device=device)
        self._rounds = 0

    @property
    def waiting(self) -> deque[Request]:
        """Requests that have arrived and have no row yet. When there is nothing else to do, the next to arrive has."""
        if self._coming:
            self._let_in()
        return self._waiting

    def _let_in(self) -> None:
        now, idle = self._clock.now, not self.live and not self._waiting
        if idle and now < (following := self._coming[0].arrival):
            self._clock.jump(following)
            now = following
        while self._coming and self._coming[0].arrival <= now:
            self._waiting.append(self._coming.popleft())

    def admit(self, count: int) -> list[Sequence]:
        """Make up to ``count`` waiting requests live, as many as there are free rows, and return them."""
        admitted: list[Sequence] = []
        waiting = self.waiting
        while waiting and len(admitted) < count and len(self.live) < self.rows:
            request = waiting.popleft()
            limit = min(len(request.prompt_ids) + request.max_new_tokens, self.context)
            admitted.append(Sequence(request, limit))
            self.live.append(admitted[-1])
        return admitted

    def length(self, sequence: Sequence) -> int:
        """Return the number of tokens of a live sequence."""
        if not sequence.prefilled:
            return len(sequence.request.prompt_ids)
        return int(self._lengths[self._seating.row(sequence)])

    def batch(self, sequences: list[Sequence]) -> Batch:
        """Return these live sequences as a batch, seated in the first rows.

        They either all decode or all need their prompt read.
        """
        prefill = not sequences[0].prefilled
        if prefill or set(map(id, sequences)) != set(map(id, self._batch)):
            self._batch = self._seating.order(sequences)
            moves = self._seating.arrange(self._batch)
            moves.apply(self._tokens_RS, self._lengths_R, self._streams_R)
            moves.apply_host(self._tokens, self._lengths, self._limits)
        if prefill:
            self._write_prompts(self._batch)
        for sequence in self.live:
            sequence.waited += 1
        for sequence in self._batch:
            sequence.waited = 0
        count = len(self._batch)
        return Batch(
            self._batch,
            self._tokens_RS[:count],
            self._lengths_R[:count],
            self._lengths[:count],
            self._limits[:count],
            self._streams_R[:count],
            prefill,
        )

    def _write_prompts(self, sequences: list[Sequence]) -> None:
        for row, sequence in enumerate(sequences):
            ids = sequence.request.prompt_ids
            self._tokens[row, : len(ids)] = ids
            self._lengths[row] = len(ids)
            self._limits[row] = sequence.limit
            sequence.prefilled = True
        count = len(sequences)
        self._tokens_RS[:count].copy_(torch.from_numpy(self._tokens[:count]))
        self._lengths_R[:count].copy_(torch.from_numpy(self._lengths[:count]))
        self._streams_R[:count].copy_(torch.tensor([sequence.request.stream for sequence in sequences]))

    def advance(self, batch: Batch, draft: Draft, verdict: Verdict) -> RoundReport:
        """Append what the verdict gives each row, cut at its stop, and let finished sequences go."""
        batch.tokens_BS.scatter_(1, batch.positions(0, verdict.tokens_BT.shape[1]), verdict.tokens_BT)
        batch.lengths_B.add_(verdict.accepted_B + 1)

        accepted, tokens = verdict.host()
        before = batch.lengths.copy()
        room = batch.limits - before
        gained = np.minimum(accepted + 1, room)
        stops = self._stops(batch, tokens) & (np.arange(tokens.shape[1]) < gained[:, None])
        stopped = stops.any(axis=1)
        gained = np.where(stopped, stops.argmax(axis=1) + 1, gained)
        places = before[:, None] + np.arange(tokens.shape[1])
        np.put_along_axis(self._tokens[: len(batch)], places, tokens, axis=1)
        batch.lengths[:] += gained

        drafted = np.minimum(draft.length, room - 1)  # what it would get alone: the token at its limit is the bonus
        standing = np.minimum(np.minimum(accepted, gained), drafted)
        for sequence, d, a in zip(batch.sequences, drafted.tolist(), standing.tolist(), strict=True):
            if d:
                sequence.metrics.count(d, a)
        finished = [
            self._finish(batch, row, bool(stopped[row])) for row in np.flatnonzero(stopped | (gained == room)).tolist()
        ]
        if finished:
            self.live = [sequence for sequence in self.live if not sequence.finished]
        self._rounds += 1
        return RoundReport(
            self._rounds, batch.sequences, batch.prefill, draft, verdict, before, standing, gained, finished
        )

    def _stops(self, batch: Batch, tokens: np.ndarray) -> np.ndarray:
        """Return where a row's own stop ids occur in its tokens, (B, T)."""
        stops = np.zeros(tokens.shape, dtype=bool)
        kinds = {sequence.request.stop_token_ids for sequence in batch.sequences}
        for ids in kinds:
            if ids:
                rows = [sequence.request.stop_token_ids == ids for sequence in batch.sequences]
                stops |= np.isin(tokens, list(ids)) & np.array(rows)[:, None]
        return stops

    def _finish(self, batch: Batch, row: int, stopped: bool) -> Sequence:
        sequence = batch.sequences[row]
        sequence.finish_reason = "eos" if stopped else "length"
        sequence.token_ids = self._tokens[row, len(sequence.request.prompt_ids) : batch.lengths[row]].tolist()
        return sequence
