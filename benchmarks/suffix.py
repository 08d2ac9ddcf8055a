"""How long the drafter ``suffix`` takes to find what a batch drafts, and to learn what has ended.

    python benchmarks/suffix.py [--rows 64] [--rounds 60] [--most 8] [--output FILE.json]

Rows are parts of the standard library in the embedded pair's tokens, 400 to 900 of them, which grow by three tokens a round; rows
that copy (each repeats its first 200 tokens); rows of a few tokens over and over; and tokens at random. They are looked up in their
own texts, and in as many responses as a line of the table says, parts of the same modules of 250 tokens each. Each round learns as
many tokens of responses as its rows gain. Figures are milliseconds of the thread's processor time, the medians over rounds.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import sysconfig
import time
from pathlib import Path

import attrs
import click
import numpy as np
from rich.console import Console
from rich.table import Table
from specframe_std.drafters.suffix.engines import Own
from specframe_std.drafters.suffix.speculation import Most, Reach

from specframe import Pipeline

SHORTEST, LONGEST, RESPONSE, GAINED = 400, 900, 250, 3
"""Tokens of a row at least and at most, of a response, and those that a row gains in a round."""


@attrs.frozen
class Cell:
    """Rows of a kind, the number of responses, and the medians of a round's milliseconds."""

    rows: str
    responses: int
    looking_up: float
    learning: float
    drafted: float
    """Tokens that a row drafts, on average."""

    @property
    def whole(self) -> float:
        """The milliseconds of a round."""
        return self.looking_up + self.learning


def streams() -> list[list[int]]:
    """Return the tokens of the standard library's modules that are long enough."""
    tokenizer = Pipeline("tiny", drafter=None).tokenizer
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [file.read_text(encoding="utf-8", errors="replace")[:12_000] for file in files]
    found = [tokenizer(text, add_special_tokens=False, verbose=False).input_ids for text in texts]
    return [ids for ids in found if len(ids) > LONGEST + RESPONSE]


def texts(kind: str, rows: int, modules: list[list[int]]) -> np.ndarray:
    """Return the tokens of rows of a kind, (rows, more than each has)."""
    draw, width = np.random.default_rng(1), LONGEST + 400
    if kind == "random":
        return draw.integers(0, 2048, (rows, width))
    if kind == "loops":
        return np.array([[7 * row + place % (3 + row % 9) for place in range(width)] for row in range(rows)])
    found = np.array([(modules[row % len(modules)] * 2)[:width] for row in range(rows)])
    if kind == "copies":
        half = SHORTEST // 2
        found[:, half:] = np.resize(found[:, :half].T, (width - half, rows)).T
    return found


def measured(kind: str, rows: int, responses: int, most: int, rounds: int, modules: list[list[int]]) -> Cell:
    """Return the times of rounds over rows of a kind."""
    engine, tokens = Own(Reach(), max(1, responses)), texts(kind, rows, modules)
    pieces = [ids[start : start + RESPONSE] for start in range(0, LONGEST, RESPONSE) for ids in reversed(modules)]
    for number in range(responses):
        engine.learn(pieces[number % len(pieces)])
    lengths, asked = np.random.default_rng(2).integers(SHORTEST, LONGEST, rows), [Most(most, most)] * rows
    spent, drafted, owed = list[tuple[float, float]](), 0, 0
    for number in range(rounds):
        ticks = [time.thread_time()]
        found = engine.look_up(tokens, lengths, asked)
        ticks.append(time.thread_time())
        owed += rows * GAINED
        while responses and owed > RESPONSE:
            engine.learn(pieces[(number + owed) % len(pieces)])
            owed -= RESPONSE
        ticks.append(time.thread_time())
        spent.append((ticks[1] - ticks[0], ticks[2] - ticks[1]))
        drafted += sum(len(one.tokens) for one in found)
        lengths += GAINED
    times = [1000 * statistics.median(part) for part in zip(*spent, strict=True)]
    return Cell(kind, responses, *times, drafted / rounds / rows)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--rows", default=64, show_default=True, help="Rows of the batch.")
@click.option("--rounds", default=60, show_default=True, help="Rounds of each cell.")
@click.option("--most", default=8, show_default=True, help="Tokens that a row drafts at most.")
@click.option("--output", default=None, help="Write the cells here as JSON.")
def main(rows: int, rounds: int, most: int, output: str | None) -> None:
    """Time everything, and print a table."""
    modules = streams()
    kinds = ("library", "copies", "loops", "random")
    cells = [measured(kind, rows, many, most, rounds, modules) for kind in kinds for many in (0, 100, 2000)]
    table = Table("rows", "responses", "looking up, ms", "learning, ms", "a round, ms", "drafted by a row")
    for one in cells:
        figures = (one.looking_up, one.learning, one.whole, one.drafted)
        table.add_row(one.rows, f"{one.responses:,}", *(f"{figure:.2f}" for figure in figures))
    Console(width=110).print(table)
    if output:
        Path(output).write_text(json.dumps([attrs.asdict(one) for one in cells], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
