"""Rows that are filled one by one, compared with several at once.

    python benchmarks/refills.py [--pair embedded|cpu|qwen3-8b] [--device cpu|cuda] [--dtype float32] [--batches 16,32] [--length 2]
        [--new 64] [--waves 3] [--waits 0,0.25,1] [--repeats 5] [--output FILE.json]

Prompts are held-out library source; each has from a fifth to nine fifths of ``--new`` new tokens, so that sequences end at unlike
times. All contenders decode them side by side, round after round. Figures are medians over repeats of tokens per second, prompts
included, as ratios to plain decoding with each row filled as soon as it is free, with the least and the greatest.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from budgets import spread
from contenders import held_out_prompts
from grow import PAIRS, load_pair
from side_by_side import side_by_side, unequal_ends

from specframe import Pipeline
from specframe.devices.kinds import of
from specframe.models.loading import pick_device, pick_dtype


def measured(
    pipes: dict[str, Pipeline], prompts: Any, new: int, repeats: int, alike: bool, recorded: bool
) -> dict[str, Any]:
    """Return each pipeline's ratios to the first one's tokens per second, and the tokens per second."""
    rates: dict[str, list[float]] = {name: [] for name in pipes}
    for number in range(repeats + 1):  # the first one warms up, by a few prompts where no forward is recorded
        count = len(prompts) if number or recorded else len(prompts) // 4
        ends = unequal_ends(count, new)
        for name, decoded in side_by_side(pipes, prompts[:count], new, alike=alike, sampling=ends).items():
            rates[name] += [decoded.rate] * bool(number)
    first = next(iter(rates.values()))
    ratios = {name: [one / of for one, of in zip(found, first, strict=True)] for name, found in rates.items()}
    return {
        "tokens_per_second": {name: round(spread(found)[0], 1) for name, found in rates.items()},
        "to_first": {name: spread(found) for name, found in ratios.items()},
    }


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", type=click.Choice(list(PAIRS)), default="embedded", show_default=True)
@click.option("--batches", default="16,32", show_default=True)
@click.option("--length", default="2", show_default=True, help="The draft length.")
@click.option("--waits", default="0,0.25,1", show_default=True, help="Values of the scheduler's option.")
@click.option("--waves", default=3, show_default=True, help="Prompts for each row.")
@click.option("--new", default=64, show_default=True, help="New tokens per prompt, on average.")
@click.option("--longest", default=64, show_default=True, help="Tokens of a prompt, at most.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(
    pair: str,
    batches: str,
    length: str,
    waits: str,
    waves: int,
    new: int,
    longest: int,
    repeats: int,
    device: str,
    dtype: str,
    output: str | None,
) -> None:
    """Measure every batch size and print a line for each."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    on = pick_device(device)
    precision = pick_dtype(dtype, on)
    target, draft, tokenizer = load_pair(pair, on, precision)
    drafting: dict[str, dict[str, Any]] = {
        "plain": {"drafter": None},
        f"K = {length}": {"drafter": draft, "draft_length": length},
    }
    found = []
    for batch in map(int, batches.split(",")):
        pipes = {
            f"{name}, wait {wait}": Pipeline(
                target, batch_size=batch, schedule=f"continuous,wait={wait}", generation_config=None, **how
            )
            for name, how in drafting.items()
            for wait in waits.split(",")
        }
        prompts = held_out_prompts(tokenizer, waves * batch, longest)
        figures = measured(pipes, prompts, new, repeats, precision == torch.float32, of(on).recording is not None)
        found.append({"pair": pair, "device": on.type, "batch": batch, "new": new, "waves": waves, **figures})
        print(json.dumps(found[-1]), flush=True)
        if output:
            Path(output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
