"""The listener: uvicorn's server, with a stop that takes a limited time."""

from __future__ import annotations

import asyncio
import math
import socket

import uvicorn

from specframe_serve.app import Server

LAST_WORDS = 1.0
"""Seconds in which the last events of streams are sent after their requests were ended. Who does not read them then is left."""


class Listener(uvicorn.Server):
    """Listens for a server's clients until a signal comes, or ``should_exit`` is set.

    Args:
        server: answers the requests.
        grace: seconds that requests under way have to end.
    """

    def __init__(self, server: Server, grace: float) -> None:
        # clients are left before: uvicorn's own way logs a traceback of each
        longest = math.ceil(grace + 2 * LAST_WORDS)
        super().__init__(uvicorn.Config(server.app(), log_level="warning", timeout_graceful_shutdown=longest))
        self._service, self._grace = server.service, grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, let those under way end in time, and leave."""
        self._service.stop(self._grace)
        asyncio.get_running_loop().call_later(self._grace + LAST_WORDS, self._hang_up)
        await super().shutdown(sockets)

    def _hang_up(self) -> None:
        """Close the connections that are left, with what their clients have not read."""
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
