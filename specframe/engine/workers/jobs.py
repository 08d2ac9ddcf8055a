"""Requests on their way: which wait, which worker has which, and which of a round's tokens are new."""

from __future__ import annotations

import heapq
from typing import Any

import attrs
import numpy as np
import torch

from specframe.contracts.drafts import Draft, RoundReport, Verdict
from specframe.contracts.requests import Request
from specframe.contracts.round import Sequence, State
from specframe.engine.workers.messages import Ended, Round


@attrs.define(eq=False)
class Job:
    """One unfinished request."""

    ticket: int
    sequence: Sequence
    told: list[int] = attrs.Factory(list)
    """The generated tokens that a report has told of."""
    had: int = 0
    """Generated tokens that have come from the worker that has it now. One that is decoded again brings old ones first."""
    falls: int = 0
    """Workers that have died while they had it."""
    alone: bool = False
    """Whether a worker that decodes it decodes nothing else."""

    @property
    def request(self) -> Request:
        """The request."""
        return self.sequence.request

    def end(self, ended: Ended) -> Sequence:
        """Return the sequence at its end."""
        self.sequence.finish(ended.reason)
        self.sequence.token_ids, self.sequence.metrics = ended.token_ids, ended.metrics
        self.sequence.logprobs = ended.logprobs
        return self.sequence

    def fail(self, error: str) -> Sequence:
        """Return the sequence at its end by an error, with the tokens it has."""
        self.sequence.finish("error")
        self.sequence.token_ids, self.sequence.error = self.told, error
        return self.sequence


class Queue:
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
        """When the next request arrives; None: there is none."""
        return self._coming[0][0] if self._coming else None

    def arrived(self, now: float) -> Job | None:
        """Return the next request, if it has arrived."""
        return self._coming[0][2] if self._coming and self._coming[0][0] <= now else None

    def take(self) -> Job:
        """Take the next request out."""
        return heapq.heappop(self._coming)[2]


def report_of(told: Round, jobs: dict[int, Job], number: int) -> RoundReport | None:
    """Return the report of a worker's round, as far as it is new.

    Rows of requests that are gone are left out, and so are tokens that were told of before a request was decoded again.

    Args:
        told: the round.
        jobs: the unfinished requests, by ticket.
        number: the number of the report.

    Returns:
        None: nothing is new.
    """
    tokens_BT, gained, accepted = told.tokens_BT.copy(), told.gained.copy(), told.accepted.copy()
    ended = {one.ticket: one for one in told.ended}
    rows, finished = [], []
    for row, ticket in enumerate(told.tickets):
        if (job := jobs.get(ticket)) is None:
            continue
        known = len(job.told) - job.had
        fresh = int(gained[row]) - max(0, min(known, int(gained[row])))
        job.had += int(gained[row])
        ids = tokens_BT[row, gained[row] - fresh : gained[row]].copy()
        tokens_BT[row, :fresh], gained[row] = ids, fresh
        accepted[row] = min(accepted[row], fresh)
        job.told += ids.tolist()
        if ticket in ended:
            finished.append(job.end(ended[ticket]))
        elif fresh:
            job.sequence.state = State.DECODING
        if fresh or ticket in ended:
            rows.append(row)
    if not rows:
        return None

    def kept(values: np.ndarray | None) -> torch.Tensor | None:
        return None if values is None else torch.from_numpy(values[rows])

    draft_BN, verdict_B, verdict_BT = kept(told.draft_BN), kept(told.verdict_B), kept(tokens_BT)
    assert draft_BN is not None
    assert verdict_B is not None
    assert verdict_BT is not None
    return RoundReport(
        number,
        [jobs[told.tickets[row]].sequence for row in rows],
        told.prefill,
        Draft(draft_BN, parents_BN=kept(told.parents_BN), counts_B=kept(told.counts_B), depth=told.depth),
        Verdict(verdict_B, verdict_BT, kept(told.path_BK)),
        told.lengths[rows],
        told.drafted[rows],
        accepted[rows],
        gained[rows],
        finished,
    )


def report_of_failure(job: Job, number: int, error: str) -> RoundReport:
    """Return the report of a round in which nothing happened but that a request ended with an error."""
    none_1, none_11 = torch.zeros(1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
    length = len(job.request.prompt_ids) + len(job.told)
    nothing: Any = np.zeros(1, dtype=np.int64)
    return RoundReport(
        number,
        [job.sequence],
        True,
        Draft(none_11[:, :0]),
        Verdict(none_1, none_11),
        np.array([length]),
        nothing,
        nothing,
        nothing,
        [job.fail(error)],
    )
