"""What each way to attend costs: masked, variable-length, decode and flex, for rounds and for prompts, over short and long caches.

    python benchmarks/attention.py [--heads 32,8,128] [--dtype bfloat16] [--device cuda|cpu] [--small]

Rows are on average half as long as the cache has slots. *Prepare* is paid once per forward (the mask, or what takes its place),
*attend* once per layer. The first call of a shape, which compiles flex attention, is left out.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from specframe_std.attention import decode, varlen
from specframe_std.attention.flex import Flex, block_mask
from torch.utils.benchmark import Timer

from specframe.contracts.cache import DenseView, Placement
from specframe.model.attention.interface import attend
from specframe.model.attention.masks import masks
from specframe.model.decoder_layers import ints_and_sizes_left_open
from specframe.models.loading import pick_device, pick_dtype

WAYS = {"packed": varlen.Packed(), "decode": decode.Decode(), "flex": Flex()}
"""Backends that need no masks."""

SHAPES = (*((rows, 6, slots) for slots in (1024, 8192) for rows in (1, 8, 64)), (1, 4096, 8192), (8, 512, 8192))
SMALL = ((1, 4, 256), (3, 4, 256), (2, 64, 256))
"""(rows, tokens fed to each, slots)."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--heads", default="32,8,128", show_default=True, help="Query heads, key heads and head size.")
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--small", is_flag=True, help="Few tokens and slots.")
@click.option("--budget", default=120.0, show_default=True, help="Seconds; shapes not reached are left out.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(heads: str, device: str, dtype: str, small: bool, budget: float, output: str | None) -> None:
    """Time every way on every shape and print a table."""
    on = pick_device(device)
    precision = pick_dtype(dtype, on)
    deadline, rows = time.perf_counter() + budget, []
    for shape in SMALL if small else SHAPES:
        for row in timed(shape, tuple(map(int, heads.split(","))), on, precision, deadline):
            rows.append(row)
            if output:  # after every row: what is known stays known whatever happens next
                Path(output).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    show(rows, f"heads {heads}, {precision}, {on}")


@torch.inference_mode()
def timed(
    shape: tuple[int, int, int], heads: tuple[int, ...], device: torch.device, dtype: torch.dtype, deadline: float
) -> Iterator[dict[str, Any]]:
    """Yield a row per way."""
    rows, fed, slots = shape
    queries, keys, size = heads
    query = torch.randn(rows, queries, fed, size, device=device, dtype=dtype)
    key, value = (torch.randn(rows, slots, keys, size, device=device, dtype=dtype).transpose(1, 2) for _ in range(2))
    placement = half_full(rows, fed, slots, device)
    tried = {"packed": varlen.works, "decode": decode.works}
    working = [way for way, works in tried.items() if works(device, dtype, queries, keys, size)]
    for way in ("masked", *working, "flex"):
        if time.perf_counter() > deadline:
            return
        row: dict[str, Any] = {"rows": rows, "tokens": fed, "slots": slots, "way": way, "fault": None}
        try:
            with ints_and_sizes_left_open():
                prepare, attending = calls(way, query, key, value, placement)
                attending()
                yield row | {"prepare_ms": milliseconds(prepare), "attend_ms": milliseconds(attending)}
        except Exception as fault:  # whatever a kernel or a compiler raises; the others go on
            yield row | {"fault": f"{type(fault).__name__}: {fault}".partition("\n")[0][:200]}


def calls(
    way: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, placement: Placement
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return what is done once per forward, and once per layer."""
    if way == "masked":
        made, module = masks(placement, [None], query.dtype)[None], torch.nn.Module()
        return lambda: masks(placement, [None], query.dtype), lambda: attend(module, query, key, value, made)[0]
    plan = WAYS[way].plan(placement)
    assert plan is not None
    prepare = (lambda: block_mask(placement, None)) if way == "flex" else (lambda: WAYS[way].plan(placement))
    return prepare, lambda: plan.attend(query, DenseView(key, value), None, None)


def half_full(rows: int, fed: int, slots: int, device: torch.device) -> Placement:
    """Return rows of evenly spread lengths, half of the slots on average, whose last tokens are fed."""
    used_B = torch.linspace(slots / 4, 3 * slots / 4, rows, device=device).long().clamp(min=fed)
    return filled(used_B, fed, slots)


def filled(used_B: torch.Tensor, fed: int, slots: int) -> Placement:
    """Return rows of these lengths, whose last tokens are fed."""
    device = used_B.device
    index_BT = used_B[:, None] - fed + torch.arange(fed, device=device)
    return Placement(index_BT, index_BT, index_BT, torch.arange(slots, device=device)[None], in_order=True)


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the median time of a call, the device's work included."""
    return 1e3 * Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.1).median


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Print a line per shape and way."""
    table = Table("rows", "tokens", "slots", "way", "prepare, ms", "attend, ms", title=title)
    for row in rows:
        shape = [str(row[name]) for name in ("rows", "tokens", "slots")]
        times = [row["fault"], ""] if row["fault"] else [f"{row[name]:.3f}" for name in ("prepare_ms", "attend_ms")]
        table.add_row(*shape, row["way"], *times)
    Console(width=132).print(table)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
