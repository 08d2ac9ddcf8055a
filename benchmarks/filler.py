"""Forwards without padding compared with forwards of the whole rectangle, by the share of padding.

    python benchmarks/padding.py [--pair embedded|cpu] [--kind prompts|drafts|both] [--rounds 7] [--output FILE.json]
    python benchmarks/padding.py --prompts questions.jsonl [--batches 8,32] [--new 128] [--rounds 3]

One row of each block has all its tokens; those of the others are as few as the share of padding asks for. A forward of each kind is
made in turn, and the figure is the ratio of the medians of their times, rectangle over row: above 1 leaving out padding is faster.
The cache is empty for prompts and has 200 tokens a row for drafts. On a CPU seconds are processor time of one thread.

With ``--prompts`` whole runs are timed: every fourth prompt of a file, of at most 600 tokens, decoded by ``ragged`` with drafts of
4 tokens, with all padding left out that pays and with none, in turn; the tokens have to be the same.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import numpy as np
import torch
from grow import load_pair
from rich.console import Console
from rich.table import Table
from specframe_std.kv.ragged_layout import RaggedLayout
from specframe_std.kv.slab import Slab

from specframe import Pipeline
from specframe.contracts.drafts import Block
from specframe.contracts.round import Batch
from specframe.engine import budgets
from specframe.model import padding_free
from specframe.model.runner import ModelRunner
from specframe.models.loading import pick_device, pick_dtype

PROMPTS = [(rows, width, 0) for rows in (2, 8, 32) for width in (16, 64, 256)]
DRAFTS = [(rows, width, 200) for rows in (2, 4, 8, 16, 32) for width in (5, 9)]
"""(rows, places per row, tokens cached in each)."""
LONGEST = 600
"""Tokens of a prompt that is decoded in whole runs, at most."""
PAYS, NEVER = padding_free.PADDING_FREE_PAYS, 2.0
"""Shares of padding from which it is left out: as the project has it, and one that no forward has."""
SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="embedded", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--rounds", default=7, show_default=True)
@click.option("--small", is_flag=True, help="One shape of each kind.")
@click.option("--kind", default="both", show_default=True, type=click.Choice(["prompts", "drafts", "both"]))
@click.option("--prompts", default=None, help="Time whole runs on the first turns of this file of questions.")
@click.option("--batches", default="8,32", show_default=True)
@click.option("--new", default=128, show_default=True)
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(
    pair: str,
    device: str,
    dtype: str,
    rounds: int,
    small: bool,
    kind: str,
    prompts: str | None,
    batches: str,
    new: int,
    output: str | None,
) -> None:
    """Time both kinds of forward on every shape, or whole runs with both, and print a table."""
    on = pick_device(device)
    if on.type == "cpu":
        torch.set_num_threads(1)
    if prompts is not None:
        models = load_pair(pair, on, pick_dtype(dtype, on))
        whole_runs(
            models, prompts_of(prompts, models[2]), [int(one) for one in batches.split(",")], new, rounds, output
        )
        return
    runner = ModelRunner(load_pair(pair, on, pick_dtype(dtype, on))[0], "target")
    padding_free.PADDING_FREE_PAYS, padding_free.LAYING_OUT = 0.0, 0
    figures, first, second = [], [PROMPTS[4]] if small else PROMPTS, [DRAFTS[4]] if small else DRAFTS
    for shape in {"prompts": first, "drafts": second, "both": [*first, *second]}[kind]:
        figures += timed(runner, shape, rounds)
        if output:  # after every shape: what is known stays known whatever happens next
            Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    show(figures, f"{pair}, {runner.dtype}, {on}")


def timed(runner: ModelRunner, shape: tuple[int, int, int], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the ratio for every share of padding that the shape can have."""
    rows, width, cached = shape
    keep = 1 if not cached else width
    store = Slab().open(runner.kv_shapes, rows, cached + width, runner.device)
    layout = RaggedLayout(store, rows, cached + width)
    for share in SHARES:
        counts = counted(rows, width, share)
        if (filler := 1 - counts.sum() / (rows * width)) < share / 2:
            continue
        lengths = counts if not cached else np.full(rows, cached + 1)
        batch = batch_of(lengths, cached + width, runner.device)
        block = Block(batch.last_tokens(width), -width) if not cached else Block(batch.tokens_BS[:, :width], -1)
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds + 1):
            for laid in (True, False):
                fed = attrs.evolve(block, counts=counts) if laid else block
                placement = layout.place(batch, fed)
                start = now(runner.device)
                runner.forward(fed, placement, store, keep=keep)
                if number:  # the first warms up
                    times[laid].append(now(runner.device) - start)
        row, rectangle = (statistics.median(times[laid]) for laid in (True, False))
        yield {
            "rows": rows,
            "places": width,
            "cached": cached,
            "filler": round(float(filler), 3),
            "rectangle_ms": round(1e3 * rectangle, 3),
            "row_ms": round(1e3 * row, 3),
            "ratio": round(rectangle / row, 3),
        }


