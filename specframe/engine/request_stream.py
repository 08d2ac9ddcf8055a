"""Requests that an engine takes while it decodes, so that those to come are not held."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows

from specframe.contracts.engine import Engine
from specframe.contracts.reports import Progress
from specframe.contracts.requests import Request, Result
from specframe.engine.result_factory import ResultFactory
from specframe.errors import PromptError
from specframe.observe.stopwatch import REMOTE

AHEAD = 1024
"""Unfinished requests that an engine has, or more where it has many rows. A run of fewer has them all from its start."""

MARGIN = 1.25
"""How much longer than a request the caches become that are made for it. A file whose prompts grow would else have them made for
each."""


class RequestStream:
    """Gives an engine requests, a limited number ahead of those that have finished.

    A request that is longer than all before it needs other caches. It waits until the others have finished: tokens of a rule that
    depends on what was drafted would change where a sequence is read in again in the middle.

    Args:
        engine: without requests.
        asked: the requests of one prompt after the other, or results of those that cannot be decoded. Read while decoding.
        results: makes results of what the engine refuses.
        rows: sequences that an engine of this process decodes at once.
        context: the target's longest sequence, in tokens.
    """

    def __init__(
        self, engine: Engine, asked: Iterable[Rows[Request | Result]], results: ResultFactory, rows: int, context: int
    ) -> None:
        self._engine, self._asked, self._results, self._context = engine, iter(asked), results, context
        self._ahead = max(AHEAD, 4 * (engine.remote or rows))
        self._unfinished = self._room = 0
        self._begun = False
        self._held: Rows[Request | Result] = ()
        """Requests of a prompt that wait for other caches."""

    def __iter__(self) -> Iterator[Result | Progress]:
        """Decode, and yield the report of every round, and the result of each request that cannot be decoded."""
        while True:
            yield from self._more()
            if self._engine.idle:
                return
            self._begun = True
            if (report := self._engine.step()) is not None:
                self._unfinished -= len(report.finished)
                yield report

    def _more(self) -> Iterator[Result]:
        """Give the engine what it has too little of, and yield the results of what cannot be decoded."""
        while self._unfinished < self._ahead:
            with self._timed():
                refused = self._taken()
            if refused is None:
                return
            self._results.errors += len(refused)
            yield from refused

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Have the clock of the run go on inside the block where others decode meanwhile."""
        if not (self._engine.remote and self._begun):
            yield
            return
        self._results.clock.enter(REMOTE)
        try:
            yield
        finally:
            self._results.clock.leave(REMOTE)

    def _taken(self) -> list[Result] | None:
        """Give the engine the requests of one prompt; return the results of those that it cannot decode.

        Returns:
            None: there is no further prompt, or it has to wait.
        """
        asked, self._held = self._held or next(self._asked, ()), ()
        if not asked:
            return None
        if not self._fits(asked):
            self._held = asked
            return None
        made = (one if isinstance(one, Result) else self._refused(one) for one in asked)
        return [one for one in made if one is not None]

    def _fits(self, asked: Rows[Request | Result]) -> bool:
        """Return whether requests can be given now; an engine that is idle makes room for any."""
        lengths = [len(one.prompt_ids) + one.max_new_tokens for one in asked if isinstance(one, Request)]
        longest = min(max(lengths, default=0), self._context)
        if longest <= self._room:
            return True
        if not self._begun:
            self._room = longest
        elif not self._engine.idle:
            return False
        else:
            self._room = min(int(longest * MARGIN), self._context)
            self._engine.make_room(self._room)
        return True

    def _refused(self, request: Request) -> Result | None:
        """Give the engine a request; return its result if it cannot be decoded."""
        try:
            self._engine.add(request)
        except PromptError as error:
            return self._results.failed(request, error)
        self._unfinished += 1
        return None
