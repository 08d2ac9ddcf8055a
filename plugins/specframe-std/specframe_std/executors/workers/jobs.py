"""Requests on their way: which wait, which worker has which, and which of a round's tokens are new."""

from __future__ import annotations

import heapq

import attrs
import numpy as np

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.round import Sequence, SequenceState
from specframe_std.executors.workers.messages import Ended, Round


@attrs.define(eq=False)
class Job:
    """One unfinished request."""

    ticket: int
    sequence: Sequence
    told: list[int] = attrs.Factory(list)
    """The generated tokens that were in a report."""
    had: int = 0
    """Generated tokens that have come from the worker that has it now. One that is decoded again brings old ones first."""
    deaths: int = 0
    """Workers that have died while they had it."""
    alone: bool = False
    """Whether a worker that decodes it decodes nothing else."""

    @property
    def request(self) -> Request:
        """The request."""
        return self.sequence.request

    def take(self, tokens: list[int]) -> list[int]:
        """Take the tokens of a worker's round, and return those that were in no report."""
        known = max(0, len(self.told) - self.had)
        self.had += len(tokens)
        self.told += tokens[known:]
        return tokens[known:]

    def end(self, ended: Ended) -> Sequence:
        """Return the sequence at its end."""
        self.sequence.finish(ended.reason)
        self.sequence.token_ids, self.sequence.metrics = ended.token_ids, ended.metrics
        self.sequence.logprobs, self.sequence.error = ended.logprobs, ended.error
        return self.sequence

    def fail(self, error: str) -> Sequence:
        """Return the sequence at its end by an error, with the tokens it has."""
        self.sequence.finish("error")
        self.sequence.token_ids, self.sequence.error = self.told, error
        return self.sequence


class JobQueue:
    """Requests that no worker has, by their arrival."""

    def __init__(self) -> None:
        self._coming: list[tuple[float, int, Job]] = []
        self.alone: list[Job] = []
        """Those that a worker has to itself."""

    def put(self, job: Job) -> None:
        """Take a request."""
        if job.alone:
            self.alone.append(job)
        else:
            heapq.heappush(self._coming, (job.request.arrival, job.ticket, job))

    def drop(self, job: Job) -> None:
        """Forget a request."""
        self.alone = [one for one in self.alone if one is not job]
        self._coming = [entry for entry in self._coming if entry[2] is not job]
        heapq.heapify(self._coming)

    @property
    def following(self) -> float | None:
        """When the next request arrives, or None if there is none."""
        return self._coming[0][0] if self._coming else None

    def arrived(self, now: float) -> Job | None:
        """Return the next request, if it has arrived."""
        return self._coming[0][2] if self._coming and self._coming[0][0] <= now else None

    def take(self) -> Job:
        """Take the next request out."""
        return heapq.heappop(self._coming)[2]


def report_of(told: Round, jobs: dict[int, Job], number: int) -> RoundReport | None:
    """Return the report of a worker's round, as far as it is new.

    Rows of requests that are gone are left out, and so are tokens that were reported before a request was decoded again.

    Args:
        told: the round.
        jobs: the unfinished requests, by ticket.
        number: the number of the report.

    Returns:
        None: nothing is new.
    """
    ended = {one.ticket: one for one in told.ended}
    rows, tokens, finished = [], [], []
    for row, ticket in enumerate(told.tickets):
        if (job := jobs.get(ticket)) is None:
            continue
        ids = job.take(told.tokens[row])
        if ticket in ended:
            finished.append(job.end(ended[ticket]))
        elif ids:
            job.sequence.state = SequenceState.DECODING
        if ids or ticket in ended:
            rows.append(row)
            tokens.append(ids)
    if not rows:
        return None
    gained = np.array([len(ids) for ids in tokens], dtype=np.int64)
    return RoundReport(
        number=number,
        sequences=[jobs[told.tickets[row]].sequence for row in rows],
        prefill=told.prefill,
        lengths=told.lengths[rows],
        depth=told.depth,
        drafted=told.drafted[rows],
        accepted=np.minimum(told.accepted[rows], gained),
        gained=gained,
        tokens=tokens,
        finished=finished,
    )


def report_of_failure(job: Job, number: int, error: str) -> RoundReport:
    """Return the report of a round in which nothing happened but that a request ended with an error."""
    nothing = np.zeros(1, dtype=np.int64)
    return RoundReport(
        number=number,
        sequences=[job.sequence],
        prefill=True,
        lengths=np.array([len(job.request.prompt_ids) + len(job.told)]),
        depth=0,
        drafted=nothing,
        accepted=nothing,
        gained=nothing,
        tokens=[[]],
        finished=[job.fail(error)],
    )
