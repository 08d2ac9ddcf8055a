"""How much of a draft each acceptance rule lets stand, on the embedded pair and prompts it was not trained on.

    python benchmarks/acceptance.py [--count N] [--new N] [--draft-length N]

Prints the table of docs/strategies.md. Standard errors are those of a ratio over sequences (rounds of one sequence are alike), so
they hold for other prompts of the kind. All rules decode the same prompts, and no time is taken.
"""

from __future__ import annotations

import math

import click
import torch
from contenders import held_out_prompts

from specframe import Pipeline
from specframe.contracts.requests import SequenceMetrics
from specframe.text.sampling import Sampling

RUNS = (("greedy", 0.0), *((rule, t) for t in (0.7, 1.0) for rule in ("rejection", "block", "gumbel", "typical")))


def ratio(parts: list[int], wholes: list[int]) -> tuple[float, float]:
    """Return the sum of ``parts`` over that of ``wholes`` and its standard error, taking pairs as independent."""
    whole = sum(wholes)
    found = sum(parts) / whole
    squares = sum((part - found * one) ** 2 for part, one in zip(parts, wholes, strict=True))
    count = len(parts)
    return found, math.sqrt(squares * count / (count - 1)) / whole


def row(rule: str, temperature: float, metrics: list[SequenceMetrics]) -> str:
    """Return one line of the table."""
    accepted = [one.num_accepted_draft_tokens for one in metrics]
    rate, rate_error = ratio(accepted, [one.num_draft_tokens for one in metrics])
    length, length_error = ratio(accepted, [one.num_spec_steps for one in metrics])
    return f"| `{rule}` | {temperature:g} | {1 + length:.3f} ± {length_error:.3f} | {rate:.3f} ± {rate_error:.3f} |"


@click.command()
@click.option("--count", default=400, help="Prompts.")
@click.option("--new", default=64, help="New tokens per prompt.")
@click.option("--draft-length", default=4)
@click.option("--batch-size", default=32)
def main(count: int, new: int, draft_length: int, batch_size: int) -> None:
    """Measure every rule and print the table."""
    torch.set_num_threads(1)
    base = Pipeline("tiny", "tiny-draft")
    prompts = held_out_prompts(base.tokenizer, count)
    print("| rule | temperature | mean acceptance length | acceptance rate |")
    print("| --- | --- | --- | --- |")
    for rule, temperature in RUNS:
        pipe = Pipeline(
            base.target_model,
            base.draft_model,
            accept=rule,
            draft_length=draft_length,
            batch_size=batch_size,
            tokenizer=base.tokenizer,
        )
        results = pipe.generate(prompts, max_new_tokens=new, sampling=Sampling(temperature=temperature))
        print(row(rule, temperature, [one.metrics for one in results if one.metrics.num_spec_steps]), flush=True)


if __name__ == "__main__":
    main()
