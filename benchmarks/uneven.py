"""Runs whose rows draft unequally, with what rows are not to draft left out of the target's forwards and computed in vain.

    python benchmarks/uneven.py [--pair embedded|cpu] [--batches 2,8,32] [--rounds 5] [--new 48] [--output FILE.json]

Runs of both kinds are made in turn, over the same rows, with the same tokens. The figures are ratios of the medians of their times,
computed over left out: of verifying alone, and of whole runs. On a CPU seconds are processor time of one thread.
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
from filler import now
from grow import load_pair
from rich.console import Console
from rich.table import Table

from specframe import Pipeline
from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Request
from specframe.contracts.roles import Observer
from specframe.contracts.round import Batch
from specframe.model import padding_free
from specframe.models.loading import pick_device, pick_dtype

LENGTH = 5
"""Draft tokens of a row that drafts as much as it may."""
PROMPT = 24
"""Tokens of each prompt: all are equally long, so that reading them has no padding."""


class Stairs:
    """A policy under which rows draft from nothing to all, a step apart, each the next number in the next round."""

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    maximum = Budget(LENGTH)

    def start(self, run: Any) -> None:
        """Nothing to prepare."""

    def budget(self, batch: Batch) -> Budget:
        """Return the rows' budgets."""
        return Budget(LENGTH, depths_B=(np.arange(len(batch)) + batch.lengths) % (LENGTH + 1))

    def observe(self, report: RoundReport) -> None:
        """Nothing to learn."""


class Verifying(Observer):
    """Adds up the time in which the target verifies drafts."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.seconds, self._since = device, 0.0, 0.0

    def enter(self, stage: str) -> None:
        """Note when a stage begins."""
        if stage == "verify":
            self._since = now(self._device)

    def leave(self, stage: str) -> None:
        """Add the time of a stage."""
        if stage == "verify":
            self.seconds += now(self._device) - self._since


CELLS: dict[str, tuple[Any, float]] = {
    "all rows draft as much": (LENGTH, 1.0),
    "every other row drafts": (LENGTH, 0.5),
    "one row of four drafts": (LENGTH, 0.25),
    "rows draft from 0 to 5": (Stairs(), 1.0),
}
"""Policies, and the share of rows with speculation."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="embedded", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--batches", default="2,8,32", show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--new", default=48, show_default=True, help="Tokens of each row.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(pair: str, device: str, dtype: str, batches: str, rounds: int, new: int, output: str | None) -> None:
    """Time all cells and print a table."""
    on = pick_device(device)
    if on.type == "cpu":
        torch.set_num_threads(1)
    target, draft, _ = load_pair(pair, on, pick_dtype(dtype, on))
    figures = []
    for batch in map(int, batches.split(",")):
        for name, (policy, share) in CELLS.items():
            watch = Verifying(on)
            how = {"draft_length": policy, "batch_size": batch, "generation_config": None, "observers": [watch]}
            pipe = Pipeline(target, draft, accept="greedy", **how)
            figures.append({"batch": batch, "rows": name, **ratios(pipe, watch, asked(batch, share, new), rounds)})
            if output:  # after every cell: what is known stays known whatever happens next
                Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    show(figures, f"{pair}, {target.dtype}, {on}")


def asked(batch: int, share: float, new: int) -> list[Request]:
    """Return requests of random prompts, of which a share is speculated on."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 90, (batch, PROMPT), generator=generator).tolist()
    every = round(1 / share)
    made = [Request(index, prompt, new) for index, prompt in enumerate(prompts)]
    return [attrs.evolve(one, speculate=one.index % every == 0) for one in made]


def ratios(pipe: Pipeline, watch: Verifying, requests: list[Request], rounds: int) -> dict[str, float]:
    """Return the ratios of both kinds of runs, computed over left out, after looking that they have the same tokens."""
    pays, times, tokens = padding_free.PADDING_FREE_PAYS, {True: list[Any](), False: list[Any]()}, []
    for number in range(rounds + 1):
        for left_out in (True, False):
            padding_free.PADDING_FREE_PAYS, watch.seconds = pays if left_out else 2.0, 0.0
            start = now(pipe.target_model.device)
            results = sorted(pipe.decode(requests), key=lambda one: one.index)
            if number:  # the first warms up
                times[left_out].append((now(pipe.target_model.device) - start, watch.seconds))
            tokens.append([one.token_ids for one in results])
    padding_free.PADDING_FREE_PAYS = pays
    whole, verify = (
        [statistics.median(one[place] for one in times[left_out]) for left_out in (False, True)] for place in (0, 1)
    )
    same = sum(one == tokens[0] for one in tokens)
    return {
        "verify": round(verify[0] / verify[1], 3),
        "whole": round(whole[0] / whole[1], 3),
        "verify_seconds": round(verify[1], 4),
        "same_tokens": same / len(tokens),
    }


def show(figures: list[dict[str, Any]], title: str) -> None:
    """Print a line per cell."""
    table = Table("rows", *dict.fromkeys(str(one["batch"]) for one in figures), title=f"{title}: verifying, whole run")
    for name in dict.fromkeys(one["rows"] for one in figures):
        table.add_row(name, *(f"{one['verify']:.2f}, {one['whole']:.2f}" for one in figures if one["rows"] == name))
    Console(width=132).print(table)


if __name__ == "__main__":
    main()
