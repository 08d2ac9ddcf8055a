"""What `goodput` makes of a pair in its first, second and third run, beside plain decoding and every fixed draft length.

    python benchmarks/policies.py [--pair embedded|cpu] [--batches 1,8] [--prompts FILE] [--lengths 1,2,3,4,5,6]

Each round makes a new pipeline with `goodput`, and decodes the same prompts with it, with plain decoding and with each fixed
draft length, in turn. Ratios are those of `goodput` to the best of the others within a round; the median over rounds is shown.
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
from bench import read_prompts
from grow import PAIRS, load_pair

from specframe import Pipeline

RUNS = 3
"""Runs of one pipeline with `goodput`: what it learnt in one serves the next."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", type=click.Choice(list(PAIRS)), default="embedded", show_default=True)
@click.option("--batches", default="1,2,4,8,16,32", show_default=True)
@click.option("--waves", default=3, show_default=True, help="Batches that a run decodes.")
@click.option("--least", default=6, show_default=True, help="Prompts that a run decodes at least.")
@click.option("--new", default=64, show_default=True, help="New tokens per prompt.")
@click.option("--longest", default=128, show_default=True, help="Tokens of the longest prompt.")
@click.option("--prompts", "file", default=None, help="A prompt file; default: held-out library source.")
@click.option("--lengths", default="1,2,3,4,5,6", show_default=True, help="Fixed draft lengths.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(pair: str, batches: str, lengths: str, rounds: int, output: str | None, **options: Any) -> None:
    """Measure every batch size and print a line for each."""
    transformers.logging.set_verbosity_error()
    target, draft, tokenizer = load_pair(pair, torch.device("cpu"), torch.float32)
    found = []
    for batch in map(int, batches.split(",")):
        prompts = read_prompts(options, tokenizer, max(options["least"], options["waves"] * batch))
        rates = measured(
            lambda **how: Pipeline(target, tokenizer=tokenizer, batch_size=batch, **how),  # noqa: B023 - called at once
            draft,
            [int(one) for one in lengths.split(",")],
            prompts,
            options["new"],
            rounds,
        )
        found.append({"pair": pair, "batch": batch, "prompts": len(prompts), **summary(rates), "rates": rates})
        print(line(found[-1]), flush=True)
    if output:
        Path(output).write_text(json.dumps({"capability": capability(), "batches": found}, indent=1) + "\n")


def measured(make: Any, draft: Any, lengths: list[int], prompts: Any, new: int, rounds: int) -> list[dict[str, float]]:
    """Return tokens per second by contender, for each round."""
    fixed = {"plain": make(drafter=None)} | {f"K={k}": make(drafter=draft, draft_length=k) for k in lengths}
    for pipe in fixed.values():
        rate(pipe, prompts[:2], 4)
    found = []
    for _ in range(rounds):
        learning = make(drafter=draft, draft_length="goodput")
        turn = {}
        names = list(fixed)
        for number in range(RUNS):
            turn[f"run {number + 1}"] = rate(learning, prompts, new)
            for name in names[number::RUNS]:
                turn[name] = rate(fixed[name], prompts, new)
        found.append(turn)
    return found


def rate(pipe: Pipeline, prompts: Any, new: int) -> float:
    """Return the tokens per second of one run."""
    started = time.perf_counter()
    tokens = sum(len(result.token_ids) for result in pipe.generate(prompts, new))
    return tokens / (time.perf_counter() - started)


def summary(rates: list[dict[str, float]]) -> dict[str, Any]:
    """Return the best of the others, by the median over rounds, and the ratio of each run to it within a round."""
    others = [name for name in rates[0] if not name.startswith("run")]
    medians = {name: statistics.median(turn[name] for turn in rates) for name in others}
    best = max(medians, key=medians.__getitem__)
    runs = {f"run {n + 1}": statistics.median(turn[f"run {n + 1}"] / turn[best] for turn in rates) for n in range(RUNS)}
    return {"best": best, "best_to_plain": medians[best] / medians["plain"], "medians": medians, "to_best": runs}


def line(found: dict[str, Any]) -> str:
    """Return one batch size's figures as text."""
    runs = ", ".join(f"{name} {ratio:.3f}" for name, ratio in found["to_best"].items())
    medians = " ".join(f"{name} {rate:.0f}" for name, rate in found["medians"].items())
    return f"batch {found['batch']}: best {found['best']} ({found['best_to_plain']:.2f} of plain); {runs}; {medians}"


def capability() -> str:
    """Return the CPU's kernels that torch uses."""
    return torch.backends.cpu.get_cpu_capability()


if __name__ == "__main__":
    main()
