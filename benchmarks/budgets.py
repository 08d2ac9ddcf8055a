"""Draft-length policies compared with plain decoding and fixed lengths, by batch size.

    python benchmarks/budgets.py [--pair embedded|cpu|qwen3-8b] [--device cpu|cuda] [--dtype float32] [--batches 1,4,8,32]
        [--kinds spec,code,mixed] [--repeats 5] [--prompts FILE] [--longest 128] [--drafter model|prompt-lookup|suffix]
        [--policy goodput] [--beside] [--unequal] [--layers eager|compiled]

*Spec*: the prompts of FILE. *Code*: held-out library source. *Mixed*: half of the prompts are files that the target goes on to
copy, half are texts without a repetition of their own. All contenders decode the same prompts side by side, round after round:
whoever has the fewest tokens decodes its next round, so that a change of the machine's pace meets all of them alike. In each repeat
a policy has learnt nothing when it begins, and one of the same kind has decoded the prompts once before, which is its second run.
Figures are medians over repeats of tokens per second by wall-clock time, prompts included, as ratios to plain decoding of the same
repeat, with the least and the greatest; the share of its seconds that a policy takes itself; and draft tokens accepted for each one
verified. With *--beside* a second program takes a core for a tenth of each second. With *--unequal* prompts have from a fifth to
nine fifths of the new tokens, so that rows end at unlike times whatever decodes them.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
from side_by_side import side_by_side, unequal_ends

from specframe import Pipeline
from specframe.devices.kinds import of
from specframe.models.loading import pick_device, pick_dtype
from specframe.plugins.registry import registry

POLICIES = ("explicit", "implicit", "goodput,confidence=off", "goodput")
AGAIN = " again"
"""Ends the name of a policy's second run."""
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
    """Have a second program run during what is measured, if it is wanted."""
    if not wanted:
        yield
        return
    program = subprocess.Popen([sys.executable, "-c", SECOND_PROGRAM])
    try:
        yield
    finally:
        program.kill()


def asked(kind: str, file: str | None, longest: int, tokenizer: Any, count: int) -> list[list[int]]:
    """Return ``count`` prompts of a kind; those of a file and held-out texts have at most ``longest`` tokens."""
    if kind == "mixed":
        found = workloads(tokenizer)["mixed"]
        return [found[number % len(found)] for number in range(count)]
    if kind == "code":
        return held_out_prompts(tokenizer, count, longest)
    return read_prompts({"file": file, "longest": longest}, tokenizer, count)


