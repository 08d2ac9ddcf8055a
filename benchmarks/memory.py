"""Slots that KV backends reserve, beside those that hold tokens, over the rounds of a run.

    python benchmarks/memory.py [--prompts FILE] [--batch 8] [--new 128] [--stores slab,pool,paged]

Prompts are of the lengths of Spec-Bench's first turns, as they come: five kinds of 80 and eight of 10, each log-normal with the
kind's median. With a file of questions, as Spec-Bench has them, the lengths are a quarter of the questions' characters. The target
is the fake of the test kit, which costs next to nothing, with its draft model; all sequences have as many new tokens.

*reserved* is what rows have, *held* what the store has allocated, each as a sum over all rounds, over the tokens that are cached.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import math
import random
from pathlib import Path
from typing import Any

import click
from specframe_testing import fakes, harness

from specframe.contracts.cache import KVBackend
from specframe.contracts.reports import RoundReport
from specframe.observe.watch import Watcher
from specframe.plugins.registry import registry

KINDS = {"first turns": [50, 67, 42, 26, 30, 223, 53, 27], "others": [39, 747, 11, 53, 769]}
"""The median length of each kind of question: ten each of the first ones, then eighty each."""

SPREAD = 0.35
"""The deviation of the logarithm of lengths within a kind."""

LONGEST = 1711


class Stores:
    """A KV backend that keeps hold of the stores that it opened last: the target's, and the draft model's after it."""

    def __init__(self, inner: KVBackend) -> None:
        self._inner, self._opened = inner, list[Any]()
        self.needs, self.offers = inner.needs, inner.offers

    def open(self, *given: Any) -> Any:
        """Return a store."""
        self._opened = [*self._opened[-1:], self._inner.open(*given)]
        return self._opened[-1]

    @property
    def target(self) -> Any:
        """The target's store."""
        return self._opened[0]


class Slots(Watcher):
    """Adds up slots over rounds."""

    def __init__(self, stores: Stores) -> None:
        self._stores, self._tokens = stores, dict[int, int]()
        self.live = self.reserved = self.held = self.most = 0

    def round(self, report: RoundReport) -> None:
        """Count the slots of a round."""
        store = self._stores.target
        pooled = hasattr(store, "reserved")
        held = store.memory.count if pooled else store.rows * store.slots
        ends = report.lengths + report.gained
        self._tokens |= {one.request.index: end for one, end in zip(report.sequences, ends.tolist(), strict=True)}
        self.live += sum(self._tokens.values())
        self.reserved += store.reserved() if pooled else held
        self.held += held
        self.most = max(self.most, held)
        for one in report.finished:
            del self._tokens[one.request.index]


@click.command(help=__doc__.partition("\n")[0])
@click.option("--prompts", default=None, help="A file of questions as Spec-Bench has them.")
@click.option("--batch", default=8, show_default=True)
@click.option("--new", default=128, show_default=True, help="Tokens of each row.")
@click.option("--every", default=1, show_default=True, help="Take one question of so many.")
@click.option("--stores", default="slab,pool,paged;block=16,paged;block=64", show_default=True)
def main(prompts: str | None, batch: int, new: int, every: int, stores: str) -> None:
    """Decode with each store and print a table."""
    lengths = (read(Path(prompts)) if prompts else synthetic())[::every]
    target = fakes.fake_target(context=4096)
    asked = harness.requests(harness.random_prompts(lengths, 61), new)
    click.echo(
        f"{len(lengths)} prompts of {sum(lengths) / len(lengths):.0f} tokens, at most {max(lengths)}; batch {batch}"
    )
    click.echo(f"{'KV backend':<20}{'reserved':>10}{'held':>10}{'slots held at most':>20}")
    for name in stores.split(","):
        kv = Stores(registry().make("KV backend", name.replace(";", ",")))
        slots = Slots(kv)
        how: Any = {"batch_size": batch, "draft_length": 5, "observers": [slots]}
        harness.decode(harness.pipeline(target, fakes.fake_draft(target), kv=kv, **how), asked)
        ratios = slots.reserved / slots.live, slots.held / slots.live
        click.echo(f"{name.replace(';', ','):<20}{ratios[0]:>10.2f}{ratios[1]:>10.2f}{slots.most:>20,}")


def synthetic() -> list[int]:
    """Return lengths like those of Spec-Bench's first turns, in its order."""
    choose = random.Random(0)
    medians = [one for one in KINDS["first turns"] for _ in range(10)] + [
        one for one in KINDS["others"] for _ in range(80)
    ]
    return [min(LONGEST, max(4, round(choose.lognormvariate(math.log(median), SPREAD)))) for median in medians]


def read(path: Path) -> list[int]:
    """Return the lengths of a file's first turns."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [len(json.loads(line)["turns"][0]) // 4 for line in lines if line]


if __name__ == "__main__":
    main()
