"""The routes of the server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any

import attrs
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from specframe import Pipeline
from specframe.contracts.requests import Chunk, Result
from specframe.errors import SpecframeError
from specframe_serve.answers import Answer, event
from specframe_serve.limits import Limits, refusal
from specframe_serve.live import Live
from specframe_serve.metrics import Metrics
from specframe_serve.protocol import Asked, ChatCompletion, Completion
from specframe_serve.service import BusyError, Job, Service

CALM = {"Retry-After": "1"}
"""Seconds after which a client may try again when the queue is full: rows come free within rounds."""


@attrs.frozen
class Limited:
    """Limits of the server."""

    body: int = 1 << 20
    """Bytes of a request's body."""
    prompt_tokens: int | None = None
    """Tokens of a prompt; None: as many as the target's context has room for."""
    new_tokens: int = 4096
    """Tokens that a request may ask for."""
    waiting: int = 256
    """Sequences that may wait for a row."""


@attrs.frozen(eq=False)
class Ticket:
    """One request under way: its jobs' chunks, as they come."""

    service: Service
    numbers: list[int]
    chunks: asyncio.Queue[tuple[int, Chunk]]
    samples: int
    """Samples of each prompt: choices are numbered prompt by prompt."""

    async def all(self, count: int) -> AsyncIterator[tuple[int, Chunk]]:
        """Yield (number of the choice, chunk) until ``count`` choices have ended; end the jobs if nobody listens any more."""
        try:
            while count:
                place, chunk = await self.chunks.get()
                count -= chunk.result is not None
                yield place * self.samples + chunk.sample, chunk
        finally:
            if count:
                self.service.abort(self.numbers)


class Server:
    """Answers requests by a service.

    Args:
        pipe: the models and the strategies.
        name: the name under which the target is served.
        limits: limits of the server.
        key: the API key; None: nobody is asked for one.
    """

    def __init__(self, pipe: Pipeline, name: str, limits: Limited, key: str | None = None) -> None:
        self._pipe, self._name, self._limits, self._key = pipe, name, limits, key
        self._context = pipe.parts.runner.context
        self.metrics, self.live = Metrics(name), Live(None if key else pipe.tokenizer)
        room = min(self._context, (limits.prompt_tokens or limits.new_tokens) + limits.new_tokens)
        self.service = Service(pipe, room, limits.waiting, [self.metrics, self.live])

    def app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(title="specframe", lifespan=self._running, docs_url=None, redoc_url=None, openapi_url=None)
        app.add_middleware(Limits, most=self._limits.body, key=self._key)
        app.add_api_route("/v1/completions", self.completions, methods=["POST"], response_model=None)
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)
        app.add_api_route("/v1/models", self.models)
        app.add_api_route("/v1/models/{name:path}", self.model, response_model=None)
        app.add_api_route("/health", self.health, response_model=None)
        app.add_api_route("/metrics", self.figures, response_model=None)
        app.add_api_route("/live", self.state)
        app.add_api_route("/", self.page, response_model=None)
        app.add_exception_handler(RequestValidationError, unreadable)
        app.add_exception_handler(HTTPException, told)
        app.add_exception_handler(SpecframeError, lambda _, error: refusal(400, str(error)))
        app.add_exception_handler(BusyError, lambda _, error: refusal(429, str(error), CALM))
        return app

    @contextlib.asynccontextmanager
    async def _running(self, _: FastAPI) -> AsyncIterator[None]:
        self.service.start()
        yield
        await asyncio.to_thread(self.service.close)

    async def completions(self, asked: Completion, request: Request) -> Response:
        """Answer ``POST /v1/completions``."""
        return await self._answered(asked, request, chat=False)

    async def chat(self, asked: ChatCompletion, request: Request) -> Response:
        """Answer ``POST /v1/chat/completions``."""
        return await self._answered(asked, request, chat=True)

    async def _answered(self, asked: Completion | ChatCompletion, request: Request, chat: bool) -> Response:
        if asked.model != self._name:
            return refusal(404, f"model: expected {self._name!r}, got {asked.model!r}")
        prompts = [await asyncio.to_thread(self._read, prompt) for prompt in asked.prompts]
        ticket = self._submit(asked, prompts)
        answer = Answer(self._name, chat, asked.return_token_ids, self._pipe.tokenizer)
        choices, read = len(prompts) * asked.n, sum(map(len, prompts))
        self.metrics.prompts.inc(read)
        told = self._told(ticket.all(choices))
        if asked.stream:
            usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = streamed(told, answer, choices, read if usage else None)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        results = await while_listening(request, collected(told, choices))
        if failed := next((result for result in results if result.error), None):
            return refusal(500 if failed.finish_reason == "abort" else 400, str(failed.error))
        return JSONResponse(answer.whole(results, read))

    def _read(self, prompt: Any) -> list[int]:
        """Return a prompt's token ids; raise :class:`SpecframeError` where they are too many or cannot be had."""
        ids = self._pipe.encode(prompt)
        most = self._limits.prompt_tokens
        if most is not None and len(ids) > most:
            raise SpecframeError(f"the prompt has {len(ids)} tokens: expected at most {most}")
        return ids

    def _submit(self, asked: Asked, prompts: list[list[int]]) -> Ticket:
        """Hand the prompts of a request to the service."""
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Chunk]]()
        sampling, free = asked.sampling(), [self._context - len(ids) for ids in prompts]
        most = asked.most if asked.most is not None else self._limits.new_tokens  # type: ignore[attr-defined]
        if most > self._limits.new_tokens:
            raise SpecframeError(f"max_tokens: expected at most {self._limits.new_tokens}, got {most}")

        def sender(place: int) -> Callable[[Chunk], None]:
            def send(chunk: Chunk) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                    loop.call_soon_threadsafe(chunks.put_nowait, (place, chunk))

            return send

        jobs = [
            Job(ids, sampling, min(most, room), sender(place), asked.seed, asked.speculation == "on")
            for place, (ids, room) in enumerate(zip(prompts, free, strict=True))
        ]
        return Ticket(self.service, self.service.submit(jobs), chunks, asked.n)

    async def _told(self, chunks: AsyncIterator[tuple[int, Chunk]]) -> AsyncIterator[tuple[int, Chunk]]:
        """Yield chunks after counting them."""
        timer = self.metrics.request()
        async with contextlib.aclosing(chunks):  # type: ignore[type-var]
            async for place, chunk in chunks:
                if chunk.token_ids:
                    timer.token()
                if chunk.result:
                    self.metrics.ended(chunk.result.finish_reason)
                yield place, chunk
        timer.end()

    async def models(self) -> dict[str, Any]:
        """Answer ``GET /v1/models``."""
        return {"object": "list", "data": [self._described()]}

    async def model(self, name: str) -> Response:
        """Answer ``GET /v1/models/NAME``."""
        if name != self._name:
            return refusal(404, f"model: expected {self._name!r}, got {name!r}")
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        started = {"object": "model", "created": int(time.time()), "owned_by": "specframe"}
        return {"id": self._name, **started, "max_model_len": self._context}

    async def health(self) -> Response:
        """Answer ``GET /health``: 200 while the engine's thread runs."""
        return Response(status_code=200 if self.service.alive else 503)

    async def figures(self) -> Response:
        """Answer ``GET /metrics`` in Prometheus' form."""
        running, waiting = self._rows()
        self.metrics.running.set(running)
        self.metrics.waiting.set(waiting)
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def state(self) -> dict[str, Any]:
        """Answer ``GET /live``: the state that the page shows."""
        return {"model": self._name, **self.live.state(*self._rows())}

    def _rows(self) -> tuple[int, int]:
        """Return how many sequences have a row, and how many wait for one."""
        unfinished = self.service.unfinished
        running = min(unfinished, self._pipe.batch_size)
        return running, unfinished - running

    async def page(self) -> HTMLResponse:
        """Answer ``GET /`` with the page."""
        return HTMLResponse(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))


