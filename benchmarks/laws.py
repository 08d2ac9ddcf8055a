"""The runs that docs/laws.md fits laws to: acceptance of a family of drafts, and speeds by batch size and draft length.

    python -m specframe_tiny.train_family --work FAMILY
    python benchmarks/laws.py FAMILY [--output benchmarks/results]

Written are laws-drafts.csv, laws-acceptance.jsonl and laws-speed.jsonl, of each line what `specframe laws` reads, and
laws-profile.json, the profile of this machine. A draft is named by its folder without the path. Speeds are measured by
`specframe compare` with one thread, and in processor time: the machine may be used by others, too. What is there in FAMILY already
is not run again.
"""

from __future__ import annotations

import checkout  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import click
import torch

DRAFT_LENGTH = 4
"""Of the runs that acceptance is fitted to."""
ROWS, NEW = 32, 48
"""Rows and new tokens of these runs: neither changes what is accepted of a draft, but for the last round of a prompt."""
LENGTHS, BATCH_SIZES = "1,2,3,4,6,8", "1,2,4,8,16,32"
"""Draft lengths and batch sizes whose speed is measured."""
SPEED = ("--limit", "32", "--max-new-tokens", "32", "--repeats", "2", "--target", "tiny", "--drafter", "tiny-draft")
"""The runs whose speed is measured: as many prompts as the largest batch has rows."""
COUNTS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
NAMED = ("drafter", "align", "batch_size", "draft_length", "device", "dtype", "seed", "target")
Line = dict[str, Any]


def accepted(draft: Mapping[str, str], prompts: list[str]) -> Line:
    """Decode with a draft; return what was accepted of its drafts as a line of a comparison has it."""
    from specframe import Pipeline

    pipe = Pipeline(
        "tiny", draft["drafter"], batch_size=ROWS, draft_length=str(DRAFT_LENGTH), align="ragged", device="cpu"
    )
    metrics = [result.metrics for result in pipe.generate(prompts, NEW)]
    return {
        "cell": {
            "drafter": Path(draft["drafter"]).name,
            "align": "ragged",
            "batch_size": ROWS,
            "draft_length": str(DRAFT_LENGTH),
            "target": "tiny",
        },
        "plain": False,
        "repeat": 0,
        "figures": {"tokens_per_second": 0.0},  # not measured: drafts were run one after the other
        "spec_steps": [one.num_spec_steps for one in metrics],
        "accepted": [one.num_accepted_draft_tokens for one in metrics],
    }


def acceptance(family: Path) -> list[Line]:
    """Return a line for each draft that is there, in the order of the table; those that were run before are taken as they are."""
    file = family / "acceptance.jsonl"
    lines = {line["cell"]["drafter"]: line for line in read(file)} if file.exists() else {}
    prompts = [one["prompt"] for one in read(family / "prompts.jsonl")]
    for draft in table(family):
        name = Path(draft["drafter"]).name
        if name not in lines:
            lines[name] = accepted(draft, prompts)
            write(file, [*lines.values()])
            click.echo(f"{name}: {1 + sum(lines[name]['accepted']) / sum(lines[name]['spec_steps']):.3f}", err=True)
    return [lines[Path(draft["drafter"]).name] for draft in table(family)]


def speeds(family: Path) -> list[Line]:
    """Return the lines of a comparison by draft length and batch size, of each what laws need."""
    from specframe.cli import cli

    folder = family / "speed"
    grid = ("--align", "ragged", "--draft-length", LENGTHS, "--batch-size", BATCH_SIZES, "--device", "cpu")
    prompts = ("--prompts", str(family / "prompts.jsonl"))
    cli.main(["compare", *prompts, *SPEED, *grid, "--output", str(folder)], standalone_mode=False)
    return [kept(line) for line in read(folder / "results.jsonl")]


def kept(line: Line) -> Line:
    """Return what laws need of a line, and what `specframe predict --acceptance` does."""
    figures = {name: round(line["figures"][name], 2) for name in ("tokens_per_second", *COUNTS)}
    counts = {} if line["plain"] else {name: line[name] for name in ("spec_steps", "accepted")}
    cell = {name: line["cell"][name] for name in NAMED}
    return {"cell": cell, "plain": line["plain"], "repeat": line["repeat"], "figures": figures, **counts}


def table(family: Path) -> list[dict[str, str]]:
    """Return the drafts of a family."""
    with (family / "drafts.csv").open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def read(file: Path) -> list[Line]:
    """Return lines of JSON."""
    return [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]


def write(file: Path, lines: list[Line]) -> None:
    """Write lines of JSON."""
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


@click.command()
@click.argument("family", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=checkout.ROOT / "benchmarks" / "results"
)
@click.option("--part", type=click.Choice(["speed", "acceptance"]), multiple=True, help="Only this part.")
def main(family: Path, output: Path, part: tuple[str, ...]) -> None:
    """Measure, and write what was found."""
    torch.set_num_threads(1)
    if "speed" in part or not part:
        from specframe_lab.prediction.profiles import measured, write_profile

        with mock.patch.object(time, "perf_counter", time.process_time):
            write(output / "laws-speed.jsonl", speeds(family))
            profile = write_profile(measured(torch.device("cpu"), torch.float32))
        (output / "laws-profile.json").write_text(profile, encoding="utf-8")
    if "acceptance" in part or not part:
        write(output / "laws-acceptance.jsonl", acceptance(family))
        rows = [(Path(draft["drafter"]).name, draft["tokens"], draft["layers"]) for draft in table(family)]
        with (output / "laws-drafts.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("drafter", "tokens", "layers"), *rows])


if __name__ == "__main__":
    main()
