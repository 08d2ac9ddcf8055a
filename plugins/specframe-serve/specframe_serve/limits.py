"""Limits in front of every route: the size of bodies, and the key."""

from __future__ import annotations

import contextlib
import hmac

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specframe_serve.answers import error

OPEN = frozenset({"/", "/live", "/health", "/metrics"})
"""Paths that need no key: they show figures, and neither prompts nor answers. The page leaves drafts out where there is a key."""


class Limits:
    """Middleware that answers 413 to a body of more than ``most`` bytes, and 401 where ``key`` is not given.

    A body is counted as it comes, so that one of unknown length is not held in memory either.
    """

    def __init__(self, app: ASGIApp, most: int, key: str | None) -> None:
        self._app, self._most, self._key = app, most, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self._key and scope["path"] not in OPEN and not self._fits(headers.get(b"authorization", b"")):
            await refusal(401, "the API key is missing or wrong: expected the header Authorization: Bearer KEY")(
                scope, receive, send
            )
            return
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most:
            await self._too_large(scope, receive, send)
            return
        await self._counted(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on while its body is within the limit; what the application answers to the rest is dropped."""
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            return {"type": "http.disconnect"} if taken > self._most else message

        async def passed(message: Message) -> None:
            if taken <= self._most:
                await send(message)

        with contextlib.suppress(ClientDisconnect):
            await self._app(scope, counted, passed)
        if taken > self._most:
            await self._too_large(scope, receive, send)

    def _fits(self, given: bytes) -> bool:
        return hmac.compare_digest(given, f"Bearer {self._key}".encode())

    async def _too_large(self, scope: Scope, receive: Receive, send: Send) -> None:
        await refusal(413, f"the body is too large: expected at most {self._most} bytes")(scope, receive, send)


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the answer for an error."""
    return JSONResponse(error(status, message), status, headers)