async def collected(chunks: AsyncIterator[tuple[int, Chunk]], choices: int) -> list[Result]:
    """Return the results of all choices, in their order."""
    results: dict[int, Result] = {}
    async with contextlib.aclosing(chunks):  # type: ignore[type-var]
        async for place, chunk in chunks:
            if chunk.result:
                results[place] = chunk.result
    return [results[place] for place in range(choices)]


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


async def streamed(
    chunks: AsyncIterator[tuple[int, Chunk]], answer: Answer, choices: int, prompt_tokens: int | None
) -> AsyncIterator[str]:
    """Yield the events of a streamed answer; ``prompt_tokens``: their number if the usage is asked for."""
    tokens = 0
    for opening in answer.opening(choices):
        yield event(opening)
    async with contextlib.aclosing(chunks):  # type: ignore[type-var]
        async for place, chunk in chunks:
            tokens += len(chunk.token_ids)
            if chunk.result and chunk.result.error:
                yield event({"error": {"message": chunk.result.error, "type": "server_error", "code": 500}})
            elif chunk.text or chunk.token_ids or chunk.result:
                yield event(answer.piece(place, chunk.text, chunk.token_ids, chunk.result))
    if prompt_tokens is not None:
        yield event(answer.closing(prompt_tokens, tokens))
    yield event("[DONE]")


async def unreadable(_: Request, error: Exception) -> JSONResponse:
    """Answer a body that is not as it should be: 400 and the field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:] if not isinstance(part, int)) or "the body"
    got = "" if first["type"] in ("missing", "json_invalid") else f", got {str(first.get('input'))[:60]}"
    return refusal(400, f"{where}: {first['msg']}{got}")


async def told(_: Request, error: Exception) -> JSONResponse:
    """Answer a route or a method that there is not."""
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, str(error.detail))
