"""How much of a draft each acceptance rule accepts, on the embedded pair and prompts it was not trained on.

    python benchmarks/acceptance.py [--count N] [--new N] [--draft-length N]
    python benchmarks/acceptance.py --trees [--seeds N]
    python benchmarks/acceptance.py --drafter tiny-draft@4 --drafter tiny-eagle3,tree=dynamic,nodes=16@5

Prints the table of docs/strategies.md; with ``--trees`` that of trees in README.md, at temperature 1; with ``--drafter`` that of
drafters, greedy, each with the draft length after its ``@``, compared with the first one. Standard errors are those of
a ratio over prompts (rounds of one prompt are alike), so they hold for other prompts of the kind. All rules decode the same
prompts, and no time is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
"""Drafts of depth 4, and the rules for them; the difference of each to the rule before it is printed."""


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


def difference(found: Totals, before: Totals) -> str:
    """Return the difference of two mean acceptance lengths over the same prompts: its error is that of the differences."""
    parts = [
        [(part - ratio(*one)[0] * whole) / sum(one[1]) for part, whole in zip(*one, strict=True)]
        for one in (found, before)
    ]
    squares, count = sum((a - b) ** 2 for a, b in zip(*parts, strict=True)), len(found[0])
    return f"{ratio(*found)[0] - ratio(*before)[0]:+.3f} ± {math.sqrt(squares * count / (count - 1)):.3f}"


def tree_row(draft: str, rule: str, found: Totals, before: Totals | None) -> str:
    """Return one line of the table of trees; ``before``: the totals of the rule before it, on the same draft."""
    length, error = ratio(*found)
    more = "" if before is None else difference(found, before)
    return f"| {draft} | `{rule}` | {1 + length:.3f} ± {error:.3f} | {more} |"


def drafters(asked: Sequence[str], count: int, new: int, batch_size: int) -> None:
    """Print the table of drafters, greedy."""
    first = None
    print("| drafter | draft length | mean acceptance length | more than the first |\n| --- | --- | --- | --- |")
    for one in asked:
        drafter, _, length = one.rpartition("@")
        if not drafter or not length.isdecimal():
            raise click.BadParameter(f"expected a drafter and its draft length, as in tiny-draft@4, got {one}")
        pipe = Pipeline("tiny", drafter, draft_length=int(length), batch_size=batch_size, dtype="float32")
        results = pipe.generate(held_out_prompts(pipe.tokenizer, count), new)
        found = totals([[result.metrics for result in results]])
        more = "" if first is None else difference(found, first)
        first = first or found
        mean, error = ratio(*found)
        print(f"| `{drafter}` | {length} | {1 + mean:.3f} ± {error:.3f} | {more} |", flush=True)


@click.command()
@click.option("--trees", is_flag=True, help="The rules for trees, on chains and trees, at temperature 1.")
@click.option("--drafter", "asked", multiple=True, help="Drafters and their draft lengths, as in tiny-draft@4.")
@click.option("--count", default=400, help="Prompts.")
@click.option("--new", default=64, help="New tokens per prompt.")
@click.option("--draft-length", default=4)
@click.option("--batch-size", default=32)
@click.option("--seeds", default=3, help="With --trees: times that every prompt is continued.")
def main(
    trees: bool, asked: tuple[str, ...], count: int, new: int, draft_length: int, batch_size: int, seeds: int
) -> None:
    """Measure every rule, or drafters, and print the table."""
    torch.set_num_threads(1)
    if asked:
        drafters(asked, count, new, batch_size)
        return
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
