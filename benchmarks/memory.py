"""Slots that KV backends reserve and those that hold tokens, over the rounds of a run; with a pair, bytes and speed.

    python benchmarks/memory.py [--prompts FILE] [--batch 8] [--new 128] [--stores slab,pool,paged]
    python benchmarks/memory.py --pair qwen3-8b --device cuda --dtype bfloat16 --stores "slab,slab;draft_dtype=int8,slab;dtype=fp8"
    python benchmarks/memory.py --pair embedded --stores "paged,paged;blocks=60,paged;blocks=60;host=1GB"

Options of a backend are separated by semicolons.

Prompts are of the lengths of Spec-Bench's first turns, as they come: five kinds of 80 and eight of 10, each log-normal with the
kind's median. With a file of questions, as Spec-Bench has them, the lengths are a quarter of the questions' characters. The target
is the fake of the test kit, which costs next to nothing, with its draft model; all sequences have as many new tokens.

*reserved* is what rows have, *held* what the store has allocated, each as a sum over all rounds, over the tokens that are cached;
*rows* are those of a round that decodes, on average, and *full* those of one before the last prompt is scheduled. With as many
blocks as a slab has slots, and a larger batch, that is what a backend gains in the same memory: --batch 64 --stores
"paged;block=16;blocks=890".

With ``--pair`` the models are those of ``grow.py``, and each backend decodes the same prompts once per round, in turn, after a run
that does not count. *bytes* are ``peak_kv_bytes``; *to first* are ratios to the first backend, the median over rounds; *fed*
counts the tokens that the target was fed, *same* the sequences whose tokens are those of the first backend.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import json
import math
import random
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import attrs
import click
from grow import PAIRS, load_pair
from specframe_testing import fakes, harness

from specframe import Pipeline
from specframe.contracts.cache import KVBackend
from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.models import loading
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
        store = self._inner.open(*given)
        self._opened = [*self._opened[-1:], getattr(store, "packed", store)]
        return store

    def of_drafts(self, own: Any) -> Any:
        """Return the backend of drafts' caches, whose stores are kept hold of, too."""
        if own is not self:
            return self._inner.of_drafts(own)  # type: ignore[attr-defined]
        drafts = Stores(self._inner.of_drafts(self._inner))  # type: ignore[attr-defined]
        drafts._opened = self._opened
        return drafts

    def rounded(self, states: Any) -> Any:
        """Return keys or values as forwards read them."""
        return self._inner.rounded(states)  # type: ignore[attr-defined]

    @property
    def target(self) -> Any:
        """The target's store."""
        return self._opened[0]


class Slots(Observer):
    """Adds up slots over rounds."""

    def __init__(self, stores: Stores) -> None:
        self._stores, self._tokens = stores, dict[int, int]()
        self.live = self.reserved = self.held = self.most = 0
        self.rows = list[tuple[int, int]]()
        """Of each round that decodes, and how many sequences have been scheduled by then."""
        self._taken = 0

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
        self._taken = max(self._taken, *(one.request.index + 1 for one in report.sequences))
        if not report.prefill:
            self.rows.append((len(report.sequences), self._taken))
        for one in report.finished:
            del self._tokens[one.request.index]


