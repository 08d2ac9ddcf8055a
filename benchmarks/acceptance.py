"""How much of a draft each acceptance rule lets stand, on the embedded pair and prompts it was not trained on.

    python benchmarks/acceptance.py [--count N] [--new N] [--draft-length N]
    python benchmarks/acceptance.py --trees [--seeds N]

Prints the table of docs/strategies.md; with ``--trees`` that of trees in README.md, at temperature 1. Standard errors are those of
a ratio over prompts (rounds of one prompt are alike), so they hold for other prompts of the kind. All rules decode the same
prompts, and no time is taken.
"""

from __future__ import annotations

import math

import click
import torch
from contenders import held_out_prompts

from specframe import Pipeline
from specframe.contracts.requests import SequenceMetrics
from specframe.text.sampling import Sampling

Totals = tuple[list[int], list[int]]

RUNS = (("greedy", 0.0), *((rule, t) for t in (0.7, 1.0) for rule in ("rejection", "block", "gumbel", "typical")))

TREES = {
    "chain": ("rejection", "block", "traversal"),
    "branch=2/2/1/1": ("gumbel", "rejection", "traversal"),
    "branch=4/2/1/1": ("gumbel", "rejection", "traversal"),
}
"""Drafts of depth 4, and the rules that judge them; the difference of each to the rule before it is printed."""


def ratio(parts: list[int], wholes: list[int]) -> tuple[float, float]:
    """Return the sum of ``parts`` over that of ``wholes`` and its standard error, taking pairs as independent."""
    whole = sum(wholes)
    found = sum(parts) / whole
    squares = sum((part - found * one) ** 2 for part, one in zip(parts, wholes, strict=True))
    count = len(parts)
    return found, math.sqrt(squares * count / (count - 1)) / whole


def row(rule: str, temperature: float, metrics: list[SequenceMetrics]) -> str:
    """Return one line of the table of rules."""
    accepted = [one.num_accepted_draft_tokens for one in metrics]
    rate, rate_error = ratio(accepted, [one.num_draft_tokens for one in metrics])
    length, length_error = ratio(accepted, [one.num_spec_steps for one in metrics])
    return f"| `{rule}` | {temperature:g} | {1 + length:.3f} ± {length_error:.3f} | {rate:.3f} ± {rate_error:.3f} |"


def tree_row(draft: str, rule: str, found: Totals, before: Totals | None) -> str:
    """Return one line of the table of trees; ``before``: the totals of the rule before it, on the same draft."""
    length, error = ratio(*found)
    more = ""
    if before is not None:  # the same prompts: the error of a difference is that of the differences
        parts = [
            [(part - ratio(*one)[0] * whole) / sum(one[1]) for part, whole in zip(*one, strict=True)]
            for one in (found, before)
        ]
        squares, count = sum((a - b) ** 2 for a, b in zip(*parts, strict=True)), len(found[0])
        more = f"{length - ratio(*before)[0]:+.3f} ± {math.sqrt(squares * count / (count - 1)):.3f}"
    return f"| {draft} | `{rule}` | {1 + length:.3f} ± {error:.3f} | {more} |"


@click.command()
@click.option("--trees", is_flag=True, help="The rules that judge trees, on chains and trees, at temperature 1.")
@click.option("--count", default=400, help="Prompts.")
@click.option("--new", default=64, help="New tokens per prompt.")
@click.option("--draft-length", default=4)
@click.option("--batch-size", default=32)
@click.option("--seeds", default=3, help="With --trees: times that every prompt is continued.")
def main(trees: bool, count: int, new: int, draft_length: int, batch_size: int, seeds: int) -> None:
    """Measure every rule and print the table."""
    torch.set_num_threads(1)
    base = Pipeline("tiny", "tiny-draft")
    prompts = held_out_prompts(base.tokenizer, count)

    def run(rule: str, temperature: float, options: str = "", seed: int = 0) -> list[SequenceMetrics]:
        pipe = Pipeline(
            base.target_model,
            f"tiny-draft,{options}" if options else base.draft_model,
            accept=rule,
            draft_length=draft_length,
            batch_size=batch_size,
            tokenizer=base.tokenizer,
            seed=seed,
        )
        results = pipe.generate(prompts, max_new_tokens=new, sampling=Sampling(temperature=temperature))
        return [one.metrics for one in results]

    if trees:
        print("| draft | rule | mean acceptance length | more than the rule before |\n| --- | --- | --- | --- |")
        for draft, rules in TREES.items():
            before = None
            for rule in rules:
                runs = [run(rule, 1.0, "" if draft == "chain" else draft, seed) for seed in range(seeds)]
                found = totals(runs)
                print(tree_row(f"`{draft}`" if "=" in draft else draft, rule, found, before), flush=True)
                before = found
        return
    print("| rule | temperature | mean acceptance length | acceptance rate |")
    print("| --- | --- | --- | --- |")
    for rule, temperature in RUNS:
        print(row(rule, temperature, [one for one in run(rule, temperature) if one.num_spec_steps]), flush=True)


def totals(runs: list[list[SequenceMetrics]]) -> Totals:
    """Return the accepted draft tokens of each prompt in all runs, and its rounds."""
    prompts = [*zip(*runs, strict=True)]
    accepted = [sum(one.num_accepted_draft_tokens for one in same) for same in prompts]
    return accepted, [sum(one.num_spec_steps for one in same) for same in prompts]


if __name__ == "__main__":
    main()
