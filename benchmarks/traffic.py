"""Waits of the host and copies to the device, per round and scheme.

    python benchmarks/traffic.py [--device sim|cuda] [--schemes ragged,eqspec] [--output FILE.json]

On the simulated accelerator of the test kit both are counted exactly, with their places in the code. On CUDA, waits are those that
torch's sync debug mode reports; copies are not counted there. Models are small: neither depends on their size. Then each scheme
decodes once more while every wait but the round's one is an error, and its tokens are compared with the reference decoder's. Exits
with 1 when a scheme waits more than once in a round, raises an error or gives other tokens.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import contextlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import torch
from rich.console import Console
from rich.table import Table
from specframe_testing import harness, zoo

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.devices import kinds
from specframe.models.loading import pick_device

SCHEMES: dict[str, dict[str, Any]] = {
    "ragged": {},
    "ragged, recorded": {"graphs": "on"},
    "ragged, continuous": {"schedule": "continuous"},
    "ragged, prompt-lookup": {"drafter": "prompt-lookup"},
    "ragged, goodput": {"draft_length": "goodput"},
    "ragged, gumbel": {"accept": "gumbel"},
    "ragged, rejection": {"accept": "rejection"},
    "plain": {"drafter": "none"},
    "eqspec": {"align": "eqspec"},
    "eqspec, slab": {"align": "eqspec", "kv": "slab"},
    "exspec": {"align": "exspec"},
    "rollback": {"align": "rollback"},
    "padding": {"align": "padding"},
    "masking": {"align": "masking"},
}


@attrs.define
class Round:
    """The traffic of one round."""

    waits: int
    copies: int
    steady: bool
    """Whether its rows are those of the round before."""


class Meter(Observer):
    """Takes the traffic of each round from a counter of events."""

    def __init__(self, events: Counter[Any]) -> None:
        self.events, self.rounds = events, list[Round]()
        self.places: Counter[str] = Counter()
        self._before: RoundReport | None = None

    def round(self, report: RoundReport) -> None:
        """Note a round."""
        before, self._before = self._before, report
        same = before is not None and not before.finished and before.sequences == report.sequences
        kinds = Counter[str]()
        for event, count in self.events.items():
            kinds[event.kind] += count
            if event.kind in ("wait", "copy"):
                self.places[str(event)] += count
        self.events.clear()
        self.rounds.append(Round(kinds["wait"], kinds["copy"], bool(same and not report.prefill)))


@attrs.frozen
class Event:
    """One thing that torch reports on CUDA."""

    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}"


@contextlib.contextmanager
def strict(device: torch.device) -> Iterator[None]:
    """Make every wait inside the block an error, but that of a round's transfer."""
    sent = kinds.sent_to_host

    def allowed(parts: Any) -> Any:
        arrived = sent(parts)

        def read() -> Any:
            with refusing(device, False):
                return arrived()

        return read

    kinds.sent_to_host = allowed
    try:
        with refusing(device, True):
            yield
    finally:
        kinds.sent_to_host = sent


@contextlib.contextmanager
def refusing(device: torch.device, refuse: bool) -> Iterator[None]:
    """Make waits errors inside the block, or let them be."""
    if device.type == "sim":
        from specframe_testing.device.counters import COUNTERS, WAIT

        with COUNTERS.refused(WAIT, where="here") if refuse else COUNTERS.allowed():
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error" if refuse else "default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextlib.contextmanager
def counting(device: torch.device) -> Iterator[Counter[Any]]:
    """Hand out a counter of the events inside the block."""
    if device.type == "sim":
        from specframe_testing.device.counters import COUNTERS

        with COUNTERS.watched() as events:
            yield events
        return
    events = Counter[Any]()

    def note(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        if "synchroniz" in str(message):
            events[Event("wait", f"{filename}:{lineno}")] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield events
        finally:
            torch.cuda.set_sync_debug_mode("default")


def measure(scheme: str, device: torch.device) -> dict[str, Any]:
    """Return the traffic of a scheme, in the second run of a pipeline: in the first, models are tried out."""
    target = zoo.build("qwen3")
    draft = zoo.good_draft(target)
    asked = harness.requests(harness.random_prompts((5, 1, 17, 9, 3, 8), zoo.VOCABULARY, seed=1), 24)
    wanted = [harness.expected(target, request)[0] for request in asked]
    row: dict[str, Any] = {"scheme": scheme, "fault": None}
    with counting(device) as events:
        meter = Meter(events)
        options = {"batch_size": 3, "draft_length": 3, **SCHEMES[scheme]}
        pair = target.to(device), None if options.get("drafter") == "none" else draft.to(device)
        pipe = harness.pipeline(*pair, observers=[meter], **options)
        for _ in range(2):
            meter.rounds.clear()
            meter.places.clear()
            found = harness.decode(pipe, asked)
    row |= {**summary(meter.rounds), "places": dict(meter.places.most_common(12))}
    try:
        with strict(device):
            found = harness.decode(pipe, asked)
    except Exception as error:  # a wait that is refused is an error of any class, in the words of whoever caught it
        row["fault"] = f"{type(error).__name__}: {error}"[:300]
    if pipe.composition.lossless and [result.token_ids for result in found] != wanted:
        row["fault"] = row["fault"] or "its tokens are not the reference decoder's"
    return row


def summary(rounds: list[Round]) -> dict[str, float]:
    """Return the figures of a run's rounds."""
    steady = [one for one in rounds if one.steady]
    return {
        "rounds": len(rounds),
        "waits": sum(one.waits for one in rounds) / len(rounds),
        "most_waits": max(one.waits for one in rounds),
        "copies": sum(one.copies for one in rounds) / len(rounds),
        "steady_copies": sum(one.copies for one in steady) / max(1, len(steady)),
    }


@click.command(help=__doc__.partition("\n")[0])
@click.option("--device", default="sim", show_default=True)
@click.option("--schemes", default=None, help="Separated by semicolons.  [default: all]")
@click.option("--places", is_flag=True, help="Print where in the code things happen.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(device: str, schemes: str | None, places: bool, output: str | None) -> None:
    """Measure, print a table, and exit with 1 when a scheme waits more than once in a round."""
    on, rows = pick_device(device), []
    for scheme in schemes.split(";") if schemes else SCHEMES:
        rows.append(measure(scheme, on))
        if output:
            Path(output).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        if places:
            print(scheme, *rows[-1]["places"].items(), sep="\n  ")
    show(rows)
    sys.exit(any(row["most_waits"] > 1 or row["fault"] for row in rows))


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line per scheme."""
    table = Table(
        "scheme", "waits a round", "most", "copies a round", "in steady rounds", "fault", title="host and device"
    )
    for row in rows:
        means = [f"{row[name]:.1f}" for name in ("waits", "copies", "steady_copies")]
        table.add_row(row["scheme"], means[0], str(row["most_waits"]), *means[1:], row["fault"] or "")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
