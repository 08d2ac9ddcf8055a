"""Draft-length policies beside plain decoding and fixed lengths, by batch size.

    python benchmarks/budgets.py [--pair embedded|cpu] [--batches 1,4,8,32] [--kinds spec,code,mixed] [--rounds 5] [--prompts FILE]
        [--drafter model|prompt-lookup|suffix] [--policy goodput] [--beside]

*Spec*: the prompts of FILE. *Code*: held-out library source. *Mixed*: half of the prompts are files that the target goes on to
copy, half are pieces without a repetition of their own. All contenders decode the same prompts in turn, round after round, by
wall-clock time. In each round a policy has learnt nothing when it begins, and decodes the prompts twice: its first run and its
second. Figures are medians over rounds of tokens per second, as ratios to plain decoding of the same round, with the least and the
greatest; and draft tokens accepted for each that was verified. With *--beside* a second program takes a core for a tenth of each
second.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import torch
import transformers
from bench import read_prompts
from contenders import held_out_prompts
from copying import workloads
from grow import PAIRS, load_pair

from specframe import Pipeline
from specframe.plugins.registry import registry

POLICIES = ("explicit", "implicit", "goodput,confidence=off", "goodput")
LOOKING = ("explicit", "goodput")
"""Those for drafters that look tokens up, and know no confidence."""


BUSY, SECOND = 0.1, 1.0
"""Seconds that the second program computes, and the seconds after which it does so again."""
SECOND_PROGRAM = f"""
import time
while True:
    until = time.perf_counter() + {BUSY}
    while time.perf_counter() < until:
        pass
    time.sleep({SECOND - BUSY})
"""


@contextlib.contextmanager
def company(wanted: bool) -> Iterator[None]:
    """Have a second program run beside what is measured, if it is wanted."""
    if not wanted:
        yield
        return
    program = subprocess.Popen([sys.executable, "-c", SECOND_PROGRAM])
    try:
        yield
    finally:
        program.kill()


def asked(kind: str, file: str | None, tokenizer: Any, count: int) -> list[list[int]]:
    """Return so many prompts of a kind."""
    if kind == "mixed":
        found = workloads(tokenizer)["mixed"]
        return [found[number % len(found)] for number in range(count)]
    if kind == "code":
        return held_out_prompts(tokenizer, count)
    return read_prompts({"file": file, "longest": 128}, tokenizer, count)


class Contender:
    """A pipeline of a draft length or policy."""

    def __init__(self, target: Any, draft: Any, tokenizer: Any, length: str, batch: int) -> None:
        self._policy = length if length in POLICIES else None
        how = {"drafter": None} if length == "plain" else {"drafter": draft, "draft_length": length}
        self._pipe = Pipeline(target, tokenizer=tokenizer, batch_size=batch, generation_config=None, **how)

    def forget(self) -> None:
        """Have the policy learn anew."""
        if self._policy is not None:
            made = registry().make("draft-length policy", self._policy)
            self._pipe.parts.composition = attrs.evolve(self._pipe.composition, policy=made)

    def run(self, prompts: Any, new: int) -> tuple[float, float, Any]:
        """Return tokens per second, draft tokens accepted for each verified one, and the tokens."""
        started = time.perf_counter()
        results = [one.token_ids for one in self._pipe.generate(prompts, new)]
        seconds, report = time.perf_counter() - started, self._pipe.report
        return sum(map(len, results)) / seconds, report.draft_acceptance_rate, results


def measured(contenders: dict[str, Contender], prompts: Any, new: int, rounds: int) -> dict[str, Any]:
    """Return each contender's ratios to plain decoding, by runs."""
    rates: dict[str, list[float]] = {}
    accepted: dict[str, float] = {}
    same = None
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            contender.forget()
            for run in ("", " again") if name in POLICIES else ("",):
                rate, share, tokens = contender.run(prompts, new)
                same = same or tokens
                assert tokens == same, f"{name} has other tokens"
                accepted[name + run] = share
                if number:  # the first warms up
                    rates.setdefault(name + run, []).append(rate)
    plain = rates["plain"]
    ratios = {name: [one / of for one, of in zip(found, plain, strict=True)] for name, found in rates.items()}
    fixed = [name for name in ratios if name.partition(" again")[0] not in POLICIES]
    best = [max(ratios[name][number] for name in fixed) for number in range(rounds)]
    median = {name: statistics.median(found) for name, found in ratios.items()}
    leader = max(fixed, key=median.__getitem__)
    return {
        "to_plain": {
            name: [round(one, 3) for one in (median[name], min(found), max(found))] for name, found in ratios.items()
        },
        "best_fixed": leader,
        "to_best_fixed": {
            name: round(statistics.median(one / of for one, of in zip(found, ratios[leader], strict=True)), 3)
            for name, found in ratios.items()
            if name not in fixed
        },
        "best_of_each_round": round(statistics.median(best), 3),
        "accepted_per_verified": {name: round(share, 3) for name, share in accepted.items() if name != "plain"},
    }


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", type=click.Choice(list(PAIRS)), default="embedded", show_default=True)
@click.option("--batches", default="1,4,8,32", show_default=True)
@click.option("--kinds", default="code,mixed", show_default=True)
@click.option("--lengths", default="1,2,3,4,6", show_default=True, help="Fixed draft lengths.")
@click.option("--count", default=24, show_default=True, help="Prompts; at least twice the batch.")
@click.option("--new", default=64, show_default=True, help="New tokens per prompt.")
@click.option("--rounds", default=5, show_default=True)
@click.option(
    "--drafter", default="model", show_default=True, help="The drafter; of the pair's draft model by default."
)
@click.option("--prompts", "file", default=None, help="The prompt file of the kind spec.")
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICIES),
    multiple=True,
    help="A policy; all by default that the drafter knows.",
)
@click.option("--beside", is_flag=True, help="A second program takes a core for a tenth of each second.")
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(
    pair: str,
    batches: str,
    kinds: str,
    lengths: str,
    count: int,
    new: int,
    rounds: int,
    drafter: str,
    file: str | None,
    policies: tuple[str, ...],
    beside: bool,
    output: str | None,
) -> None:
    """Measure every cell and print a line for each."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    target, draft, tokenizer = load_pair(pair, torch.device("cpu"), torch.float32)
    found = []
    for kind in kinds.split(","):
        for batch in map(int, batches.split(",")):
            prompts = asked(kind, file, tokenizer, max(count, 2 * batch))
            tried = policies or (POLICIES if drafter == "model" else LOOKING)
            names = ["plain", *lengths.split(","), *tried]
            by = draft if drafter == "model" else drafter
            contenders = {name: Contender(target, by, tokenizer, name, batch) for name in names}
            cell = {"pair": pair, "drafter": drafter, "kind": kind, "batch": batch, "beside": beside}
            with company(beside):
                found.append({**cell, **measured(contenders, prompts, new, rounds)})
            print(json.dumps(found[-1]), flush=True)
            if output:
                Path(output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
