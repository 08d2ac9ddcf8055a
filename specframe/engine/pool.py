"""The life of sequences: waiting, live in a row, finished."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import torch

from specframe.contracts.drafts import Acceptance, Transfer, some_rows
from specframe.contracts.engine import Clock
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import FinishReason, Request
from specframe.contracts.round import Batch, Sequence, SequenceState
from specframe.engine.engine_clock import HandClock
from specframe.engine.error_words import strategy_name
from specframe.engine.forks import begin_decoding, parent_for, parent_to_copy, rows_taken
from specframe.engine.round_gains import gains
from specframe.engine.token_rows import TokenRows
from specframe.engine.waiting_queue import Key, WaitingQueue
from specframe.errors import ModelError
from specframe.text.constrained_logits import NONE_ALLOWED, Guide
from specframe.text.sampling import reads_tokens


class Pool:
    """Requests waiting for a row, the sequences that have one, and their tokens.

    Schedulers are handed it. What they may use of it is listed in docs/stability.md; the rest is the engine's.

    Tokens and lengths live on the device, one row per live sequence, with a host copy kept in step from the one transfer of
    each round. A waiting request costs its token ids and nothing else.

    Args:
        requests: what to decode. One that has not arrived yet is not seen; those that arrive together keep their order.
        rows: sequences that may be live at once.
        capacity: places per row: the longest sequence, and the draft tokens beyond its end.
        context: the target's longest sequence, in tokens.
        clock: says when requests arrive; without one, time passes only where there is nothing to do.
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
        self._queue = WaitingQueue(requests)
        self._returned: OrderedDict[Key, Sequence] = OrderedDict()
        self._clock = clock or HandClock()
        self.live: list[Sequence] = []
        """The sequences that have a row, or one reserved."""
        self.reserve: Callable[[Sequence, int], int | None] = lambda sequence, tokens: 0
        """Called with a sequence that is admitted and its number of tokens; returns how many of the first are cached already, or
        None if there is no room."""
        self.release: Callable[[Sequence], None] = lambda sequence: None
        """Called with a sequence that is preempted, whose room in the caches is free."""
        self.most: int | None = None
        """Sequences that memory suffices for, or None for as many as there are rows."""
        self.guide: Callable[[Request], Guide | None] = lambda request: None
        """Returns the guide of a request that is given a row, or None if it has no constraint."""
        self.context, self.capacity = context, capacity
        self.samples_alone = True
        """Whether samples of one prompt begin from each other, and requests with equal prompts do not."""
        self.captures = False
        """Whether a prompt's chunk is read in the captured forward of a round, which takes hardly longer for it."""
        self.late_forks = True
        """Whether a fork may begin from a parent that decodes already: layers that keep a state have none of its start by then."""
        self._rounds = 0
        self._furnish(rows, device)

    def _furnish(self, rows: int, device: torch.device | str) -> None:
        """Allocate the tokens of the rows."""
        self.rows = rows
        """Sequences that may be live at once."""
        self._held = TokenRows(rows, self.capacity, device)
        self.latest: Batch | None = None
        """The batch made last."""
        self._under_way: list[Sequence] = []
        self._ended: list[Sequence] = []

    def put_back(self, rows: int, capacity: int | None = None) -> None:
        """Continue with another number of rows. Live sequences keep their generated tokens and wait for a new row.

        A round that was under way is discarded.

        Args:
            rows: sequences that may be live at once.
            capacity: places per row, or None for as many as before.
        """
        self._requeue(self.live)
        self.capacity = self.capacity if capacity is None else capacity
        self._furnish(rows, self._held.tokens_RS.device)

    def preempt(self, sequence: Sequence) -> None:
        """Preempt a live sequence, whose row and room in the caches are free; it waits before all others, with its tokens.

        It is another sequence then, to whoever keeps data per sequence: the given one has ended. So have samples that were to start
        from its row, which read the prompt themselves. A round that is under way with them is discarded.
        """
        self._requeue([one for one in self.live if sequence in (one, parent_to_copy(one))])

    def preempt_youngest(self, all_rows: bool = False) -> Sequence:
        """Preempt the youngest sequence, for lack of memory, and return it.

        Those of the round under way are preempted, too: the caches may have taken in a part of it. They may begin again at once.

        Args:
            all_rows: preempt every sequence: caches do not know any more which row is whose.
        """
        youngest, begun = self.live[-1], [one for one in self.live if all_rows or one in self._under_way]
        for sequence in (youngest, *reversed(begun)):
            if sequence in self.live:
                self.preempt(sequence)
        return youngest

    def _requeue(self, sequences: list[Sequence]) -> None:
        """Have live sequences wait before all others, in their order."""
        for sequence in reversed(sequences):
            self._leave(sequence)
            waiting = sequence.again()
            self.release(sequence)
            sequence.resumed_as = None  # all caches know: who has the one that has ended need not have the other
            self._returned[waiting.request.key] = waiting
            self._returned.move_to_end(waiting.request.key, last=False)

    def _leave(self, sequence: Sequence) -> None:
        """Take a sequence from the live ones; it keeps the tokens that it has generated."""
        sequence.token_ids = self._held.generated(sequence)
        self.live = [one for one in self.live if one is not sequence]
        if parent := parent_to_copy(sequence):
            parent.forks -= 1
        if self._held.row(sequence) is not None:
            self._ended.append(sequence)

    def add(self, request: Request) -> None:
        """Take another request. It is seen when it has arrived, after those that arrive together with it."""
        self._queue.add(request)

    def holds(self, key: Key) -> bool:
        """Return whether there is an unfinished request of this key."""
        return key in self._queue or key in self._returned or any(one.request.key == key for one in self.live)

    def abort(self, key: Key) -> Sequence | None:
        """End a request that has not finished, and return its sequence, or None if there is no such request.

        Its row is free, except as long as other samples of its prompt still start from there. Samples that wait for it to read the
        prompt read the prompt themselves.
        """
        request = self._queue.drop(key)
        waiting = self._returned.pop(key, None) if request is None else Sequence(request, self.limit(request))
        sequence = waiting or next((one for one in self.live if one.request.key == key), None)
        if sequence in self.live:
            orphans = [] if sequence.ready else [one for one in self.live if one.parent is sequence]
            self._requeue(orphans)
            self._leave(sequence)
        if sequence:
            sequence.finish("abort")
        return sequence

    def abort_all(self) -> None:
        """End all requests that have not finished."""
        for request in [*self.requests]:
            self.abort(request.key)

    @property
    def requests(self) -> Iterator[Request]:
        """The requests that have not finished, arrived or not."""
        for sequence in (*self.live, *self._returned.values()):
            yield sequence.request
        yield from self._queue

    @property
    def longest_start(self) -> int:
        """The most tokens that a sequence has when its row is made anew."""
        returned = (len(one.start_ids) for one in self._returned.values())
        queued = (len(request.prompt_ids) for request in self._queue)
        return max([*map(self.length, self.live), *returned, *queued], default=0)

    def limit(self, request: Request) -> int:
        """Return the length at which a request's sequence ends: never beyond the target's context."""
        return min(len(request.prompt_ids) + request.max_new_tokens, self.context)

    @property
    def unfinished(self) -> int:
        """Number of unfinished sequences, arrived or not."""
        return len(self.live) + len(self._returned) + len(self._queue)

    @property
    def tokens_with_next(self) -> tuple[int, int] | None:
        """The tokens of the live sequences and of the one that is next to be, now and at their ends, or None if none waits."""
        if returned := next(iter(self._returned.values()), None):
            now, end = len(returned.start_ids), returned.limit
        elif self._queue.arrived:
            now, end = len(self._queue.first.prompt_ids), self.limit(self._queue.first)
        else:
            return None
        return now + sum(map(self.length, self.live)), end + sum(one.limit for one in self.live)

    @property
    def waiting(self) -> Collection[Request]:
        """Requests that have arrived and have no row yet. When there is nothing else to do, the next to arrive has."""
        if self._queue.coming:
            idle = not (self.live or self._queue.arrived or self._returned)
            self._queue.let_in(self._clock, idle)
        return self._queue.arrived.values()

    def admit(self, count: int) -> list[Sequence]:
        """Make up to ``count`` waiting requests live, as many as there are free rows, and room in the caches.

        Where there is no room for a request, it and those after it keep their places and wait for others to end.

        Returns:
            Those whose prompt has to be read: the next batch. The others are forks of a sequence of the same prompt.

        Raises:
            ModelError: there is no room for a request, and nothing is live that could end.
        """
        reading: list[Sequence] = []
        most = self.rows if self.most is None else min(self.rows, self.most)
        for _ in range(min(count, len(self._returned) + len(self.waiting), most - rows_taken(self.live))):
            returned = self._returned
            if not (returned or self._queue.arrived):
                break  # aborted while room was made for another
            sequence = next(iter(returned.values())) if returned else self._scheduled(self._queue.first)
            sequence.guide = self.guide(sequence.request)  # what raises here leaves the request where it is
            if not self._has_room(sequence):
                break
            key = sequence.request.key
            if (returned.pop(key, None) or self._queue.drop(key)) is None:  # aborted while room was made
                sequence.finish("abort")
                continue
            if sequence.parent:
                sequence.parent.forks += 1
            else:
                reading.append(sequence)
            self.live.append(sequence)
        return reading

    def _has_room(self, sequence: Sequence) -> bool:
        """Have caches make room for a sequence, and note what it has to read; return whether they could."""
        tokens, others = len(sequence.start_ids), bool(self.live)  # those may be aborted while room is made
        cached = self.reserve(sequence, tokens)
        if cached is None:
            if not others:
                raise ModelError(
                    f"KV backend: a store has no room for a sequence of {sequence.limit} tokens, and no other is decoded that "
                    "could make some: expected more memory, or a shorter sequence"
                )
            return False
        sequence.uncached = 0 if sequence.parent else tokens - cached
        if not (sequence.parent or sequence.token_ids):
            sequence.metrics.prefix_hit_tokens = cached
        return True

    def _scheduled(self, request: Request) -> Sequence:
        moment = 0.0 if request.max_time is None else self._clock.now  # several processes would need a broadcast
        parent = parent_for(request, self.live, self.samples_alone, self.late_forks)
        return Sequence(request, self.limit(request), parent=parent, scheduled_at=moment)

    def length(self, sequence: Sequence) -> int:
        """Return the number of tokens of a live sequence."""
        row = self._held.row(sequence)
        return len(sequence.start_ids) if row is None else int(self._held.lengths[row])

    def batch(self, sequences: list[Sequence], piece: int | None = None, mixed: Collection[Sequence] = ()) -> Batch:
        """Return these live sequences as a batch, in adjacent rows.

        They either all decode or all need their prompt read: no more than ``piece`` tokens of each row, or everything with
        None. Sequences that are left with something to read come back together. Where some are forks without a row yet, they are a
        batch of their own before they join: what a sequence draws must not depend on how its prompt was read. A chunk of ``mixed``
        sequences is read in the same round, but never their last token.
        """
        new = [sequence for sequence in sequences if sequence.state is SequenceState.WAITING]
        starts = bool(new) and new[0].parent is not None
        sequences, reading = (new, []) if starts else (sequences, list(mixed))
        new += [sequence for sequence in reading if sequence.state is SequenceState.WAITING]
        for sequence in new:
            sequence.state = SequenceState.STARTING if starts else SequenceState.READING
        held = self._held
        apart = sequences[0].state is SequenceState.DECODING and held.own.start > 0
        self._under_way = [*sequences, *reading]  # what fails from here on may have moved their rows
        same = sequences == held.batch and reading == held.mixed
        if new or apart or not (same or (alike(sequences, held.batch) and alike(reading, held.mixed))):
            held.arrange(sequences, reading)
        for sequence in self.live:
            sequence.waited += 1
        for sequence in self._under_way:
            sequence.waited = 0
        other = held.made(held.mixed, held.own.stop, piece, least=1) if held.mixed else None
        waiting = len(self._returned) + len(self._queue.arrived)
        self.latest = held.made(held.batch, held.own.start, piece, starts=starts, mixed=other, waiting=waiting)
        return self.latest

    def goes_on(self, batch: Batch) -> bool:
        """Return whether the next batch may be made before the host has read this one: rows of it may go on, whatever it brings."""
        if batch.prefill or batch.starts or batch.mixed is not None or reads_tokens(batch):
            return False
        return any(not one.finished and self.length(one) + 1 < one.limit for one in batch.sequences)

    def expect(self, batch: Batch, most_B: np.ndarray) -> None:
        """Make batches, until the next :meth:`advance`, of rows that may have gained one to ``most_B`` tokens on the device."""
        self._held.coming = dict(zip(map(id, batch.sequences), most_B.tolist(), strict=True))

    def append(self, batch: Batch, acceptance: Acceptance, once_more: bool = False) -> None:
        """Append the acceptance result's tokens to each row on the device, as :meth:`TokenRows.append` does; :meth:`advance` has
        the host follow."""
        self._held.append(batch, acceptance, once_more)

    def advance(
        self,
        batch: Batch,
        transfer: Transfer,
        logits_BTV: torch.Tensor | None = None,
        scores_BTV: torch.Tensor | None = None,
        commit_point: Callable[[], None] = lambda: None,
        computed: int = 0,
    ) -> RoundReport:
        """Append the acceptance result's tokens to each row on the host, cut at the row's stop, and release finished sequences.

        Args:
            batch: the rows, to which the device has appended them.
            transfer: the acceptance result.
            logits_BTV: the logits that it was decided by, which are handed on to observers.
            scores_BTV: these logits after processors.
            commit_point: called after all that may fail, the rows' own stop checks too, and before anything is changed.
            computed: tokens that the target computed.
        """
        held, latest = self._held, batch is self.latest
        held.coming = {}
        rest = [row for row, one in enumerate(batch.sequences) if one.state is not SequenceState.FINISHED]
        if len(rest) < (count := len(batch.sequences)):  # some ended before this round was landed
            told = batch, transfer, logits_BTV, scores_BTV
            batch, transfer, logits_BTV, scores_BTV = (some_rows(one, rest, count) for one in told)
        draft, sequences, rows = transfer.draft, batch.sequences, held.rows(batch.sequences)
        before = held.lengths[rows].copy()
        timed = [one for one in sequences if one.request.max_time is not None]
        found = gains(sequences, draft, transfer.host, held.tokens[rows], before, self._clock.now if timed else None)
        commit_point()
        gained = held.take(rows, found.tokens)
        if latest:
            self._under_way = []
        for sequence, drafted, accepted in zip(sequences, found.drafted, found.accepted, strict=True):
            if drafted:
                sequence.metrics.count(drafted, accepted)
        if batch.prefill or batch.starts:
            begin_decoding(batch)
        finished = [self._finish(batch, row, reason) for row, reason in found.reasons.items()]
        if finished:
            self.live = [sequence for sequence in self.live if not sequence.finished]
            self._ended += finished
        self._rounds += 1
        return RoundReport(
            number=self._rounds,
            sequences=sequences,
            prefill=batch.prefill,
            lengths=before,
            depth=draft.depth,
            drafted=np.array(found.drafted, dtype=np.int64),
            accepted=np.array(found.accepted, dtype=np.int64),
            gained=gained,
            tokens=found.tokens,
            finished=finished,
            transfer=transfer,
            starts=batch.starts,
            computed=computed,
            logits_BTV=logits_BTV,
            scores_BTV=scores_BTV,
        )

    def newly_ended(self) -> list[Sequence]:
        """Return the sequences that had a row and have ended since this was last asked, or since the rows were made."""
        ended, self._ended = self._ended, []
        return ended

    def _finish(self, batch: Batch, row: int, reason: FinishReason) -> Sequence:
        sequence = batch.sequences[row]
        if reason == "error" and sequence.guide:
            sequence.error = (
                sequence.error or f"{strategy_name('constraint', sequence.guide.constraint)}: {NONE_ALLOWED}"
            )
        sequence.token_ids = self._held.generated(sequence)
        sequence.finish(reason)
        return sequence


def alike(some: list[Sequence], others: list[Sequence]) -> bool:
    """Return whether these are the same sequences as those, in any order."""
    return set(map(id, some)) == set(map(id, others))
