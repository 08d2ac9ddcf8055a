"""The loop's own time: how long a round takes apart from the forwards of its models, and how many calls and operations that is.

    python benchmarks/own_time.py [--tokens 96] [--repeats 25] [--output FILE.json]

The embedded pair decodes the same prompts again and again, with one thread: plainly and with 4 tokens drafted a round, 1 prompt and
8. Of each round the shortest time over all repeats counts, inside the models' forwards and as a whole: what other programs on the
machine add is in neither. It is the thread's processor time, which they lengthen least. Plain decoding of one prompt is compared
with transformers' ``generate`` and with bare forwards. Calls are those of Python functions, and operations those of torch, views
among them, outside of the models' forwards; their numbers are the same on every machine.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import functools
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer

from specframe import Pipeline
from specframe.contracts.roles import Observer

TEXT = "def add(a, b):\n    return a + b\n\nclass Stack:\n    def __init__(self):"
CASES: dict[str, dict[str, Any]] = {"plain": {"drafter": None}, "ragged": {"align": "ragged", "draft_length": 4}}
BATCHES = (1, 8)


class Clock(Observer):
    """The time of each round's end, and the time inside of the models' forwards until then."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []
        self.inside, self.inner = 0.0, 0

    def timed(self, kind: type) -> None:
        """Count the time inside of a class's forwards from now on."""
        usual = kind.forward  # type: ignore[attr-defined]

        @functools.wraps(usual)
        def forward(*given: Any, **named: Any) -> Any:
            self.inner, start = self.inner + 1, time.thread_time()
            try:
                return usual(*given, **named)
            finally:
                self.inner -= 1
                self.inside += 0 if self.inner else time.thread_time() - start

        kind.forward = forward  # type: ignore[attr-defined]

    def tick(self) -> None:
        """Note a round's end."""
        self.ends.append((time.thread_time(), self.inside))

    def round(self, report: Any) -> None:
        """Note a round's end."""
        self.tick()

    def rounds(self) -> list[tuple[float, float]]:
        """Return the seconds of each round but the first, and those inside of forwards, and forget all."""
        ends, self.ends = self.ends, []
        return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(ends)]


class Told(BaseStreamer):  # type: ignore[misc]
    """Notes each token of ``generate``."""

    def __init__(self, clock: Clock) -> None:
        self.put = lambda value: clock.tick()

    def end(self) -> None:
        """Do nothing."""


def ways(clock: Clock, tokens: int) -> dict[str, Callable[[], object]]:
    """Return what is timed, by its name."""
    found: dict[str, Callable[[], object]] = {}
    for name, how in CASES.items():
        for batch in BATCHES:
            pipe = Pipeline("tiny", batch_size=batch, observers=[clock], **how)
            ids = pipe.tokenizer(TEXT)["input_ids"]
            prompts = [ids[place:] + ids[:place] for place in range(batch)]
            found[f"{name}, batch {batch}"] = lambda pipe=pipe, prompts=prompts: list(pipe.generate(prompts, tokens))
    model, ids_1T = pipe.target_model, torch.tensor([ids])

    @torch.inference_mode()
    def generate() -> None:
        model.generate(
            ids_1T,
            attention_mask=torch.ones_like(ids_1T),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=Told(clock),
        )

    @torch.inference_mode()
    def bare() -> None:
        cache, fed = DynamicCache(config=model.config), ids_1T
        for _ in range(tokens):
            fed = model(input_ids=fed, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
            clock.tick()

    for kind in {type(pipe.target_model), type(pipe.draft_model)}:
        clock.timed(kind)
    return {"generate, batch 1": generate, "bare forwards, batch 1": bare, **found}


def calls(run: Callable[[], object], clock: Clock) -> float:
    """Return the Python calls of a round outside of forwards."""
    counted = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal counted
        counted += event == "call" and bool(clock.ends) and not clock.inner

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return counted / max(1, len(clock.rounds()))


class Operations(TorchDispatchMode):
    """Counts torch's operations outside of forwards, from the first round's end on."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.counted, self._clock = 0, clock

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation and execute it."""
        counts = self._clock.ends and not self._clock.inner and function.overloadpacket.__name__ not in UNSEEN
        self.counted += bool(counts)
        return function(*args, **kwargs or {})


UNSEEN = frozenset({"alias", "detach", "lift_fresh", "resolve_conj", "resolve_neg", "to"})
"""What torch reports only where somebody listens, as when a tensor becomes an array: nothing is computed."""


def operations(run: Callable[[], object], clock: Clock) -> float:
    """Return torch's operations of a round outside of forwards."""
    with Operations(clock) as told:
        run()
    return told.counted / max(1, len(clock.rounds()))


@click.command(help=__doc__.partition("\n")[0])
@click.option("--tokens", default=96, show_default=True, help="New tokens of each prompt.")
@click.option("--repeats", default=25, show_default=True, help="How often everything is decoded.")
@click.option("--output", default=None, help="Write the rows here as JSON.")
def main(tokens: int, repeats: int, output: str | None) -> None:
    """Time everything in turn, and print a table."""
    torch.set_num_threads(1)
    clock = Clock()
    runs, best = ways(clock, tokens), dict[str, list[tuple[float, float]]]()
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            run()
            rounds = clock.rounds()
            if repeat:  # the first one warms up
                pairs = zip(rounds, best.get(name, rounds), strict=True)
                best[name] = [(min(a, c), min(b, d)) for (a, b), (c, d) in pairs]
    figures = [figure(name, best[name], calls(run, clock), operations(run, clock)) for name, run in runs.items()]
    table = Table("", "µs a round", "in forwards", "own", "whole / forwards", "own Python calls", "own operations")
    for one in figures:
        table.add_row(*map(str, one.values()))
    Console(width=110).print(table)
    if output:
        Path(output).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def figure(name: str, rounds: list[tuple[float, float]], called: float, operated: float) -> dict[str, Any]:
    """Return the figures of one way to decode."""
    whole, inside = (1e6 * sum(part) / len(rounds) for part in zip(*rounds, strict=True))
    return {
        "way": name,
        "microseconds": round(whole),
        "in_forwards": round(inside),
        "own": round(whole - inside),
        "ratio": round(whole / inside, 3),
        "calls": round(called),
        "operations": round(operated),
    }


if __name__ == "__main__":
    main()
