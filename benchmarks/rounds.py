"""What rounds cost in runs of one pipeline, one after the other: the first ones record and compile, the later ones do not.

    python benchmarks/rounds.py [--pair qwen3-8b] [--device cuda] [--dtype bfloat16] [--batches 8,1,32] [--lengths 0,3,goodput]
        [--layers eager,compiled] [--runs 3] [--new 64] [--budget 300] [--output FILE.json]

Prompts are held-out library source, two for each row. Each line is a run: tokens per second of the whole run, and the number of
rounds and their median and greatest milliseconds by rows and draft length, rounds that read prompts apart.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import collections
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from contenders import held_out_prompts
from grow import PAIRS, load_pair

from specframe import Pipeline
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.models.loading import pick_device, pick_dtype


class Rounds(Observer):
    """The milliseconds of each round, by its rows and the length of its draft."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was noted; the next round begins now."""
        self._last = time.perf_counter()
        self._found: dict[str, list[float]] = collections.defaultdict(list)

    def round(self, report: RoundReport) -> None:
        """Note the time since the round before: the round's one wait, for its acceptance result, is over."""
        now = time.perf_counter()
        rows = f"{len(report.sequences)} rows, "
        self._found[rows + ("prompts" if report.prefill else f"K = {report.draft.depth}")].append(
            1e3 * (now - self._last)
        )
        self._last = now

    @property
    def by_shape(self) -> dict[str, list[float]]:
        """Number, median and greatest."""
        return {
            name: [len(spent), round(statistics.median(spent), 2), round(max(spent), 2)]
            for name, spent in sorted(self._found.items())
        }


def measured(pipe: Pipeline, watch: Rounds, prompts: list[list[int]], new: int, runs: int) -> Iterator[dict[str, Any]]:
    """Yield a line for each run of a pipeline."""
    for number in range(1, runs + 1):
        watch.begin()
        started = time.perf_counter()
        count = sum(len(one.token_ids) for one in pipe.generate(prompts, new))
        seconds = time.perf_counter() - started
        yield {
            "run": number,
            "seconds": round(seconds, 2),
            "tokens_per_second": round(count / seconds, 1),
            "acceptance_rate": round(pipe.report.draft_acceptance_rate, 3),
            "rounds": watch.by_shape,
        }


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="qwen3-8b", show_default=True, type=click.Choice([*PAIRS]))
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--batches", default="8,1,32", show_default=True)
@click.option(
    "--lengths", default="0,3,goodput", show_default=True, help="Draft lengths and policies; 0 is plain decoding."
)
@click.option("--layers", default="eager,compiled", show_default=True)
@click.option("--runs", default=3, show_default=True)
@click.option("--new", default=64, show_default=True, help="New tokens per prompt.")
@click.option("--budget", default=300.0, show_default=True, help="Seconds; pipelines not reached are left out.")
@click.option("--output", default=None, help="Write the lines here as JSON.")
def main(
    pair: str,
    device: str,
    dtype: str,
    batches: str,
    lengths: str,
    layers: str,
    runs: int,
    new: int,
    budget: float,
    output: str | None,
) -> None:
    """Time every pipeline; exit with 1 when one failed."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    deadline, on = time.perf_counter() + budget, pick_device(device)
    target, draft, tokenizer = load_pair(pair, on, pick_dtype(dtype, on))
    found: list[dict[str, Any]] = []
    for batch, how, length in itertools.product(map(int, batches.split(",")), layers.split(","), lengths.split(",")):
        if time.perf_counter() > deadline:
            break
        watch = Rounds()
        drafting: dict[str, Any] = {"drafter": None} if length == "0" else {"drafter": draft, "draft_length": length}
        cell = {"pair": pair, "device": on.type, "batch": batch, "length": length, "layers": how}
        try:
            pipe = Pipeline(target, batch_size=batch, layers=how, observers=[watch], generation_config=None, **drafting)
            for line in measured(pipe, watch, held_out_prompts(tokenizer, 2 * batch), new, runs):
                found.append({**cell, "fault": None, **line})
                print(json.dumps(found[-1]), flush=True)
        except Exception as fault:  # whatever a device or a strategy raises; the others go on
            found.append({**cell, "fault": f"{type(fault).__name__}: {fault}".partition("\n")[0][:200]})
            print(json.dumps(found[-1]), flush=True)
        if output:  # after every pipeline: what is known stays known whatever happens next
            Path(output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(line["fault"] for line in found))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
