"""What heads' drafts cost at published shapes: chains and trees of random heads on a grown target, at every batch size.

    python benchmarks/heads.py [--pair qwen3-8b] [--device cuda] [--dtype bfloat16]
        [--batches 1,8,64] [--draft-length 5]

The heads have the sizes that are published for the target and random weights: their drafts are rejected, so every round has the
same work. A round's time over that of plain decoding is the acceptance length from which on the head pays (*break-even*). Which
length a trained head reaches is not measured here.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from grow import PAIRS, load_pair
from random_heads import KINDS, save
from rich.console import Console
from rich.table import Table

from specframe import Pipeline
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.models.loading import pick_device, pick_dtype

DRAFTS = (
    "none", "eagle", "eagle,tree=dynamic,nodes=16", "eagle,tree=static,nodes=16", "dflash", "peagle", "dspark",
    "medusa,tree=chain", "medusa", "clover2", "clover2,branch=3/2/2", "mtp",
)  # fmt: skip
NEW, PROMPT = 24, 96
"""Tokens generated and read per row: enough rounds for a median, at a length at which the cache costs little."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="qwen3-8b", show_default=True, type=click.Choice([*PAIRS]))
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--batches", default="8,1,64,32", show_default=True, help="The most telling first.")
@click.option("--draft-length", default=5, show_default=True, help="Tokens of a chain, and the depth of a tree.")
@click.option("--budget", default=300.0, show_default=True, help="Seconds; cells not reached are left out.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(
    pair: str, device: str, dtype: str, batches: str, draft_length: int, budget: float, output: str | None
) -> None:
    """Time a round of every draft at every batch size and print a table; exit with 1 when one failed."""
    deadline, on = time.perf_counter() + budget, pick_device(device)
    target = load_pair(pair, on, pick_dtype(dtype, on))[0]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = functools.cache(lambda kind: save(kind, Path(name) / kind, target, draft_length))
        for row in timed(target, folder, [*map(int, batches.split(","))], draft_length, deadline):
            rows.append(row)
            if output:  # after every row: what is known stays known whatever happens next
                Path(output).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    show(rows, f"heads for {pair}, {target.dtype}, {on}, depth {draft_length}")
    sys.exit(any(row["fault"] for row in rows))


def timed(
    target: Any, folder: Callable[[str], str], batches: list[int], depth: int, deadline: float
) -> Iterator[dict[str, Any]]:
    """Yield a row per batch size and draft; the first draft of each is none. ``folder`` returns where a kind of head is saved."""
    for batch in batches:
        plain = None
        for draft in DRAFTS:
            if time.perf_counter() > deadline:
                return
            row: dict[str, Any] = {"batch": batch, "draft": draft, "fault": None}
            kind, _, options = draft.partition(",")
            try:
                place = [f"checkpoint={folder(kind)}"] if kind in KINDS else []
                drafter = ",".join(filter(None, [kind, *place, options]))
                spent = round_milliseconds(target, drafter, batch, depth)
            except Exception as fault:  # whatever a device or a strategy raises; the others go on
                yield row | {"fault": f"{type(fault).__name__}: {fault}".partition("\n")[0][:200]}
                continue
            plain = spent if draft == "none" else plain
            yield row | {"round_ms": spent, "break_even": plain and spent / plain}


class Rounds(Observer):
    """The time of every decoding round of the whole batch."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self._batch, self._device, self._last = batch, device, 0.0
        self.seconds: list[float] = []

    def round(self, report: RoundReport) -> None:
        """Note the time since the last round."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if not report.prefill and len(report.sequences) == self._batch:
            self.seconds.append(now - self._last)
        self._last = now


def round_milliseconds(target: Any, drafter: str, batch: int, depth: int) -> float:
    """Return the median time of a round, those left out in which shapes are first met."""
    watch = Rounds(batch, target.device)
    pipe = Pipeline(
        target, drafter=drafter, draft_length=depth, batch_size=batch, observers=[watch], generation_config=None
    )
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, 2000, (batch, PROMPT), generator=generator).tolist()
    list(pipe.generate(prompts, NEW))
    return 1e3 * statistics.median(watch.seconds[4:] or watch.seconds)


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print a line per batch size and draft."""
    table = Table("batch", "draft", "round, ms", "break-even", title=title)
    for row in rows:
        times = [row["fault"], ""] if row["fault"] else [f"{row['round_ms']:.2f}", f"{row['break_even'] or 0:.2f}"]
        table.add_row(str(row["batch"]), row["draft"], *times)
    Console(width=132).print(table)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
