"""What `specframe predict` says of rounds, and what they take.

    python benchmarks/predicted.py [--pair embedded|cpu] [--batches 1,2,4,8,16,32] [--lengths 0,1,2,5] [--rounds 3] [--new 16]
        [--output FILE.json]

The device's profile is measured first, by the same process and thread. Then every batch size and draft length decodes held-out
prompts, in turn, round after round. A round's seconds are the median over the decoding rounds in which all rows drafted as much, by
the wall clock; the least is printed with it, since a profile is of the fastest products. The prediction is that for the mean number
of tokens in the cache. Speeds are those of draft lengths relative to plain decoding, at the acceptance length that was measured;
end effects (prompts, the last rows of a run) are in neither.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from contenders import held_out_prompts
from grow import PAIRS, load_pair
from rich.console import Console
from rich.table import Table
from specframe_lab.prediction.model_costs import costs_of
from specframe_lab.prediction.predict import predictions
from specframe_lab.prediction.profiles import measured

from specframe import Pipeline
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer

LONGEST = 64
"""Tokens of a prompt at most: what is measured are rounds that decode."""


class Rounds(Observer):
    """The seconds of rounds that decode with a number of rows and a draft length."""

    def __init__(self, rows: int, length: int) -> None:
        self._rows, self._length, self._last = rows, length, 0.0
        self.seconds: list[float] = []
        self.contexts: list[float] = []
        self.gained = self.steps = 0

    def round(self, report: RoundReport) -> None:
        """Take a round in which all rows draft as much as they may, if it follows another one that decoded."""
        now, decoded = time.perf_counter(), not report.prefill
        full = len(report.sequences) == self._rows and (report.drafted == self._length).all()
        if decoded and full and self._last:
            self.seconds.append(now - self._last)
            self.contexts.append(float(report.lengths.mean()))
            self.gained, self.steps = self.gained + int(report.gained.sum()), self.steps + self._rows
        self._last = time.perf_counter() if decoded else 0.0


class Cell:
    """Rounds of a batch size and a draft length."""

    def __init__(self, target: Any, draft: Any, tokenizer: Any, rows: int, length: int) -> None:
        self.rows, self.length, self.watch = rows, length, Rounds(rows, length)
        how = {"drafter": draft, "draft_length": str(length)} if length else {"drafter": None}
        self._pipe = Pipeline(
            target, tokenizer=tokenizer, batch_size=rows, generation_config=None, observers=[self.watch], **how
        )

    def run(self, prompts: list[list[int]], new: int) -> None:
        """Decode as many prompts as the batch has rows, once."""
        list(self._pipe.generate(prompts[: self.rows], new))

    def forget(self) -> None:
        """Leave out what was seen so far."""
        self.watch.seconds.clear()
        self.watch.contexts.clear()
        self.watch.gained = self.watch.steps = 0


def compared(cells: list[Cell], target: Any, draft: Any, profile: Any) -> list[dict[str, Any]]:
    """Return each cell's measured and predicted milliseconds of a round, and speeds relative to plain decoding."""
    costs = [costs_of(model.config, torch.float32) for model in (target, draft)]
    plain, found = {one.rows: one for one in cells if not one.length}, []
    for cell in cells:
        context = round(statistics.mean(cell.watch.contexts))
        told = predictions(
            *costs, profile, batch_sizes=[cell.rows], draft_lengths=[cell.length or 1], context=context, acceptance=None
        )
        by_length = {one.draft_length: one for one in told}
        seconds, gained = statistics.median(cell.watch.seconds), cell.watch.gained / cell.watch.steps
        expected = by_length[cell.length].round_seconds
        speed = gained * statistics.median(plain[cell.rows].watch.seconds) / seconds
        found.append(
            {
                "batch": cell.rows,
                "length": cell.length,
                "rounds": len(cell.watch.seconds),
                "context": context,
                "measured_ms": round(1000 * seconds, 2),
                "predicted_ms": round(1000 * expected, 2),
                "predicted_to_measured": round(expected / seconds, 3),
                "predicted_to_least": round(expected / min(cell.watch.seconds), 3),
                "acceptance_length": round(gained, 3),
                "speed": round(speed, 3),
                "predicted_speed": round(gained * by_length[0].round_seconds / expected, 3),
            }
        )
    return found


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", type=click.Choice(list(PAIRS)), default="cpu", show_default=True)
@click.option("--batches", default="1,2,4,8,16,32", show_default=True)
@click.option(
    "--lengths", default="0,1,2,5", show_default=True, help="Draft lengths; 0, plain decoding, is among them."
)
@click.option("--rounds", default=3, show_default=True)
@click.option("--new", default=16, show_default=True, help="New tokens per prompt.")
@click.option("--output", default=None, help="Write the figures here as JSON.")
def main(pair: str, batches: str, lengths: str, rounds: int, new: int, output: str | None) -> None:
    """Measure everything, and print a table."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    profile = measured(torch.device("cpu"), torch.float32)
    target, draft, tokenizer = load_pair(pair, torch.device("cpu"), torch.float32)
    sizes, tried = [*map(int, batches.split(","))], sorted({0, *map(int, lengths.split(","))})
    prompts = held_out_prompts(tokenizer, max(sizes), LONGEST)
    found = []
    for rows in sizes:
        cells = [Cell(target, draft, tokenizer, rows, length) for length in tried]
        for number in range(rounds + 1):
            for cell in cells:
                cell.run(prompts, new)
                if not number:  # the first warms up
                    cell.forget()
        found += compared(cells, target, draft, profile)
        if output:
            Path(output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    table = Table(*next(iter(found)), title=pair)
    for line in found:
        table.add_row(*map(str, line.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
