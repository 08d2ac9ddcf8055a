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
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from specframe import Pipeline, Sampling
from specframe.contracts.requests import Chunk
from specframe.errors import OptionError, SpecframeError
from specframe_serve.answers import Answer, Echo
from specframe_serve.limits import Limits, refusal
from specframe_serve.live import Live
from specframe_serve.metrics import Metrics
from specframe_serve.protocol import ChatCompletion, Completion
from specframe_serve.service import BusyError, ServedRequest, Service, StoppedError
from specframe_serve.tickets import Streamed, Ticket, events, status_of, while_listening

CALM = {"Retry-After": "1"}
"""Seconds after which a client may try again when the queue is full: rows come free within rounds."""


@attrs.frozen
class Limited:
    """Limits of the server."""

    body: int = 1 << 20
    """Bytes of a request's body."""
    prompt_tokens: int | None = None
    """Tokens of a prompt, or None for as many as the target's context has room for."""
    new_tokens: int = 4096
    """New tokens that each sequence of a request may ask for."""
    request_tokens: int = 1 << 18
    """Tokens of prompts and new ones in all sequences of a request: 64 of the longest answers."""
    waiting: int = 256
    """Sequences that may wait for a row."""


class Server:
    """Answers requests by a service.

    Args:
        pipe: the models and the strategies.
        name: the name under which the target is served.
        limits: limits of the server.
        key: the API key, or None if nobody is asked for one.
        seed: what the random numbers of requests without a seed follow from, or None if they are others in every server.
    """

    def __init__(
        self, pipe: Pipeline, name: str, limits: Limited, key: str | None = None, seed: int | None = None
    ) -> None:
        self._pipe, self._name, self._limits, self._key = pipe, name, limits, key
        self._context = pipe.parts.runner.context
        self.metrics, self.live = Metrics(name), Live(None if key else pipe.tokenizer)
        room = min(self._context, (limits.prompt_tokens or limits.new_tokens) + limits.new_tokens)
        self.service = Service(pipe, room, limits.waiting, [self.metrics, self.live], seed)

    def app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(title="specframe", lifespan=self._running, docs_url=None, redoc_url=None, openapi_url=None)
        app.add_middleware(Limits, most=self._limits.body, key=self._key)
        app.add_api_route("/v1/completions", self.completions, methods=["POST"], response_model=None)
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)
        routes: dict[str, Callable[..., Any]] = {
            "/v1/models": self.models,
            "/v1/models/{name:path}": self.model,
            "/health": self.health,
            "/metrics": self.figures,
            "/live": self.state,
            "/": self.page,
        }
        for path, answer in routes.items():
            app.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
        app.add_exception_handler(RequestValidationError, unreadable)
        app.add_exception_handler(HTTPException, told)
        app.add_exception_handler(SpecframeError, lambda _, error: refusal(400, str(error)))
        app.add_exception_handler(BusyError, lambda _, error: refusal(429, str(error), CALM))
        app.add_exception_handler(StoppedError, lambda _, error: refusal(503, str(error), CALM))
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
        sampling, given = asked.sampling(), asked.prompts
        if len(given) * asked.n > self.service.most:
            most = f"at most {self.service.most} sequences, as many as may be decoded and wait"
            raise OptionError(f"prompt and n: expected {most}, got {len(given)} prompts with n = {asked.n}")
        if asked.echo and sampling.logprobs is not None and "remote" in self._pipe.executor.offers:
            raise OptionError("echo: expected no logprobs with it where the target runs in other processes")
        prompts = [await asyncio.to_thread(self._read, prompt) for prompt in given]
        ticket = self._submit(asked, sampling, prompts)
        echoed = [Echo(*one) for one in zip(given, prompts, strict=True)] if asked.echo else []
        answer = Answer(self._name, chat, asked.return_token_ids, self._pipe.tokenizer, asked.n, echoed)
        read = sum(map(len, prompts))
        self.metrics.prompts.inc(read)
        if asked.stream:
            return Streamed(ticket, events(ticket, answer, read, asked.usage))
        with ticket:
            results = await while_listening(request, ticket.results())
        if failed := next((result for result in results if result.error), None):
            return refusal(status_of(failed), str(failed.error))
        return JSONResponse(answer.whole(results, read))

    def _read(self, prompt: Any) -> list[int]:
        """Return a prompt's token ids; raise :class:`SpecframeError` where they are too many or cannot be had."""
        ids = self._pipe.encode(prompt)
        most = self._limits.prompt_tokens
        if most is not None and len(ids) > most:
            raise SpecframeError(f"the prompt has {len(ids)} tokens: expected at most {most}")
        return ids

    def _submit(self, asked: Completion | ChatCompletion, sampling: Sampling, prompts: list[list[int]]) -> Ticket:
        """Hand the prompts of a request to the service."""
        new = self._new(asked.most, asked.n, prompts)

        def job(place: int, send: Callable[[Chunk], None]) -> ServedRequest:
            drafts, on = asked.speculation == "on", asked.ignore_eos
            echo = bool(asked.echo)
            return ServedRequest(prompts[place], sampling, new[place], send, asked.seed, drafts, on, echo)

        return Ticket(self.service, self.metrics, asked.n).submit(job, len(prompts))

    def _new(self, asked: int | None, samples: int, prompts: list[list[int]]) -> list[int]:
        """Return how many tokens each prompt may get; raise :class:`OptionError` where a request asks for too many."""
        limits = self._limits
        most = limits.new_tokens if asked is None else asked
        if most > limits.new_tokens:
            raise OptionError(f"max_tokens: expected at most {limits.new_tokens}, got {most}")
        new = [min(most, self._context - len(ids)) for ids in prompts]
        total = samples * (sum(map(len, prompts)) + sum(new))
        if total > limits.request_tokens:
            told = f"at most {limits.request_tokens} tokens, of prompts and new ones in all sequences"
            raise OptionError(f"prompt, n and max_tokens: expected {told}, got {total}")
        return new

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
        """Answer ``GET /health``: 200 while requests are taken."""
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
