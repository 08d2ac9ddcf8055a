"""What draft lengths of rows' own can gain at most: a policy that knows beforehand which prompts the target copies.

    python benchmarks/told_rows.py [--pair embedded|cpu] [--batches 4,8] [--drafter model|prompt-lookup|suffix] [--rounds 5]

Half of the prompts are files that the target goes on to copy, half are texts without a repetition of their own. With plain
decoding and fixed lengths there are *M/N*: M tokens for each row that copies, N for each of the others, in every round. No policy
that learns which rows copy can do better than the best of these, but for changes within a row. All decode the prompts side by side,
whichever has the fewest tokens next. Figures are medians over repeats of tokens per second, as ratios to plain decoding of the same
repeat, by wall-clock time.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
from pathlib import Path
from typing import Any

import attrs
import click
import numpy as np
import torch
import transformers
from copying import workloads
from grow import PAIRS, load_pair
from side_by_side import side_by_side

from specframe import Pipeline
from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.round import Batch
from specframe.model.run import Run


class Told:
    """A number of tokens for each row whose prompt is copied, and one for each of the others."""

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, copied: set[tuple[int, ...]], more: int, less: int) -> None:
        self._copied, self._more, self._less = copied, more, less
        self.maximum = Budget(max(more, less))

    def start(self, run: Run) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return each row's length."""
        copies = [tuple(sequence.request.prompt_ids) in self._copied for sequence in batch.sequences]
        depths_B = np.where(copies, self._more, self._less)
        return Budget(int(depths_B.max()), depths_B=depths_B)

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""


def contender(target: Any, by: Any, batch: int, name: str, copied: set[tuple[int, ...]]) -> Pipeline:
    """Return the pipeline of a name: "plain", a fixed length, or lengths by row."""
    how: dict[str, Any] = {"drafter": None if name == "plain" else by}
    if name != "plain" and "/" not in name:
        how["draft_length"] = name
    pipe = Pipeline(target, batch_size=batch, generation_config=None, **how)
    if "/" in name:
        policy = Told(copied, *map(int, name.split("/")))
        pipe.parts.composition = attrs.evolve(pipe.composition, policy=policy)
    return pipe


def measured(pipes: dict[str, Pipeline], prompts: list[list[int]], new: int, rounds: int) -> dict[str, Any]:
    """Return each contender's speed relative to plain decoding."""
    ratios: dict[str, list[float]] = {name: [] for name in pipes}
    for number in range(rounds + 1):  # the first one warms up, by a few prompts
        these = prompts if number else prompts[: len(prompts) // 4]
        decoded = side_by_side(pipes, these, new)
        for name, one in decoded.items() if number else ():
            ratios[name].append(one.rate / decoded["plain"].rate)
    median = {name: statistics.median(found) for name, found in ratios.items()}
    fixed, told = (max((one for one in median if ("/" in one) == by_row), key=median.__getitem__) for by_row in (0, 1))
    told_to_fixed = statistics.median(one / of for one, of in zip(ratios[told], ratios[fixed], strict=True))
    return {
        "to_plain": {name: [round(one, 3) for one in (median[name], min(of), max(of))] for name, of in ratios.items()},
        "best_fixed": fixed,
        "best_told": told,
        "told_to_fixed": round(told_to_fixed, 3),
    }


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", type=click.Choice(list(PAIRS)), default="embedded", show_default=True)
@click.option("--batches", default="4,8", show_default=True)
@click.option("--drafter", default="model", show_default=True)
@click.option("--lengths", default="1,2,3,4,6", show_default=True, help="Fixed draft lengths.")
@click.option(
    "--told", default="8/0,8/1,8/2,6/1,4/0,4/1", show_default=True, help="Lengths of rows that copy, and of others."
)
@click.option("--count", default=24, show_default=True, help="Prompts; at least twice the batch.")
@click.option("--new", default=48, show_default=True, help="New tokens per prompt.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(
    pair: str,
    batches: str,
    drafter: str,
    lengths: str,
    told: str,
    count: int,
    new: int,
    rounds: int,
    output: str | None,
) -> None:
    """Measure every batch size and print a line for each."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    target, draft, tokenizer = load_pair(pair, torch.device("cpu"), torch.float32)
    mixed = workloads(tokenizer)["mixed"]
    copied, found = set(map(tuple, mixed[::2])), []
    for batch in map(int, batches.split(",")):
        prompts = [mixed[number % len(mixed)] for number in range(max(count, 2 * batch))]
        names = ["plain", *lengths.split(","), *told.split(",")]
        by = draft if drafter == "model" else drafter
        pipes = {name: contender(target, by, batch, name, copied) for name in names}
        found.append({"pair": pair, "drafter": drafter, "batch": batch, **measured(pipes, prompts, new, rounds)})
        print(json.dumps(found[-1]), flush=True)
        if output:
            Path(output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
