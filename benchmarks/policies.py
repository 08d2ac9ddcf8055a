"""What `goodput` makes of a pair in its first, second and third run, beside plain decoding and every fixed draft length.

    python benchmarks/policies.py [--pair embedded|cpu] [--batches 1,8] [--prompts FILE] [--lengths 1,2,3,4,5,6] [--clock cpu]

Each round makes a new pipeline with `goodput`, and decodes the same prompts with it three times, with plain decoding and with each
fixed draft length, in turn. All pipelines are warmed up. Ratios are those of `goodput` to the best of the others within a round;
the median over rounds is shown.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click
import torch
import transformers
from bench import CLOCKS, read_prompts
from grow import PAIRS, load_pair
from specframe_std.policies.goodput import Goodput

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
@click.option(
    "--clock",
    type=click.Choice(list(CLOCKS)),
    default="wall",
    show_default=True,
    help="The seconds that the policy and the figures go by; cpu: processor time of one thread, for a machine others use too.",
)
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(pair: str, batches: str, lengths: str, rounds: int, clock: str, output: str | None, **options: Any) -> None:
    """Measure every batch size and print a line for each."""
    transformers.logging.set_verbosity_error()
    if clock == "cpu":
        torch.set_num_threads(1)
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
            CLOCKS[clock],
        )
        found.append({"pair": pair, "batch": batch, "prompts": len(prompts), **summary(rates), "rates": rates})
        print(line(found[-1]), flush=True)
    if output:
        about = {
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "clock": clock,
        }
        Path(output).write_text(json.dumps(about | {"batches": found}, indent=1) + "\n")


Clock = Callable[[], float]


def measured(
    make: Any, draft: Any, lengths: list[int], prompts: Any, new: int, rounds: int, clock: Clock
) -> list[dict[str, float]]:
    """Return tokens per second by contender, for each round."""
    fixed = {"plain": make(drafter=None)} | {f"K={k}": make(drafter=draft, draft_length=k) for k in lengths}
    for pipe in fixed.values():
        rate(pipe, prompts[:2], 4, clock)
    found = []
    for _ in range(rounds):
        learning = warmed(make, draft, prompts, clock)
        turn = {}
        names = list(fixed)
        for number in range(RUNS):
            turn[f"run {number + 1}"] = rate(learning, prompts, new, clock)
            for name in names[number::RUNS]:
                turn[name] = rate(fixed[name], prompts, new, clock)
        found.append(turn)
    return found


def warmed(make: Any, draft: Any, prompts: Any, clock: Clock) -> Pipeline:
    """Return a pipeline with a new `goodput`, warmed up like the others: its first run pays for learning alone."""
    pipe = make(drafter=draft, draft_length=4)
    rate(pipe, prompts[:2], 4, clock)
    policy = Goodput()
    policy.clock = clock
    pipe.parts.composition = attrs.evolve(pipe.composition, policy=policy)
    return pipe


def rate(pipe: Pipeline, prompts: Any, new: int, clock: Clock) -> float:
    """Return the tokens per second of one run."""
    started = clock()
    tokens = sum(len(result.token_ids) for result in pipe.generate(prompts, new))
    return tokens / (clock() - started)


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


if __name__ == "__main__":
    main()
