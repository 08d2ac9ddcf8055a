"""Whether a server keeps its streams apart for minutes under many clients, and its memory flat.

    python benchmarks/soak.py [--streams 200] [--seconds 300] [--batch-size 8] [--output FILE]

`specframe serve` is started in a process of its own with the embedded pair. Clients ask for streams all the time, each with one of
a few prompts, greedy or with one of a few seeds. Some hang up, some read slowly, some send what cannot be read. Every stream that
ends has to have the token ids that a pipeline gives for the same prompt and seed, and every client that errs the right status. The
server's memory is read every few seconds. Exits with 1 when a stream is lost or mixed, or a status is wrong.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import click
import httpx2 as httpx
import openai
from rich.console import Console
from rich.table import Table

from specframe import Pipeline, Sampling

PROMPTS = [
    "def add(a, b):",
    "class Stack:\n    def",
    "import os\n",
    "for i in range(10):\n   ",
    "def fib(n):\n    if",
    "x = [",
]
NEW = (6, 12, 20)
"""New tokens: a prompt's length of answer depends on its place."""
SEEDS = 4
TEMPERATURE = 0.8
SAMPLED = 0.5
"""Share of requests with a temperature."""
HANGS_UP, SLOW, GARBAGE, LARGE, UNKNOWN = 0.04, 0.04, 0.02, 0.01, 0.02
"""Shares of clients that leave after the first chunk, wait between chunks, or send what is refused."""
EVERY = 5.0
"""Seconds between two readings of the memory."""

Key = tuple[int, bool, int]
"""A prompt's number, whether its tokens are sampled, and the seed."""


class Clients:
    """Clients of one server, and what came of their requests."""

    def __init__(self, url: str) -> None:
        self.told: Counter[str] = Counter()
        self.answers: dict[Key, set[tuple[int, ...]]] = {}
        self._url = url
        self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
        self._plain = httpx.AsyncClient(timeout=600)

    async def run(self, number: int, until: float) -> None:
        """Send one request after the other until a moment."""
        chance = random.Random(number)
        while time.monotonic() < until:
            await self._one(chance)

    async def _one(self, chance: random.Random) -> None:
        kind = chance.random()
        for share, body, status in (
            (GARBAGE, b"{garbage", 400),
            (LARGE, b'{"prompt": "' + b"x" * (2 << 20) + b'"}', 413),
            (UNKNOWN, json.dumps({"model": "tiny", "prompt": "a", "colour": 1}).encode(), 400),
        ):
            if (kind := kind - share) < 0:
                answer = await self._plain.post(f"{self._url}/v1/completions", content=body)
                self.told["refused rightly" if answer.status_code == status else "wrong status"] += 1
                return
        place, sampled = chance.randrange(len(PROMPTS)), chance.random() < SAMPLED
        seed = chance.randrange(SEEDS) if sampled else 0
        leaves, slow = kind < HANGS_UP, HANGS_UP <= kind < HANGS_UP + SLOW
        try:
            ids = await self._stream(place, sampled, seed, leaves, slow)
        except openai.RateLimitError:
            self.told["queue full (429)"] += 1
            await asyncio.sleep(chance.random())
        except openai.OpenAIError as error:
            self.told[f"lost: {type(error).__name__}"] += 1
        else:
            if ids is not None:
                self.answers.setdefault((place, sampled, seed), set()).add(tuple(ids))

    async def _stream(self, place: int, sampled: bool, seed: int, leaves: bool, slow: bool) -> list[int] | None:
        """Return a stream's token ids, or None if the client has hung up."""
        stream = await self._openai.completions.create(
            model="tiny",
            prompt=PROMPTS[place],
            max_tokens=NEW[place % len(NEW)],
            temperature=TEMPERATURE if sampled else 0,
            seed=seed,
            stream=True,
            extra_body={"return_token_ids": True},
        )
        ids: list[int] = []
        async with stream:
            async for chunk in stream:
                for choice in chunk.choices:
                    ids += choice.token_ids  # type: ignore[attr-defined]  # a field that OpenAI's has not
                    ended = choice.finish_reason
                if leaves:
                    self.told["hung up"] += 1
                    return None
                if slow:
                    await asyncio.sleep(0.2)
        self.told["streams" if ended else "lost: no end"] += 1
        return ids


def expected() -> dict[Key, tuple[int, ...]]:
    """Return the token ids that a pipeline gives: a request with a seed draws what the prompt of that index draws."""
    pipe, found = Pipeline(accept="gumbel"), {}
    for place, prompt in enumerate(PROMPTS):
        for sampled in (False, True):
            how = Sampling(temperature=TEMPERATURE if sampled else 0)
            for result in pipe.generate([prompt] * SEEDS, NEW[place % len(NEW)], sampling=how):
                found[place, sampled, result.index] = tuple(result.token_ids)
    return found


def memory(process: int) -> float:
    """Return a process's resident memory in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


async def soak(url: str, streams: int, seconds: float, process: int) -> tuple[Clients, list[float]]:
    """Run all clients; return them, and the server's memory over time."""
    clients, until, used = Clients(url), time.monotonic() + seconds, []
    tasks = [asyncio.create_task(clients.run(number, until)) for number in range(streams)]
    while time.monotonic() < until:
        await asyncio.sleep(EVERY)
        used.append(memory(process))
    await asyncio.gather(*tasks)
    return clients, used


@click.command(help=__doc__.partition("\n")[0])
@click.option("--streams", default=200, show_default=True, help="Clients at once.")
@click.option("--seconds", default=300.0, show_default=True)
@click.option("--batch-size", default=8, show_default=True)
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(streams: int, seconds: float, batch_size: int, output: str | None) -> None:
    """Start a server, run the clients, and print what came of it."""
    command = [sys.executable, "-m", "specframe", "serve", "--port", "0", "--accept", "gumbel"]
    command += ["--batch-size", str(batch_size), "--max-waiting", str(streams * 3 // 4)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            url = listening(server)
            clients, used = asyncio.run(soak(url, streams, seconds, server.pid))
        finally:
            server.terminate()
    wanted = expected()
    mixed = [key for key, answers in clients.answers.items() if answers != {wanted[key]}]
    settled = used[len(used) // 3 :] or [0.0]
    figures = {
        "seconds": seconds,
        "clients": streams,
        **dict(sorted(clients.told.items())),
        "kinds of requests": len(clients.answers),
        "kinds with other tokens": len(mixed),
        "memory after a third, MB": round(settled[0], 1),
        "memory at the end, MB": round(settled[-1], 1),
    }
    table = Table("", "", title="soak")
    for name, value in figures.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int | float) else str(value))
    Console(width=100).print(table)
    if output:
        Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    wrong = mixed or any(name.startswith(("lost", "wrong")) for name in clients.told) or not clients.told["streams"]
    sys.exit(bool(wrong))


def listening(server: subprocess.Popen[str]) -> str:
    """Return the address that a server prints when it listens."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"https?://[\w.:]+", line):
            return found[0]
    raise click.ClickException("the server ended before it listened")


if __name__ == "__main__":
    main()
