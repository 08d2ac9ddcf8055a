"""Worker processes and one process with as many threads, by the number of cores.

    python benchmarks/workers.py [--pair embedded|cpu] [--prompts questions.jsonl] [--count 120] [--cores 1,2,4] [--rounds 3]

The same prompts are decoded by ``local``, by ``workers,count=2`` and by ``workers,count=auto``, in turn, on the first cores of
this machine; numbers of cores that it does not have are left out. The tokens have to be the same. Tokens per second are by the
wall clock, as medians over the rounds; before them every executor decodes once, which is the time with the beginning of workers.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import click
import torch
from contenders import held_out_prompts
from grow import load_pair
from rich.console import Console
from rich.table import Table

from specframe import Pipeline

EXECUTORS = ("local", "workers,count=2", "workers,count=auto")
LONGEST = 600
"""Tokens of a prompt at most."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="embedded", show_default=True)
@click.option("--prompts", default=None, help="First turns of this file of questions; without it, held-out code.")
@click.option("--count", default=120, show_default=True, help="Prompts.")
@click.option("--cores", default="1,2,4", show_default=True)
@click.option("--batch-size", default=8, show_default=True)
@click.option("--new", default=64, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(
    pair: str, prompts: str | None, count: int, cores: str, batch_size: int, new: int, rounds: int, output: str | None
) -> None:
    """Time every executor at every number of cores, and print a table."""
    target, draft, tokenizer = load_pair(pair, torch.device("cpu"), torch.float32)
    asked = questions(prompts, tokenizer) if prompts else held_out_prompts(tokenizer, count)
    there, rows = sorted(os.sched_getaffinity(0)), []
    for number in (int(one) for one in cores.split(",")):
        if number > len(there):
            continue
        os.sched_setaffinity(0, there[:number])
        torch.set_num_threads(number)
        pipes = {
            executor: Pipeline(target, draft, tokenizer=tokenizer, batch_size=batch_size, executor=executor)
            for executor in EXECUTORS
        }
        rows += timed(pipes, asked[:count], new, rounds, number)
        for pipe in pipes.values():
            getattr(pipe.executor, "dismiss", lambda: None)()
        if output:  # after every number: what is known stays known whatever happens next
            Path(output).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table = Table("cores", "executor", "tokens/s", "to local", "first run, seconds", title=f"{pair}, {count} prompts")
    for row in rows:
        table.add_row(
            *(str(row[name]) for name in ("cores", "executor", "tokens_per_second", "to_local", "first_seconds"))
        )
    Console(width=120).print(table)


def questions(file: str, tokenizer: Any) -> list[list[int]]:
    """Return the ids of the first turns of a file of questions, of at most 600 tokens."""
    found = [tokenizer(json.loads(line)["turns"][0]).input_ids for line in Path(file).read_text().splitlines()]
    return [ids for ids in found if 0 < len(ids) <= LONGEST]


def timed(
    pipes: dict[str, Pipeline], prompts: list[list[int]], new: int, rounds: int, cores: int
) -> list[dict[str, Any]]:
    """Return a row for each executor."""
    seconds: dict[str, list[float]] = {executor: [] for executor in pipes}
    tokens: dict[str, list[list[int]]] = {}
    for _ in range(rounds + 1):
        for executor, pipe in pipes.items():
            start = time.perf_counter()
            tokens[executor] = [one.token_ids for one in pipe.generate(prompts, new)]
            seconds[executor].append(time.perf_counter() - start)
    assert all(ids == tokens["local"] for ids in tokens.values()), "the tokens are not the same"
    total = sum(map(len, tokens["local"]))
    return [
        {
            "cores": cores,
            "executor": executor,
            "tokens_per_second": round(total / statistics.median(spent[1:])),
            "to_local": round(
                statistics.median(a / b for a, b in zip(seconds["local"][1:], spent[1:], strict=True)), 2
            ),
            "first_seconds": round(spent[0], 1),
        }
        for executor, spent in seconds.items()
    ]


if __name__ == "__main__":
    main()