@click.command(help=__doc__.partition("\n")[0])
@click.option("--prompts", default=None, help="A file of questions as Spec-Bench has them.")
@click.option("--batch", default=8, show_default=True)
@click.option("--new", default=128, show_default=True, help="Tokens of each row.")
@click.option("--every", default=1, show_default=True, help="Take one question in every N.")
@click.option("--stores", default="slab,pool,paged;block=16,paged;block=64", show_default=True)
@click.option("--pair", type=click.Choice(list(PAIRS)), default=None, help="Measure bytes and speed with this pair.")
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Timed runs of each backend, with a pair.")
def main(
    prompts: str | None,
    batch: int,
    new: int,
    every: int,
    stores: str,
    pair: str | None,
    device: str,
    dtype: str,
    rounds: int,
) -> None:
    """Decode with each store and print a table."""
    lengths = (read(Path(prompts)) if prompts else synthetic())[::every]
    if pair:
        compare(pair, device, dtype, lengths, batch, new, stores.split(","), rounds)
        return
    target = fakes.fake_target(context=4096)
    asked = harness.requests(harness.random_prompts(lengths, 61), new)
    click.echo(
        f"{len(lengths)} prompts of {sum(lengths) / len(lengths):.0f} tokens, at most {max(lengths)}; batch {batch}"
    )
    click.echo(f"{'KV backend':<20}{'reserved':>10}{'held':>10}{'slots held at most':>20}{'rows':>7}{'full':>7}")
    for name in stores.split(","):
        kv = Stores(registry().make("KV backend", name.replace(";", ",")))
        slots = Slots(kv)
        how: Any = {"batch_size": batch, "draft_length": 5, "observers": [slots]}
        harness.decode(harness.pipeline(target, fakes.fake_draft(target), kv=kv, **how), asked)
        reserved, held = slots.reserved / slots.live, slots.held / slots.live
        rows = statistics.mean(rows for rows, _ in slots.rows)
        full = statistics.mean(rows for rows, taken in slots.rows if taken < len(asked))
        click.echo(
            f"{name.replace(';', ','):<20}{reserved:>10.2f}{held:>10.2f}{slots.most:>20,}{rows:>7.1f}{full:>7.1f}"
        )


@attrs.define(eq=False)
class Fed(Observer):
    """Counts the tokens that the target is fed."""

    tokens: int = 0

    def fed(self, model: str, tokens: int, computed: int) -> None:
        """Count those of a forward."""
        self.tokens += tokens if model == "target" else 0


def compare(
    pair: str, device: str, dtype: str, lengths: list[int], batch: int, new: int, stores: list[str], rounds: int
) -> None:
    """Decode with each store in turn and print bytes and speed."""
    place = loading.pick_device(device)
    target, draft, _ = load_pair(pair, place, loading.pick_dtype(dtype, place))
    asked = harness.requests(harness.random_prompts(lengths, target.config.vocab_size), new)
    pipes: dict[str, tuple[Pipeline, Fed]] = {}
    for name in stores:
        fed = Fed()
        how: dict[str, Any] = {"kv": name.replace(";", ","), "batch_size": batch, "draft_length": 4, "observers": [fed]}
        pipes[name] = Pipeline(target, draft, accept="greedy", generation_config=None, **how), fed
    seconds = {name: list[float]() for name in stores}
    found = {name: list[list[int]]() for name in stores}
    for turn in range(rounds + 1):
        for name, (pipe, fed) in pipes.items():
            fed.tokens, began = 0, time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sequences that be preempted
                found[name] = [one.token_ids for one in harness.decode(pipe, asked)]
            if turn:
                seconds[name].append(time.perf_counter() - began)
    click.echo(f"{len(asked)} prompts, batch {batch}, {new} new tokens, on {place} in {target.dtype}")
    click.echo(
        f"{'KV backend':<44}{'bytes':>15}{'to first':>10}{'tokens/s':>10}{'to first':>10}{'accepted':>10}{'fed':>9}{'same':>6}"
    )
    first = stores[0]
    for name, (pipe, fed) in pipes.items():
        tokens, report = sum(map(len, found[name])), pipe.report
        ratio = statistics.median(a / b for a, b in zip(seconds[first], seconds[name], strict=True))
        size = report.peak_kv_bytes / pipes[first][0].report.peak_kv_bytes
        rate = tokens / statistics.median(seconds[name])
        same = sum(a == b for a, b in zip(found[first], found[name], strict=True))
        click.echo(
            f"{name.replace(';', ','):<44}{report.peak_kv_bytes:>15,}{size:>10.2f}{rate:>10.1f}{ratio:>10.2f}"
            f"{report.mean_acceptance_length:>10.2f}{fed.tokens:>9,}{same:>6}"
        )


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
