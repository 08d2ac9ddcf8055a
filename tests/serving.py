"""A server at a free port of this machine, and a hold of its engine."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest
from specframe_serve.app import Limited, Server
from specframe_serve.listener import Listener

from specframe import Pipeline
from specframe.engine.local_engine import LocalEngine

if TYPE_CHECKING:
    import openai


class Running:
    """A server at a free port of this machine, and its clients."""

    def __init__(self, **how: Any) -> None:
        key, grace = how.pop("key", None), how.pop("grace", 0)
        limits = Limited(**how.pop("limits", {}))
        self.pipe = Pipeline(**{"accept": "gumbel", "batch_size": 3, "draft_length": 2} | how)
        self.server = Server(self.pipe, "tiny", limits, key)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._listener = Listener(self.server, grace)
        self._thread = threading.Thread(target=self._listener.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        while not self._listener.started:
            time.sleep(0.01)

    def client(self, key: str = "none") -> openai.OpenAI:
        """Return OpenAI's client of the server."""
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, body: Any, path: str = "/v1/completions", **how: Any) -> httpx.Response:
        """Send a body, as JSON unless it is bytes."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        how = {"headers": {"Content-Type": "application/json"}} | how
        return httpx.post(self.url + path, timeout=1200, content=sent, **how)

    def figure(self, name: str) -> float:
        """Return one of Prometheus' figures."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])

    def settle(self) -> None:
        """Wait until nothing is under way; fail where something stays so."""
        self.until(lambda: not self.server.service.unfinished)

    def until(self, fulfilled: Callable[[], object], within: float = 30) -> None:
        """Wait for a condition; fail where it is not fulfilled in ``within`` seconds."""
        latest = time.monotonic() + within
        while not fulfilled():
            assert time.monotonic() < latest
            time.sleep(0.01)

    def asking(self, body: dict[str, Any], buffer: int | None = None) -> socket.socket:
        """Return a connection on which a completion was asked for; ``buffer``: bytes that the system keeps unread at each end."""
        connection = socket.socket()
        if buffer:
            for one, option in ((self._socket, socket.SO_SNDBUF), (connection, socket.SO_RCVBUF)):
                one.setsockopt(socket.SOL_SOCKET, option, buffer)
        connection.connect(self._socket.getsockname())
        sent = json.dumps(body).encode()
        fields = {"Host": "here", "Content-Type": "application/json", "Content-Length": len(sent)}
        head = "\r\n".join(["POST /v1/completions HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())])
        connection.sendall(f"{head}\r\n\r\n".encode() + sent)
        return connection

    def stop(self) -> None:
        """Do what a signal does."""
        self._listener.should_exit = True

    def ended(self, within: float = 20) -> bool:
        """Return whether the server ends, in ``within`` seconds at most."""
        self._thread.join(within)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End the server."""
        self.stop()
        assert self.ended()


class Hold:
    """Lets the engines of this process decode one round, and further ones when it is asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._step, self._rounds, self.released = LocalEngine.step, 0, False
        monkeypatch.setattr(LocalEngine, "step", lambda engine: self._held(engine))

    def _held(self, engine: LocalEngine) -> Any:
        if self._rounds and not self.released:
            time.sleep(0.001)
            return None
        report = self._step(engine)
        self._rounds += report is not None
        return report
