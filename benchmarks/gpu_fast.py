"""Where the time of a round goes on a GPU, in ten minutes: kernels, gaps between them, idle time, and what others could take.

    python benchmarks/gpu_fast.py [--budget 600] [--pair qwen3-8b] [--device cuda] [--sections forwards,rounds] [--small]
        [--output FILE.json]

1. *bandwidth* of reading and of copying; 2. *forwards* in graph replay, plain, verify and draft step: their time, their kernels and
what is left between these; 3. *rounds* of pipelines that are warm, and how long the device is idle in each; 4. *runs* of long
continuations, of whose drafts a given share is accepted; 5. *hybrid* rounds, of models most of whose layers keep a state;
6. *attention* and 7. *products* inside graphs that read more than the caches hold; 8. *exactness* in float32, and a second process
that finds what was compiled.

Each section has a share of the budget, and what it leaves is the next one's. A cell that does not fit into what is left is skipped,
and scheduled at the end where there is time. Cells are measured in a process of their own: one that crashes or loses the device is
a line, and the others go on in a new process. The JSON is whole after each cell. ``--small`` tries everything in a minute or two
with a small pair, on the simulated device of the test kit, or on the CPU by ``--device cpu``.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - first: child processes find the plugins of a checkout that is not installed

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import attrs
import click
from budgeted import Cell, Row, Worker, measured
from rich.console import Console
from rich.table import Table

SHARES = {
    "bandwidth": 40, "forwards": 150, "rounds": 120, "runs": 90, "hybrid": 50, "attention": 40, "products": 70, "exactness": 40,
}  # fmt: skip
"""Seconds of each section in a budget of 600, the most telling first."""
PRODUCTS = (
    "8B key 1024x4096", "8B query 4096x4096", "8B qkv 6144x4096", "8B gate 12288x4096", "8B down 4096x12288",
    "8B head 151936x4096", "0.6B qkv 4096x1024", "0.6B gate+up 6144x1024", "0.6B down 1024x3072",
)  # fmt: skip
"""Linear layers of Qwen3-8B and Qwen3-0.6B, outputs and inputs, merged ones among them."""
SCHEMES = ("plain", "K 5", "goodput", "eagle", "dflash")
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192)
"""Tokens of a product: up to 32 rows with 5 draft tokens each."""


def cells(small: bool = False) -> list[Cell]:
    """Return all cells in order; seconds are those of one H100 whose host is slow. Small ones are few, and quick."""
    batches, lives, rows = ((1, 3), (110,), (1, 8)) if small else ((1, 8, 32), (110, 512, 4096), ROWS)
    decoded = {"length": (0, 3, 5), "batch": batches}
    attended = {"live": lives, "fed": (1, 6), "batch": batches}
    found = [
        *grid("bandwidth", "bandwidth", 20),
        *grid("forwards", "forwards", 15, way=("eager",), batch=batches),  # graphs are captured
        *grid("forwards", "forwards", 30, way=("compiled", "traced"), batch=batches),
        *grid("rounds", "rounds", 6, way=("compiled",), rounds=("synchronous", "deferred"), **decoded),
        *grid("rounds", "rounds", 6, way=("eager",), rounds=("deferred",), **decoded),
        *grid("runs", "runs", 10, batch=batches, scheme=SCHEMES),
        *grid("hybrid", "hybrid", 6, graphs=("on", "off"), length=(0, 3), batch=batches[:2]),
        *grid("attention", "attention", 1.5, way=("decode", "packed", "masked"), **attended),
        *grid("attention", "attention", 6, way=("flex",), **attended),
        *grid("products", "products", 5, weight=PRODUCTS, rows=(rows,), triton=(False,)),
        *grid("products", "products", 30, weight=PRODUCTS, rows=((1, 8, 48),), triton=(True,)),
        *grid("exactness", "equal", 12, way=("eager", "compiled")),
        *grid("exactness", "equal", 25, fresh=True, way=("compiled",)),
    ]
    return [attrs.evolve(one, seconds=min(one.seconds, 1)) for one in found] if small else found


def grid(section: str, measure: str, seconds: float, *, fresh: bool = False, **axes: Collection[Any]) -> Iterator[Cell]:
    """Yield the cells of all combinations of values."""
    for values in itertools.product(*axes.values()):
        options = dict(zip(axes, values, strict=True))
        name = ", ".join(f"{axis} {value}" for axis, value in options.items() if not isinstance(value, tuple))
        yield Cell(section, name + fresh * ", a second process", measure, options, seconds, fresh)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--budget", default=600.0, show_default=True, help="Seconds for everything.")
@click.option("--pair", default=None, help="The models' shapes.  [default: qwen3-8b; small with --small]")
@click.option("--device", default=None, help="[default: auto; sim with --small]")
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--sections", default=",".join(SHARES), show_default=True, help="What is measured.")
@click.option("--small", is_flag=True, help="Try everything without a GPU.")
@click.option("--output", default=None, help="Where the JSON goes.  [default: benchmarks/results/]")
def main(
    budget: float, pair: str | None, device: str | None, dtype: str, sections: str, small: bool, output: str | None
) -> None:
    """Measure the cells, write them, and print a table for each section; exit with 1 when a cell failed."""
    shares = {name: share for name, share in SHARES.items() if name in sections.split(",")}
    if unknown := set(sections.split(",")) - set(shares):
        raise click.BadParameter(f"there is no section {min(unknown)!r}: expected {', '.join(SHARES)}")
    pair, device = pair or ("small" if small else "qwen3-8b"), device or ("sim" if small else "auto")
    path = Path(output or Path(__file__).resolve().parent / "results" / f"gpu-fast-{pair}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"pair": pair, "device": device, "dtype": dtype, "new": 32 if small else 256, "small": small}
    worker = Worker("gpu_cells", "GpuCells", settings)
    with tempfile.TemporaryDirectory() as caches:
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # all processes share what the first has compiled
            os.environ[name] = str(Path(caches) / name)
        try:
            asked = [one for one in cells(small) if one.section in shares]
            rows = measured(asked, shares, budget, worker.ask, lambda rows, last: written(path, settings, rows, last))
        finally:
            worker.close()
    show(rows)
    print(f"written to {path}")
    sys.exit(any(row["outcome"] == "failed" for row in rows))


def written(path: Path, settings: dict[str, Any], rows: list[Row], last: Row) -> None:
    """Write all rows, whole or not at all, and print the last one that came."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps({"settings": settings, "cells": rows}, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    told = last.get("reason") or "; ".join(
        ", ".join(f"{name} {text(value)}" for name, value in one.items() if name != "most") for one in last["figures"]
    )
    print(f"{last['section']}: {last['cell']}: {told}", flush=True)


def text(value: Any) -> str:
    """Return a figure as tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def show(rows: list[Row]) -> None:
    """Print a table for each section, and the cells that were not measured, those of one reason together."""
    console, reasons = Console(width=150), dict[str, list[str]]()
    for section, own in itertools.groupby(rows, key=lambda row: row["section"]):
        figures = []
        for row in own:
            figures += row.get("figures", [])
            if "reason" in row:
                reasons.setdefault(f"{row['outcome']}, {row['reason']}", []).append(f"{section} {row['cell']}")
        columns = [*dict.fromkeys(name for one in figures for name in one if name != "most")]
        table = Table(*columns, title=section)
        for one in figures:
            table.add_row(*(text(one.get(name)) for name in columns))
        console.print(table)
    for reason, named in reasons.items():
        console.print(f"{len(named)} {reason}: {'; '.join(named[:3])}{', ...' if len(named) > 3 else ''}")


if __name__ == "__main__":
    main()
