"""Requests under way: the chunks of their jobs, as one answer or as a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import attrs
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from specframe.contracts.requests import Chunk, Result
from specframe_serve.answers import Answer, error, event
from specframe_serve.metrics import Metrics
from specframe_serve.service import STOPS, ServedRequest, Service


@attrs.define(eq=False)
class Ticket:
    """One request under way: its jobs' chunks, as they come.

    Leaving its context ends the jobs that have not finished: their client has left, or has its answer.
    """

    service: Service
    metrics: Metrics
    samples: int
    """Samples of each prompt: choices are numbered prompt by prompt."""
    left: int = 0
    """Choices that have not ended."""
    _numbers: list[int] = attrs.Factory(list)
    _chunks: asyncio.Queue[tuple[int, Chunk]] = attrs.Factory(asyncio.Queue)

    def submit(self, job: Callable[[int, Callable[[Chunk], None]], ServedRequest], count: int) -> Self:
        """Hand in the request's jobs: ``job`` returns the one at a place among ``count``, with the receiver of its chunks."""
        loop = asyncio.get_running_loop()

        def sender(place: int) -> Callable[[Chunk], None]:
            def send(chunk: Chunk) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                    loop.call_soon_threadsafe(self._chunks.put_nowait, (place, chunk))

            return send

        self._numbers = self.service.submit([job(place, sender(place)) for place in range(count)])
        self.left = count * self.samples
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.left:
            self.service.abort(self._numbers)

    async def chunks(self) -> AsyncIterator[tuple[int, Chunk]]:
        """Yield (number of the choice, chunk) until all choices have ended, and count them."""
        timer = self.metrics.request()
        while self.left:
            place, chunk = await self._chunks.get()
            if chunk.token_ids:
                timer.token()
            if chunk.result:
                self.left -= 1
                self.metrics.ended(chunk.result.finish_reason)
            yield place * self.samples + chunk.sample, chunk
        timer.end()

    async def results(self) -> list[Result]:
        """Return the results of all choices, in their order."""
        results = {place: chunk.result async for place, chunk in self.chunks() if chunk.result}
        return [results[place] for place in sorted(results)]


async def while_listening(request: Request, work: Any) -> Any:
    """Return what ``work`` returns; cancel it when the client hangs up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(hung_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499, "the client has hung up")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def hung_up(request: Request) -> None:
    """Return when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Streamed(StreamingResponse):
    """A streamed answer. However it ends, before its first event too, its jobs end with it."""

    def __init__(self, ticket: Ticket, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the last one, or until the client has left."""
        with self._ticket:
            await super().__call__(scope, receive, send)


async def events(ticket: Ticket, answer: Answer, prompt_tokens: int, usage: str) -> AsyncIterator[str]:
    """Yield the events of a streamed answer.

    Args:
        ticket: the request under way.
        answer: the shape of its answer.
        prompt_tokens: the number of tokens read.
        usage: "none", "last": a last chunk reports the numbers of tokens, or "each": every chunk reports those so far, too.
    """
    tokens = 0
    for opening in answer.opening(ticket.left):
        yield event(opening)
    async for place, chunk in ticket.chunks():
        tokens += len(chunk.token_ids)
        if chunk.result and chunk.result.error:
            yield event(error(status_of(chunk.result), chunk.result.error))
        elif chunk.text or chunk.token_ids or chunk.result:
            told = answer.piece(place, chunk.text, chunk.token_ids, chunk.result)
            yield event(told | answer.usage(prompt_tokens, tokens) if usage == "each" else told)
    if usage != "none":
        yield event(answer.closing(prompt_tokens, tokens))
    yield event("[DONE]")


def status_of(failed: Result) -> int:
    """Return the status of a request with a result that has failed: the client's fault, the engine's, or a stop."""
    if failed.finish_reason != "abort":
        return 400
    return 503 if failed.error == STOPS else 500
