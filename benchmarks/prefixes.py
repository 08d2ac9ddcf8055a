"""Time that prompts with a common beginning take to be read, by KV backend.

    python benchmarks/prefixes.py [--pair embedded] [--prompts 32] [--common 512] [--batch 8]

Prompts have random tokens, the first of them in common. A new pipeline decodes them with each backend, twice; the second time
counts, in processor time of one thread. Tokens have to be the same with every backend.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import random
import time
from typing import Any

import click
import torch
from grow import load_pair

from specframe import Pipeline
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer

STORES = ("slab", "paged", "paged,share=on")


class Reading(Observer):
    """Adds up the time in which prompts are read."""

    def __init__(self) -> None:
        self.seconds = self._since = 0.0

    def enter(self, stage: str) -> None:
        """Note when a stage begins."""
        if stage == "prefill":
            self._since = time.process_time()

    def leave(self, stage: str) -> None:
        """Add the time of a stage."""
        if stage == "prefill":
            self.seconds += time.process_time() - self._since


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="embedded", show_default=True)
@click.option("--prompts", default=32, show_default=True)
@click.option("--common", default=512, show_default=True, help="Tokens that all prompts begin with.")
@click.option("--batch", default=8, show_default=True)
def main(pair: str, prompts: int, common: int, batch: int) -> None:
    """Decode with each backend and print a table."""
    torch.set_num_threads(1)
    target, draft, _ = load_pair(pair, torch.device("cpu"), torch.float32)
    choose, vocabulary = random.Random(0), target.config.vocab_size

    def tokens(count: int) -> list[int]:
        return [choose.randrange(3, vocabulary) for _ in range(count)]

    beginning = tokens(common)
    asked = [Request(index, [*beginning, *tokens(choose.randint(8, 24))], 16) for index in range(prompts)]
    expected: list[list[int]] | None = None
    click.echo(f"{'KV backend':<16}{'seconds':>9}{'tokens not fed':>16}")
    for name in STORES:
        for _ in range(2):
            reading = Reading()
            how: dict[str, Any] = {"kv": name, "batch_size": batch, "draft_length": 4, "observers": [reading]}
            pipe = Pipeline(target, draft, accept="greedy", generation_config=None, **how)
            found = [one.token_ids for one in sorted(pipe.decode(asked), key=lambda one: one.index)]
            expected = expected or found
            if found != expected:
                raise SystemExit(f"{name}: other tokens than with {STORES[0]}")
        click.echo(f"{name:<16}{reading.seconds:>9.2f}{pipe.report.prefix_hit_tokens:>16,}")


if __name__ == "__main__":
    main()
