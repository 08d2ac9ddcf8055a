"""What `goodput` makes of a pair in its first, second and third run, compared with plain decoding and every fixed draft length.

    python benchmarks/policies.py [--pair embedded|cpu] [--batches 1,8] [--prompts FILE] [--lengths 1,2,3,4,5,6] [--clock cpu]

Each round makes a new pipeline with `goodput`, and decodes the same prompts with it three times, with plain decoding and with each
fixed draft length, in turn. All pipelines are warmed up.

A run's seconds are the sum of its rounds' usual seconds. A kind of round is its number of rows, its draft length, and whether the
drafter has to catch up after a round without a draft; its usual seconds are the median over all contenders. A machine whose pace
changes then moves every contender alike, and a contender is measured by the rounds that it chose. The seconds that `goodput` itself
takes come on top. Rounds that read prompts are the same for all contenders and are left out.
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
from specframe.contracts.drafts import Budget
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.contracts.round import Batch

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
    help="The seconds that the policy and the figures depend on; cpu: processor time of one thread, for a machine others use too.",
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
        runs = measured(
            lambda **how: Pipeline(target, tokenizer=tokenizer, batch_size=batch, **how),  # noqa: B023 - called at once
            draft,
            [int(one) for one in lengths.split(",")],
            prompts,
            options["new"],
            rounds,
            CLOCKS[clock],
        )
        found.append({"pair": pair, "batch": batch, "prompts": len(prompts), **summary(runs)})
        print(line(found[-1]), flush=True)
    if output:
        about = {
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "clock": clock,
        }
        Path(output).write_text(json.dumps(about | {"batches": found}, indent=1) + "\n")


Clock = Callable[[], float]
Kind = tuple[int, int, int, bool]
"""Rows of a round, the draft's forwards, the tokens that the target computed, and whether it is the first with a draft after one
without."""


@attrs.define
class Run:
    """The rounds of one run: what each was like and took, the tokens of all, and the seconds of the policy itself."""

    rounds: list[tuple[Kind, float]]
    tokens: int
    own: float = 0.0


class Rounds(Observer):
    """Notes the kind and the seconds of every round that reads no prompt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start a run."""
        self.found: list[tuple[Kind, float]] = []
        self._mark, self._drafted, self._forwards = self._clock(), True, 0

    def forward(self, model: str, rows: int, tokens: int) -> None:
        """Count the draft's forwards."""
        self._forwards += model == "draft"

    def round(self, report: RoundReport) -> None:
        """Note a round."""
        drafts, mark = self._forwards, self._clock()
        if not report.prefill:
            kind = len(report.sequences), drafts, report.computed, bool(drafts and not self._drafted)
            self.found.append((kind, mark - self._mark))
            self._drafted = bool(drafts)
        self._mark, self._forwards = mark, 0


class Timed(Goodput):
    """`goodput`, and the seconds it takes itself."""

    own = 0.0

    def budget(self, batch: Batch) -> Budget:
        """Choose, and note the seconds."""
        started = self.clock()
        budget = super().budget(batch)
        self.own += self.clock() - started
        return budget

    def observe(self, report: RoundReport) -> None:
        """Learn, and note the seconds."""
        started = self.clock()
        super().observe(report)
        self.own += self.clock() - started


class Contender:
    """A pipeline whose rounds are noted."""

    def __init__(self, make: Any, clock: Clock, prompts: Any, **how: Any) -> None:
        self._watcher = Rounds(clock)
        self._pipe = make(observers=[self._watcher], **how)
        self.run(prompts[:2], 4)

    def teach(self, policy: Timed) -> None:
        """Take a policy that has seen nothing: its first run pays for learning, and not for warming up."""
        self._pipe.parts.composition = attrs.evolve(self._pipe.composition, policy=policy)

    def run(self, prompts: Any, new: int) -> Run:
        """Decode the prompts once."""
        self._watcher.begin()
        tokens = sum(len(result.token_ids) for result in self._pipe.generate(prompts, new))
        policy = self._pipe.composition.policy
        own, policy.own = getattr(policy, "own", 0.0), 0.0
        return Run(self._watcher.found, tokens, own)


def measured(
    make: Any, draft: Any, lengths: list[int], prompts: Any, new: int, rounds: int, clock: Clock
) -> dict[str, list[Run]]:
    """Return the runs of every contender, one per round."""
    fixed = {"plain": Contender(make, clock, prompts, drafter=None)}
    fixed |= {f"K={k}": Contender(make, clock, prompts, drafter=draft, draft_length=k) for k in lengths}
    found: dict[str, list[Run]] = {}
    for _ in range(rounds):
        learning = Contender(make, clock, prompts, drafter=draft, draft_length=4)
        policy = Timed()
        policy.clock = clock
        learning.teach(policy)
        names = list(fixed)
        for number in range(RUNS):
            found.setdefault(f"run {number + 1}", []).append(learning.run(prompts, new))
            for name in names[number::RUNS]:
                found.setdefault(name, []).append(fixed[name].run(prompts, new))
    return found


def usual(runs: dict[str, list[Run]]) -> dict[Kind, float]:
    """Return the median seconds of every kind of round, over all contenders."""
    seconds: dict[Kind, list[float]] = {}
    for run in (run for several in runs.values() for run in several):
        for kind, taken in run.rounds:
            seconds.setdefault(kind, []).append(taken)
    return {kind: statistics.median(taken) for kind, taken in seconds.items()}


def summary(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Return the best of the others, and the ratio of each run of `goodput` to it: median over rounds, and every round."""
    seconds = usual(runs)
    rates = {
        name: [run.tokens / (run.own + sum(seconds[kind] for kind, _ in run.rounds)) for run in several]
        for name, several in runs.items()
    }
    medians = {name: statistics.median(several) for name, several in rates.items()}
    best = max((name for name in rates if not name.startswith("run")), key=medians.__getitem__)
    learnt = [name for name in rates if name.startswith("run")]
    return {
        "best": best,
        "best_to_plain": medians[best] / medians["plain"],
        "medians": medians,
        "to_best": {name: medians[name] / medians[best] for name in learnt},
        "by_round": {name: [rate / medians[best] for rate in rates[name]] for name in learnt},
        "own_share": statistics.median(
            run.own / (run.own + sum(seconds[kind] for kind, _ in run.rounds)) for name in learnt for run in runs[name]
        ),
    }


def line(found: dict[str, Any]) -> str:
    """Return one batch size's figures as text."""
    runs = ", ".join(
        f"{name} {ratio:.3f} ({' '.join(f'{one:.2f}' for one in found['by_round'][name])})"
        for name, ratio in found["to_best"].items()
    )
    medians = " ".join(f"{name} {rate:.0f}" for name, rate in found["medians"].items())
    best = f"batch {found['batch']}: best {found['best']} ({found['best_to_plain']:.2f} of plain)"
    return f"{best}; {runs}; policy {found['own_share']:.1%}; {medians}"


if __name__ == "__main__":
    main()
