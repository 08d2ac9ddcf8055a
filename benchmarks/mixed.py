"""Prefill in mixed batches (``mixed=on``) and between the rounds of others: the time between two tokens, and tokens per second.

    python benchmarks/mixed.py [--pair embedded|cpu] [--piece 128] [--long 1024] [--rounds 5] [--plain] [--output FILE.json]

All rows but one decode short prompts to the end; the last one reads one long prompt after the other, each of which gains a few
tokens. Both ways take turns, and their tokens have to be the same. Figures are of the rows that decode, in processor time of one
thread on a CPU: the gap between two rounds in which they gain tokens, while a long prompt is read.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from grow import load_pair
from rich.console import Console
from rich.table import Table

from specframe import Pipeline
from specframe.contracts.requests import Request
from specframe.engine.engine_clock import HandClock
from specframe.engine.local_engine import LocalEngine
from specframe.models.loading import pick_device, pick_dtype

WAYS = ("off", "on")
SHORT, AFTER = 32, 8
"""Tokens of a prompt of the rows that decode, and those that a long prompt gains."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="embedded", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--rows", default=8, show_default=True)
@click.option("--piece", default=128, show_default=True)
@click.option("--long", "length", default=1024, show_default=True, help="Tokens of a long prompt.")
@click.option("--count", default=3, show_default=True, help="Long prompts.")
@click.option("--new", default=96, show_default=True, help="Tokens that the other rows gain.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--plain", is_flag=True, help="Without a draft model.")
@click.option("--output", default=None, help="Write the figures here as JSON.")
def main(
    pair: str,
    device: str,
    dtype: str,
    rows: int,
    piece: int,
    length: int,
    count: int,
    new: int,
    rounds: int,
    plain: bool,
    output: str | None,
) -> None:
    """Time both ways in turn and print a table."""
    on = pick_device(device)
    if on.type == "cpu":
        torch.set_num_threads(1)
    target, draft, tokenizer = load_pair(pair, on, pick_dtype(dtype, on))
    asked = requests(int(target.config.vocab_size), rows, length, count, new)
    pipes = {
        way: pipeline(target, None if plain else draft, tokenizer, rows, f"piece={piece},mixed={way}") for way in WAYS
    }
    found: dict[str, list[tuple[list[float], float]]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        tokens = {}
        for way, pipe in pipes.items():
            tokens[way], *figures = decoded(pipe, asked, on)
            if number:  # the first warms up
                found[way].append((figures[0], figures[1]))
        assert tokens["on"] == tokens["off"], "the tokens are not the same"
    title = f"{pair}, rows {rows}, piece {piece}, prompts of {length} tokens, {'plain' if plain else 'K 4'}, {on}"
    show(found, title, sum(one.max_new_tokens for one in asked), output)


def requests(vocabulary: int, rows: int, length: int, count: int, new: int) -> list[Request]:
    """Return short prompts for all rows but one, and long ones that follow each other in the last."""
    made = np.random.default_rng(0).integers(10, vocabulary, (rows - 1 + count, length)).tolist()
    short = [Request(index, ids[:SHORT], new) for index, ids in enumerate(made[: rows - 1])]
    return [*short, *(Request(rows - 1 + place, ids, AFTER) for place, ids in enumerate(made[rows - 1 :]))]


def pipeline(target: Any, draft: Any, tokenizer: Any, rows: int, options: str) -> Pipeline:
    """Return a pipeline that schedules in one of the ways."""
    drafter = {"drafter": "none"} if draft is None else {"drafter": draft, "draft_length": 4}
    return Pipeline(
        target, tokenizer=tokenizer, align="ragged", batch_size=rows, schedule=f"continuous,{options}", **drafter
    )


def decoded(pipe: Pipeline, asked: list[Request], on: torch.device) -> tuple[dict[int, list[int]], list[float], float]:
    """Return the tokens, the gaps between rounds of rows that decode while a prompt is read, and the time of all."""
    engine = LocalEngine(pipe.recipe, pipe.parts, (), HandClock(), pipe.executor)
    first = [one for one in asked if len(one.prompt_ids) == SHORT]
    for request in first:
        engine.add(request)
    engine.make_room(max(len(one.prompt_ids) + one.max_new_tokens for one in asked))
    tokens: dict[int, list[int]] = {}
    engine.step()  # the short prompts
    for request in asked[len(first) :]:
        engine.add(request)
    gaps, start = [], now(on)
    last = start
    while not engine.idle:
        report = engine.step()
        if report is None:
            continue
        tokens |= {one.request.index: one.token_ids for one in report.finished}
        if not report.prefill and 0 in {one.request.index for one in report.sequences}:
            gaps.append(now(on) - last)
            last = now(on)
    return tokens, gaps, now(on) - start


def now(device: torch.device) -> float:
    """Return the seconds of a clock: of this process on a CPU, of the wall elsewhere, once the device is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def show(found: dict[str, list[tuple[list[float], float]]], title: str, tokens: int, output: str | None) -> None:
    """Print the medians over rounds of percentiles of the gaps, and of tokens per second."""
    table, figures = Table("mixed", "gap P50 ms", "P90", "P99", "longest", "tokens/s", title=title), []
    for way, runs in found.items():
        gaps = [1e3 * np.percentile(gaps, [50, 90, 99, 100]) for gaps, _ in runs]
        medians = [round(float(one), 2) for one in np.median(gaps, axis=0)]
        rate = round(tokens / statistics.median(seconds for _, seconds in runs), 1)
        figures.append(
            {"mixed": way, "gap_ms": dict(zip(("p50", "p90", "p99", "max"), medians, strict=True)), "rate": rate}
        )
        table.add_row(way, *map(str, medians), str(rate))
    if output:
        Path(output).write_text(json.dumps({"title": title, "figures": figures}, indent=1) + "\n", encoding="utf-8")
    Console(width=132).print(table)


if __name__ == "__main__":
    main()