class Contender:
    """A pipeline of a draft length or policy."""

    def __init__(self, target: Any, draft: Any, length: str, batch: int, layers: str = "eager") -> None:
        name = length.removesuffix(AGAIN)
        self._policy, self._second = name if name in POLICIES else None, name != length
        how = {"drafter": None} if name == "plain" else {"drafter": draft, "draft_length": name}
        self.pipe = Pipeline(target, batch_size=batch, layers=layers, generation_config=None, **how)
        self.own = 0.0
        """Seconds that the policy took."""

    def begin(self, prompts: Any, new: int, sampling: Any = None) -> None:
        """Have the policy learn nothing so far, or what it learns as it decodes the prompts once."""
        if self._policy is None:
            return
        made: Any = registry().make("draft-length policy", self._policy)
        made.budget, made.observe = self._timed(made.budget), self._timed(made.observe)
        self.pipe.parts.composition = attrs.evolve(self.pipe.composition, policy=made)
        if self._second:
            list(self.pipe.generate(prompts, new, sampling=sampling))
        self.own = 0.0

    @property
    def accepted(self) -> float:
        """Draft tokens accepted for each that was verified."""
        return self.pipe.report.draft_acceptance_rate

    def _timed(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a policy's function that adds its seconds to the policy's own."""

        def called(about: Any) -> Any:
            started = time.perf_counter()
            returned = function(about)
            self.own += time.perf_counter() - started
            return returned

        return called


def measured(
    contenders: dict[str, Contender],
    prompts: Any,
    new: int,
    repeats: int,
    alike: bool,
    recorded: bool,
    unequal: bool = False,
) -> dict[str, Any]:
    """Return each contender's ratios to plain decoding, and its tokens per second.

    Args:
        contenders: by name.
        prompts, new: what all decode.
        repeats: how often.
        alike: whether all are to have the same tokens.
        recorded: whether forwards are recorded: the warming up then takes all prompts, for all shapes.
        unequal: whether prompts have new tokens of unequal number.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    shares: dict[str, list[float]] = {name: [] for name in contenders if name.removesuffix(AGAIN) in POLICIES}
    pipes = {name: contender.pipe for name, contender in contenders.items()}
    for number in range(repeats + 1):  # the first one warms up, by a few prompts
        these = prompts if number or recorded else prompts[: len(prompts) // 4]
        ends = unequal_ends(len(these), new) if unequal else None
        for contender in contenders.values():
            contender.begin(these, new, ends)
        for name, decoded in side_by_side(pipes, these, new, alike=alike, sampling=ends).items() if number else ():
            rates[name].append(decoded.rate)
            if name in shares:
                shares[name].append(contenders[name].own / decoded.seconds)
    plain = rates["plain"]
    ratios = {name: [one / of for one, of in zip(found, plain, strict=True)] for name, found in rates.items()}
    fixed = [name for name in ratios if name not in shares]
    best = [max(ratios[name][number] for name in fixed) for number in range(repeats)]
    median = {name: statistics.median(found) for name, found in ratios.items()}
    leader = max(fixed, key=median.__getitem__)
    return {
        "tokens_per_second": {name: round(statistics.median(found), 1) for name, found in rates.items()},
        "to_plain": {name: spread(found) for name, found in ratios.items()},
        "best_fixed": leader,
        "to_best_fixed": {
            name: spread([one / of for one, of in zip(ratios[name], ratios[leader], strict=True)]) for name in shares
        },
        "best_of_each_repeat": round(statistics.median(best), 3),
        "own_share": {name: round(statistics.median(found), 4) for name, found in shares.items()},
        "accepted_per_verified": {
            name: round(contender.accepted, 3) for name, contender in contenders.items() if name != "plain"
        },
    }


def spread(found: list[float]) -> list[float]:
    """Return the median, the least and the greatest."""
    return [round(one, 3) for one in (statistics.median(found), min(found), max(found))]


@click.command(help=__doc__.partition("\n")[0])
@click.option("--pair", type=click.Choice(list(PAIRS)), default="embedded", show_default=True)
@click.option("--batches", default="1,4,8,32", show_default=True)
@click.option("--kinds", default="code,mixed", show_default=True)
@click.option("--lengths", default="1,2,3,4,6", show_default=True, help="Fixed draft lengths.")
@click.option("--count", default=24, show_default=True, help="Prompts; at least twice the batch.")
@click.option("--new", default=64, show_default=True, help="New tokens per prompt.")
@click.option("--repeats", default=5, show_default=True)
@click.option(
    "--drafter", default="model", show_default=True, help="The drafter; of the pair's draft model by default."
)
@click.option("--prompts", "file", default=None, help="The prompt file of the kind spec.")
@click.option(
    "--longest", default=128, show_default=True, help="Tokens of such a prompt, and of held-out pieces, at most."
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICIES),
    multiple=True,
    help="A policy; all by default that the drafter knows.",
)
@click.option("--beside", is_flag=True, help="A second program takes a core for a tenth of each second.")
@click.option("--unequal", is_flag=True, help="Prompts have new tokens of unequal number, --new on average.")
@click.option("--layers", default="eager", show_default=True, help="How decoder layers are run.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--output", default=None, help="A JSON file for all figures.")
def main(
    pair: str,
    batches: str,
    kinds: str,
    lengths: str,
    count: int,
    new: int,
    repeats: int,
    drafter: str,
    file: str | None,
    longest: int,
    policies: tuple[str, ...],
    beside: bool,
    unequal: bool,
    layers: str,
    device: str,
    dtype: str,
    output: str | None,
) -> None:
    """Measure every cell and print a line for each."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    on = pick_device(device)
    precision = pick_dtype(dtype, on)
    target, draft, tokenizer = load_pair(pair, on, precision)
    alike, recorded = precision == torch.float32, of(on).recording is not None
    found = []
    for kind in kinds.split(","):
        for batch in map(int, batches.split(",")):
            prompts = asked(kind, file, longest, tokenizer, max(count, 2 * batch))
            tried = policies or (POLICIES if drafter == "model" else LOOKING)
            names = ["plain", *lengths.split(","), *tried, *(name + AGAIN for name in tried)]
            by = draft if drafter == "model" else drafter
            contenders = {name: Contender(target, by, name, batch, layers) for name in names}
            cell = {"pair": pair, "device": on.type, "drafter": drafter, "kind": kind, "batch": batch, "beside": beside}
            if layers != "eager":
                cell["layers"] = layers
            with company(beside):
                figures = measured(contenders, prompts, new, repeats, alike, recorded, unequal)
            found.append({**cell, "unequal": unequal, **figures})
            print(json.dumps(found[-1]), flush=True)
            if output:
                Path(output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
