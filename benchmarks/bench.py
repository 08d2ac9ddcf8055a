"""Tokens per second of specframe's schemes and transformers' own decoding, interleaved in one run.

    python benchmarks/bench.py [--pair embedded|small|cpu|qwen3-8b|vicuna-7b|glm4-9b] [--device cpu|cuda] [--dtype ...] [--quick]

Every cell, a scheme at a batch size, runs once per round, in turn, so that a drift of the machine hits all alike. Medians over
the rounds are reported, and ratios are medians of the ratios within a round. A cell decodes as many prompts as ``--waves``
batches hold, at least ``--least``. Every scheme's tokens are compared with the reference decoder's. Works in a checkout that is not
installed, without a network. The result is written as JSON.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from contenders import Models, contenders, held_out_prompts
from cost import queue_memory
from exactness import Judge
from grow import PAIRS, load_pair
from measure import Cell, Plan, healthy, measure, summary
from rich.console import Console
from rich.table import Table
from roofline import copy_bandwidth
from specframe_std.prompts.files import from_file

from specframe.models import loading

RESULTS = Path(__file__).parent / "results"
COLUMNS = {
    "tokens/s": "tokens_per_second",
    "to plain": "to_plain",
    "to assisted": "to_assisted",
    "to ragged": "to_draft_model",
    "to batch 1": "to_batch_1",
    "acceptance": "mean_acceptance_length",
    "realign": "realign_share",
    "own": "own_share",
    "roofline": "roofline",
    "exact": "exactness",
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SHARES = {"realign_share", "own_share", "roofline"}


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", type=click.Choice(list(PAIRS)), default="embedded", show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option(
    "--batches", default=None, help="Batch sizes, in order of importance.  [default: 8,1,32,4,16,2; CUDA: 64 too]"
)
@click.option("--draft-length", default=None, type=int, help="[default: 4; CUDA: 5]")
@click.option("--new", default=48, show_default=True, help="New tokens per prompt.")
@click.option("--longest", default=128, show_default=True, help="Tokens of the longest prompt.")
@click.option("--prompts", "file", default=None, help="A prompt file; default: held-out library source.")
@click.option("--waves", default=2, show_default=True, help="Batches a cell decodes.")
@click.option("--least", default=16, show_default=True, help="Prompts a cell decodes at least.")
@click.option(
    "--references", default=None, type=int, help="Prompts compared with the reference decoder.  [default: all]"
)
@click.option("--rounds", default=3, show_default=True, help="Timed rounds at most.")
@click.option("--budget", default=3600.0, show_default=True, help="Seconds that everything may take.")
@click.option(
    "--clock",
    type=click.Choice(list(CLOCKS)),
    default="wall",
    show_default=True,
    help="What seconds are; cpu: this process's own processor time, with one thread, for a machine that others use too.",
)
@click.option("--threads", default=None, type=int, help="CPU threads.  [default: all cores]")
@click.option(
    "--compiled",
    is_flag=False,
    flag_value="all",
    metavar="[BATCHES]",
    help="Plain and ragged with compiled layers, too, at these batch sizes, or all; on a CPU the first round compiles them.",
)
@click.option(
    "--drafter", "drafters", multiple=True, help="A further drafter for the target, under ragged, such as tiny-eagle3."
)
@click.option("--without", multiple=True, help="A scheme to leave out.")
@click.option("--quick", is_flag=True, help="Batches 8 and 1, half the prompts and tokens, two rounds.")
@click.option("--output", default=None, help="Where the JSON goes.  [default: benchmarks/results/]")
def main(**options: Any) -> None:
    """Run the benchmark and print its table."""
    started = time.perf_counter()
    device = loading.pick_device(options["device"])
    dtype = loading.pick_dtype(options["dtype"], device)
    settings = resolved(options, device)
    torch.set_num_threads(settings["threads"])
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    name = f"{options['pair']}-pair-{device.type}-{str(dtype).removeprefix('torch.')}.json"
    output = Path(options["output"] or RESULTS / name)
    output.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    with Console(stderr=True, width=120).status("loading") as status:
        for result in bench(settings, device, dtype, started + options["budget"], status.update):
            output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    show(result)
    print(f"written to {output}")
    sys.exit(any(cell.get("bugs") for cell in result["cells"]))


def resolved(options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the options with what depends on the device and on ``--quick``."""
    settings = dict(options)
    cuda = device.type == "cuda"
    settings["threads"] = options["threads"] or (1 if options["clock"] == "cpu" else os.cpu_count() or 1)
    settings["draft_length"] = options["draft_length"] or (5 if cuda else 4)
    batches = options["batches"] or ("8,1" if options["quick"] else "8,1,32,4,16,2" + (",64" if cuda else ""))
    settings["batches"] = [int(batch) for batch in batches.split(",")]
    compiled = options["compiled"] or ""
    settings["compiled"] = (
        settings["batches"] if compiled == "all" else [int(one) for one in compiled.split(",") if one]
    )
    if options["quick"]:
        settings |= {
            "least": min(options["least"], 8),
            "new": min(options["new"], 24),
            "rounds": min(options["rounds"], 2),
        }
    return settings


