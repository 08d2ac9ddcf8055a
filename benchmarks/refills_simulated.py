"""Rows that are filled one by one, compared with several at once, in rounds of given seconds: what a GPU is expected to gain.

    python benchmarks/refills_simulated.py [--plain 12.5] [--round 25] [--prompt 24] [--beside 2] [--waits 0,0.25,1] [--seeds 8]

The scheduler and the pool are the real ones; only rounds are not computed. A round takes ``--plain`` milliseconds, or ``--round``
with two draft tokens, of which 0.8 and 0.7 are accepted; a forward that reads prompts takes ``--prompt``, and ``--beside`` for each
of them. Each prompt has from a fifth to nine fifths of the new tokens. Figures are tokens per second, means over the seeds.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import random
import statistics
import warnings

import click
from rich.console import Console
from rich.table import Table
from specframe_testing.conformance.scheduler import simulate

from specframe.plugins.registry import registry

CELLS = ((8, 256, 8), (32, 64, 4), (32, 256, 4), (64, 256, 4))
"""Rows, new tokens of a prompt on average, and prompts for each row."""
STANDS = (0.8, 0.7)
"""The acceptance probabilities of draft tokens, given that those before them are accepted."""


def rate(wait: str, rows: int, new: int, count: int, drafts: bool, cost: dict[str, float], seed: int) -> float:
    """Return the tokens per second of one run."""
    choose = random.Random(seed)
    tokens = [max(1, round(new * choose.uniform(0.2, 1.8))) for _ in range(count)]

    def gained(index: int, length: int) -> int:
        place = random.Random(hash((seed, index, length)))
        return next((number for number, stands in enumerate(STANDS) if place.random() > stands), len(STANDS))

    seen = simulate(
        registry().make("scheduler", f"continuous,wait={wait}"),
        [8] * count,
        tokens,
        rows,
        gained if drafts else lambda index, length: 0,
    )
    reading = sum(cost["prompt"] + cost["mixed"] * len(one.indices) for one in seen if one.prefill)
    decoding = sum(cost["round" if drafts else "plain"] for one in seen if not one.prefill)
    return 1000 * sum(tokens) / (reading + decoding)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--plain", default=12.5, show_default=True, help="Milliseconds of a plain round.")
@click.option("--round", default=25.0, show_default=True, help="Of a round with drafts.")
@click.option("--prompt", default=24.0, show_default=True, help="Of a forward that reads prompts.")
@click.option("--beside", default=2.0, show_default=True, help="Of each prompt in it.")
@click.option("--waits", default="0,0.25,1", show_default=True)
@click.option("--seeds", default=8, show_default=True)
def main(waits: str, seeds: int, **cost: float) -> None:
    """Play all cells and print a table."""
    warnings.simplefilter("ignore")  # of asserts that pytest does not rewrite here
    table = Table("rows", "new", "rounds", *(f"wait={wait}" for wait in waits.split(",")))
    for rows, new, waves in CELLS:
        for drafts in (False, True):
            rates = [
                statistics.mean(rate(wait, rows, new, waves * rows, drafts, cost, seed) for seed in range(seeds))
                for wait in waits.split(",")
            ]
            table.add_row(str(rows), str(new), "K = 2" if drafts else "plain", *(f"{one:,.0f}" for one in rates))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
