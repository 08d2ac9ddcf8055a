"""Drafters that look rows up, on texts that repeat themselves and on texts that do not.

    python benchmarks/copying.py [--pair embedded|cpu] [--batches 1,8] [--rounds 3] [--new 96] [--output FILE.json]

Prompts are made of held-out modules of the standard library. *Edits*: a file's beginning, and once more the first third of it,
which a model goes on to copy. *Turns*: three requests in a row about one text, whose answers the later ones can repeat. *Loops*:
short prompts with many new tokens, after which a small model that decodes greedily repeats itself. **Held-out*: texts without a
repetition of their own. *Mixed*: half edits, half held-out texts. *Random*: random token ids, continued at temperature 1.5 by the
rule ``gumbel``: nothing repeats itself there. All drafters decode the same prompts side by side, whichever has the fewest tokens
next, and have learnt nothing when a repeat begins; all have the same tokens. Figures are ratios to plain decoding of tokens per
second of processor time (one thread), the medians over repeats, and the mean acceptance length.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
import time
from pathlib import Path
from typing import Any

import attrs
import click
import torch
from contenders import held_out_prompts
from grow import load_pair
from rich.console import Console
from rich.table import Table
from side_by_side import side_by_side
from specframe_testing import harness

from specframe import Pipeline, Sampling
from specframe.plugins.registry import registry

CONTENDERS = {
    "plain": "none",
    "suffix": "suffix",
    "prompt-lookup": "prompt-lookup",
    "model": "model",
    "first": "first,of=suffix|model",
}
PROMPTS = 12
RANDOM, WARM = "random", Sampling(temperature=1.5)
"""The prompts that nothing repeats itself after, and how their tokens are drawn."""


def workloads(tokenizer: Any) -> dict[str, list[list[int]]]:
    """Return prompts by their kind."""
    held_out = held_out_prompts(tokenizer, PROMPTS)
    files = held_out_prompts(tokenizer, PROMPTS, 200)
    more = tokenizer("\n\n# The same once more:\n", add_special_tokens=False).input_ids
    edits = [ids + more + ids[: len(ids) // 3] for ids in files]
    return {
        "edits": edits,
        "turns": [ids for ids in files[: PROMPTS // 3] for _ in range(3)],
        "loops": [ids[:24] for ids in files],
        "held-out": held_out,
        "mixed": [ids for pair in zip(edits, held_out, strict=True) for ids in pair][:PROMPTS],
        RANDOM: harness.random_prompts([30] * PROMPTS, len(tokenizer)),
    }


def pipeline(target: Any, draft: Any, drafter: str, batch: int, rule: str) -> Pipeline:
    """Return a pipeline of a contender."""
    made = registry().make("drafter", drafter)
    pipe = Pipeline(target, made, accept=rule, batch_size=batch, generation_config=None)
    pipe.parts.draft = draft if "model" in drafter else None
    return pipe


def forget(pipe: Pipeline, drafter: str) -> None:
    """Have a pipeline draft by a drafter that has learnt nothing."""
    pipe.parts.composition = attrs.evolve(pipe.composition, drafter=registry().make("drafter", drafter))


def measured(
    target: Any, draft: Any, prompts: list[list[int]], batch: int, rounds: int, new: int, sampling: Sampling | None
) -> dict[str, Any]:
    """Return the tokens per second of each contender relative to plain decoding, and its mean acceptance length."""
    rule = "greedy" if sampling is None else "gumbel"
    rates, lengths = {name: list[float]() for name in CONTENDERS}, dict[str, float]()
    pipes = {name: pipeline(target, draft, drafter, batch, rule) for name, drafter in CONTENDERS.items()}
    for number in range(rounds + 1):  # the first one warms up, by a few prompts
        for name, pipe in pipes.items():
            forget(pipe, CONTENDERS[name])
        these = prompts if number else prompts[: len(prompts) // 4]
        for name, decoded in side_by_side(pipes, these, new, time.process_time, sampling=sampling).items():
            lengths[name] = round(pipes[name].report.mean_acceptance_length, 2)
            if number:
                rates[name].append(decoded.rate)
    ratios = {
        name: [one / plain for one, plain in zip(found, rates["plain"], strict=True)] for name, found in rates.items()
    }
    middle = {name: round(statistics.median(found), 3) for name, found in ratios.items()}
    extremes = {name: [round(min(found), 3), round(max(found), 3)] for name, found in ratios.items()}
    return {"ratios": middle, "least_and_greatest": extremes, "acceptance_lengths": lengths}


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", default="embedded", show_default=True)
@click.option("--batches", default="1,8", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--new", default=96, show_default=True, help="New tokens of each prompt.")
@click.option("--kinds", default="edits,turns,loops,held-out,mixed", show_default=True, help="Kinds of prompts.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(pair: str, batches: str, rounds: int, new: int, kinds: str, output: str | None) -> None:
    """Decode everything in turn, and print a table."""
    torch.set_num_threads(1)
    target, draft, tokenizer = load_pair(pair)
    prompts, figures = workloads(tokenizer), list[dict[str, Any]]()
    table = Table("prompts", "batch", *[name for name in CONTENDERS if name != "plain"], title=pair)
    for kind in kinds.split(","):
        for batch in map(int, batches.split(",")):
            found = measured(target, draft, prompts[kind], batch, rounds, new, WARM if kind == RANDOM else None)
            figures.append({"prompts": kind, "batch": batch, **found})
            cells = [f"{found['ratios'][name]:.2f} ({found['acceptance_lengths'][name]:.2f})" for name in CONTENDERS]
            table.add_row(kind, str(batch), *cells[1:])
            click.echo(f"{kind}, batch {batch}: {json.dumps(found)}", err=True)
            if output:
                Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