def prompts_of(file: str, tokenizer: Any) -> list[list[int]]:
    """Return the ids of every fourth question's first turn, of at most 600 tokens."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()[::4]
    found = [tokenizer(json.loads(line)["turns"][0]).input_ids for line in lines]
    return [ids for ids in found if 0 < len(ids) <= LONGEST]


def whole_runs(
    models: Any, prompts: list[list[int]], batches: list[int], new: int, rounds: int, output: str | None
) -> None:
    """Print the ratio of the times of whole runs, without leaving out padding over with it, for each batch size."""
    table, figures = Table("batch", "prompts", "seconds with padding", "without", "ratio"), []
    for batch_size in batches:
        pipe = Pipeline(
            models[0], models[1], tokenizer=models[2], align="ragged", draft_length=4, batch_size=batch_size
        )
        times: dict[float, list[float]] = {PAYS: [], NEVER: []}
        tokens: dict[float, list[list[int]]] = {}
        for _ in range(rounds):
            for pays in times:
                padding_free.PADDING_FREE_PAYS = budgets.PADDING_FREE_PAYS = pays
                start = now(pipe.parts.runner.device)
                tokens[pays] = [one.token_ids for one in pipe.generate(prompts, new)]
                times[pays].append(now(pipe.parts.runner.device) - start)
        assert tokens[PAYS] == tokens[NEVER], "the tokens are not the same"
        without, within = (statistics.median(times[pays]) for pays in (PAYS, NEVER))
        ratio = statistics.median(b / a for a, b in zip(times[PAYS], times[NEVER], strict=True))
        figures.append({"batch": batch_size, "prompts": len(prompts), "new": new, "ratio": round(ratio, 3)})
        figures[-1] |= {"seconds_with_filler": round(within, 2), "seconds_without": round(without, 2)}
        table.add_row(str(batch_size), str(len(prompts)), f"{within:.1f}", f"{without:.1f}", f"{ratio:.2f}")
    if output:
        Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    Console(width=132).print(table)


def counted(rows: int, width: int, share: float) -> np.ndarray:
    """Return counts of real tokens that leave about this share of padding; the first row has none."""
    missing = round(share * rows * width)
    counts = np.full(rows, width)
    spread = np.linspace(0, 1, rows)
    if spread.sum():
        counts -= np.minimum((spread / spread.sum() * missing).round().astype(int), width - 1)
    return counts


def batch_of(lengths: np.ndarray, slots: int, device: torch.device) -> Batch:
    """Return rows of random tokens."""
    tokens_BS = torch.randint(3, 100, (len(lengths), slots), device=device)
    lengths_B = torch.from_numpy(lengths).to(device)
    sequences: list[Any] = [None] * len(lengths)
    host = tokens_BS.cpu().numpy()
    return Batch(sequences, tokens_BS, lengths_B, host, lengths, lengths, lengths_B, prefill=True)


def now(device: torch.device) -> float:
    """Return the processor time of a CPU, or the time at which a device has done everything."""
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize(device)
    return time.perf_counter()


def show(figures: list[dict[str, Any]], title: str) -> None:
    """Print a line per shape and a column per share of padding."""
    table = Table("rows", "places", "cached", "ratio at padding", title=title)
    for shape in dict.fromkeys((one["rows"], one["places"], one["cached"]) for one in figures):
        cells = [one for one in figures if (one["rows"], one["places"], one["cached"]) == shape]
        table.add_row(*map(str, shape), "  ".join(f"{one['filler']:.2f}: {one['ratio']:.2f}" for one in cells))
    Console(width=132).print(table)


if __name__ == "__main__":
    main()
