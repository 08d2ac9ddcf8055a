"""The speed of this checkout and another one, cell by cell: a change must not cost an existing path its speed.

    python benchmarks/versions.py OTHER_CHECKOUT [--pairs embedded,cpu] [--batches 1,8,32] [--rounds 5] [--processes 3]

Each checkout is served by a process of its own, with one thread, that keeps its models. The two processes decode the same
prompts in turn, never at once, and the tokens have to be the same. A cell's figures are ratios of medians, other checkout over
this one: above 1 this one is faster. Seconds are processor time, which another program on the machine changes by a fifth; cycles
are changed less, and the number of instructions is the same in every run. A machine without these counters has seconds alone.

Two things that differ between processes of one and the same checkout are taken out. The C library may return the memory of large
tensors to the system after each forward or may keep it, depending on what lies above them in its heap: a tenth of the time. It is
asked to keep it. What lies where in memory is drawn once per process: each cell is measured in several pairs of processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

SCHEMES: dict[str, dict[str, Any]] = {
    "plain": {"drafter": None},
    "ragged": {"align": "ragged"},
    "eqspec": {"align": "eqspec"},
    "exspec": {"align": "exspec"},
}
DRAFT_LENGTH = 4
"""Tokens drafted per round: a fixed number, so that both checkouts run the same forwards."""
MEASURES = ("seconds", "cycles", "instructions")
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
"""glibc keeps freed memory up to the first number of bytes, and takes blocks up to the second, the most it allows, from there."""


class Side:
    """One checkout's process."""

    def __init__(self, checkout: Path, pair: str) -> None:
        command = [sys.executable, __file__, "--serve", pair, str(checkout.resolve())]
        environment = os.environ | KEEPING
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, **cell: Any) -> dict[str, Any]:
        """Return the measures and the tokens of one cell."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(cell) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise click.ClickException(f"the process of a checkout ended with status {self._process.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(pair: str, checkout: Path) -> None:
    """Decode the cells that standard input asks for, with the packages of a checkout."""
    sys.path[:0] = [
        str(checkout),
        *map(str, sorted((checkout / "plugins").glob("specframe-*"))),
        str(checkout / "benchmarks"),
    ]
    import checkout as _found  # type: ignore[import-not-found]  # noqa: F401  # finds the plugins of a checkout that is not installed
    import torch
    import transformers
    from contenders import held_out_prompts
    from grow import load_pair

    from specframe import Pipeline

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    target, draft, tokenizer = load_pair(pair, torch.device("cpu"), torch.float32)
    pipes: dict[tuple[str, int], Any] = {}
    counters = counting()
    for line in sys.stdin:
        cell = json.loads(line)
        key = cell["scheme"], cell["batch"]
        if key not in pipes:
            how = {"drafter": draft, "draft_length": DRAFT_LENGTH} | SCHEMES[cell["scheme"]]
            pipes[key] = Pipeline(target, tokenizer=tokenizer, batch_size=cell["batch"], **how)
        prompts = held_out_prompts(tokenizer, cell["prompts"])
        before = {"seconds": time.process_time(), **counters()}
        tokens = [result.token_ids for result in pipes[key].generate(prompts, cell["new"])]
        after = {"seconds": time.process_time(), **counters()}
        print(json.dumps({"used": {what: after[what] - before[what] for what in after}, "tokens": tokens}), flush=True)


def counting() -> Callable[[], dict[str, int]]:
    """Return the function that reads the processor's counters; nothing is read where the machine has none."""
    from counters import Counters

    try:
        return Counters().read
    except OSError:
        return dict


@click.command(help=__doc__.partition("\n")[0])
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--pairs", default="embedded,cpu", show_default=True)
@click.option("--batches", default="1,8,32", show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Of each pair of processes, after one that warms up.")
@click.option("--processes", default=3, show_default=True, help="Pairs of processes.")
@click.option("--new", default=16, show_default=True, help="New tokens per prompt.")
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(other: Path, pairs: str, batches: str, rounds: int, processes: int, new: int, output: str | None) -> None:
    """Measure every cell and print a line for each."""
    checkouts, found = (other, Path(__file__).parent.parent), []
    for pair in pairs.split(","):
        cells = [
            {"scheme": scheme, "batch": batch, "prompts": max(2, batch), "new": new}
            for batch in map(int, batches.split(","))
            for scheme in SCHEMES
        ]
        used: list[list[Used]] = [[] for _ in cells]
        for _ in range(processes):
            sides = [Side(checkout, pair) for checkout in checkouts]
            for cell, mine in zip(cells, used, strict=True):
                mine += measured(sides, cell, rounds)
            for side in sides:
                side.close()
        for cell, mine in zip(cells, used, strict=True):
            found.append({"pair": pair, **cell, "used": mine, **ratios(mine)})
            told = "  ".join(f"{what} {found[-1][what]:.3f}" for what in MEASURES if what in found[-1])
            print(f"{pair:9} batch {cell['batch']:2} {cell['scheme']:7} {told}", flush=True)
    if output:
        Path(output).write_text(json.dumps(found, indent=1) + "\n")


Used = list[dict[str, float]]
"""The measures of one round, of the other checkout and of this one."""


def measured(sides: list[Side], cell: dict[str, Any], rounds: int) -> list[Used]:
    """Return what each round of one cell used, after a round that warms up."""
    used = []
    for number in range(rounds + 1):
        runs = [side.run(**cell) for side in sides]
        if runs[0]["tokens"] != runs[1]["tokens"]:
            raise click.ClickException(f"the two checkouts give other tokens in {cell}")
        if number:
            used.append([run["used"] for run in runs])
    return used


def ratios(used: list[Used]) -> dict[str, float]:
    """Return the ratio of the medians of every measure."""
    medians = [{what: statistics.median(one[side][what] for one in used) for what in used[0][side]} for side in (0, 1)]
    return {what: medians[0][what] / medians[1][what] for what in medians[0]}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