def bench(
    settings: dict[str, Any], device: torch.device, dtype: torch.dtype, deadline: float, progress: Any
) -> Iterator[dict[str, Any]]:
    """Measure, and yield everything that goes into the JSON: before tokens are compared, and after."""
    started = time.perf_counter()
    target, draft, tokenizer = load_pair(settings["pair"], device, dtype)
    models = Models(target, draft, tokenizer, loading.stop_token_ids(target, tokenizer))
    counts = {batch: max(settings["least"], settings["waves"] * batch) for batch in settings["batches"]}
    prompts = read_prompts(settings, tokenizer, max(counts.values()))
    cells = [
        Cell(contender, counts[batch])
        for batch in settings["batches"]
        for contender in contenders(
            models, batch, settings["draft_length"], batch in settings["compiled"], settings.get("drafters", ())
        )
        if contender.name not in settings["without"]
    ]
    bandwidth = copy_bandwidth(device)
    progress("reference decoder")
    judge = Judge(models, prompts[: settings["references"]], settings["new"])
    measured = deadline - 0.1 * (deadline - time.perf_counter())  # the rest is for weighing what differs
    clock = CLOCKS[settings["clock"]]
    measure(cells, Plan(models, prompts, settings["new"], settings["rounds"], bandwidth, measured, clock, progress))
    cells.sort(key=lambda cell: cell.contender.batch)
    for cell in cells:
        cell.release()
    result = {
        "command": shlex.join(["python", "benchmarks/bench.py", *without_output(sys.argv[1:])]),
        **surroundings(device, dtype),
        "settings": {name: value for name, value in settings.items() if name != "output"},
        "parameters": {role: model.num_parameters() for role, model in (("target", target), ("draft", draft))},
        "copy_bytes_per_second": round(bandwidth),
        "cells": list(summary(cells, None, deadline)),
    }
    yield result
    if healthy(device):
        progress("comparing tokens")
        result |= {"cells": list(summary(cells, judge, deadline)), "queue": queue_memory(models, prompts[:16])}
    yield result | {"seconds": round(time.perf_counter() - started, 1)}


def read_prompts(settings: dict[str, Any], tokenizer: Any, count: int) -> list[list[int]]:
    """Return the prompts' ids: those of a file, over again where it has too few, or held-out source."""
    if settings["file"] is None:
        return held_out_prompts(tokenizer, count, settings["longest"])
    given = [tokenizer(prompt.text).input_ids[: settings["longest"]] for prompt in from_file(settings["file"])]
    return [given[number % len(given)] for number in range(count)]


def surroundings(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return what a figure depends on apart from the code."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device)
        if cuda
        else f"{platform.machine()}, {torch.get_num_threads()} thread(s)",
        "dtype": str(dtype).removeprefix("torch."),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def without_output(arguments: list[str]) -> list[str]:
    """Return a command's arguments without where its result goes."""
    place = arguments.index("--output") if "--output" in arguments else len(arguments)
    return arguments[:place] + arguments[place + 2 :]


def show(result: dict[str, Any]) -> None:
    """Print the table of one result."""
    title = f"{result['settings']['pair']} pair, {result['device']}, {result['dtype']}, K = {result['settings']['draft_length']}"
    columns = {name: key for name, key in COLUMNS.items() if name != "to ragged" or result["settings"].get("drafters")}
    table = Table("batch", "scheme", *columns, title=title)
    before = None
    for cell in result["cells"]:
        if before not in (None, cell["batch"]):
            table.add_section()
        before = cell["batch"]
        if cell["fault"] and "tokens_per_second" not in cell:
            table.add_row(str(cell["batch"]), cell["contender"], cell["fault"])
        else:
            table.add_row(
                str(cell["batch"]), cell["contender"], *(text(key, cell.get(key)) for key in columns.values())
            )
    Console(width=132 if len(columns) < len(COLUMNS) else 152).print(table)
    print(
        "to plain: transformers plain at the same batch; to assisted: transformers assisted, one by one; own: time outside of the "
        "models;\nroofline: bytes a round must move over the bandwidth of a copy, as a share of the time a round took"
    )


def text(key: str, value: Any) -> str:
    """Return a figure as the table shows it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:.1%}" if key in SHARES else f"{value:.2f}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    main()
