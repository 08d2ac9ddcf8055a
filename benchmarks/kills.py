"""Whether a run that is killed at any moment is completed by --resume: every id once, with the ids of a run that was left alone.

    python benchmarks/kills.py [--executor workers,count=2] [--victims driver,worker] [--times 10] [--output FILE]
    python benchmarks/kills.py --executor ray,workers=2 --victims driver,worker,raylet

A run of the embedded pair over short prompts, with a temperature and a seed, gets `kill -9`. It hits the first process (driver),
one of those that decode or write (worker), or Ray's own process of the machine (raylet). Moments are drawn over the whole run:
three tenths while it begins, six tenths while it decodes and writes, one tenth when all results are written. `--resume` is called
at once after that, and again as long as it ends badly. The first of these runs is killed as well. The results
are compared with those of one process, and the processes of the killed run have to be gone. `--executor ray` needs an environment
with `specframe-ray`. Exits with 1 when a result is lost, comes twice or has other ids, when a command hangs or prints a traceback,
and when a process stays.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - before specframe: finds the plugins of a checkout that is not installed

import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import attrs
import click
from processes import began, descendants, gone, kill, words
from rich.console import Console
from rich.table import Table
from runs import ROWS, Plan, Running, prompts

KINDS = ("driver", "worker", "raylet")
BEGINS, DECODES = 0.3, 0.9
"""A moment is a number from 0 to 1. Below the first of these the run begins, below the second it decodes, then all is written."""
TRIES = 5
"""Runs with --resume at most."""
Ids = dict[int, list[int]]
"""Token ids by the prompt's number."""


@attrs.frozen
class Pace:
    """How long the parts of a run take that is left alone, in seconds."""

    first: float
    """Until the first rows are written."""
    decoding: float
    last: float
    """From the last rows to the end of the command."""

    @classmethod
    def of(cls, plan: Plan) -> tuple[Self, tuple[int | str, str]]:
        """Run and measure; return how the run ended, too."""
        running = Running(plan, "alone")
        running.until_written(1)
        first = running.seconds
        running.until_written(plan.count)
        written = running.seconds
        ended = running.end()
        return cls(first, written - first, running.seconds - written), ended

    def wait(self, running: Running, moment: float, draw: random.Random, plan: Plan) -> bool:
        """Wait for a moment of a run; return whether it still runs then."""
        if moment < BEGINS:
            return running.pause(moment / BEGINS * self.first, unless_written=True)
        if moment < DECODES:
            before = running.before
            wanted = before + max(1, int((moment - BEGINS) / (DECODES - BEGINS) * (plan.count - before)))
            delay = draw.random() * self.decoding * (ROWS if plan.ray else 1) / plan.count
            return running.until_written(wanted) and running.pause(delay)
        return running.until_written(plan.count) and running.pause(draw.random() * 0.8 * self.last)


def victims(kind: str, process: int) -> list[int]:
    """Return the processes of a kind that belong to a command."""
    if kind == "driver":
        return [process]
    below = descendants(process)
    if kind == "raylet":
        return [one for one in below if words(one)[0].endswith("raylet")]
    named = ((one, words(one)) for one in below)
    return [
        one
        for one, line in named
        if "--multiprocessing-fork" in line or (line[0].startswith("ray::") and "IDLE" not in line[0])
    ]


def killed(plan: Plan, running: Running, kind: str, moment: float, pace: Pace, draw: random.Random) -> dict[str, Any]:
    """Kill a process of a command at a moment; return what was killed, and nothing if the command had ended before."""
    there: list[int] = []
    if pace.wait(running, moment, draw, plan):
        while not running.over and not (there := victims(kind, running.process.pid)):
            time.sleep(0.01)
    if not there:
        return {}
    victim = draw.choice(there)
    name, own = words(victim)[0], {one: began(one) for one in descendants(running.process.pid)}
    what = {"seconds": round(running.seconds, 2), "written": running.written, "of": name.rpartition("/")[2][:60]}
    kill(victim)
    return what | {"own": own}


def cycle(plan: Plan, kind: str, moments: list[float], pace: Pace, draw: random.Random) -> dict[str, Any]:
    """Run, kill, resume and compare; return what came of it.

    A run that ends badly by the kill is completed, and the first of the runs that do so is killed as well.

    Args:
        moments: those that are left. Each kill takes the last one; it is put back, drawn anew, where a run had ended before.
    """
    output = plan.output("killed")
    shutil.rmtree(output, ignore_errors=True)
    output.unlink(missing_ok=True)
    found: dict[str, Any] = {"victim": kind, "runs": [], "told": []}
    own: dict[int, str] = {}
    kills, status = 0, 1
    while status != 0 and len(found["runs"]) < TRIES:
        running = Running(plan, "killed", resume=output.exists())
        what: dict[str, Any] = {}
        if moments and kills < 2:
            moment = moments.pop()
            what = killed(plan, running, kind, moment, pace, draw)
            if what:
                kills += 1
                own |= what.pop("own")
                what = {"moment": round(moment, 3)} | what
            else:
                moments.append(draw.random() * DECODES)
        before = time.monotonic()
        status, told = running.end()
        found["runs"].append({"status": status, "seconds": round(running.seconds, 1), "killed": what})
        if what:
            found["runs"][-1]["ended_after"] = round(time.monotonic() - before, 1)
        found["told"] += [told] if told else []
    return found | {"stay": gone(own), "complete": status == 0}


def faults(found: dict[str, Any], results: list[tuple[int, list[int]]], expected: Ids) -> list[str]:
    """Return what is wrong after a cycle."""
    counts = Counter(number for number, _ in results)
    return [
        name
        for name, true in {
            "not completed": not found["complete"],
            "lost": bool(expected.keys() - counts.keys()),
            "twice": any(count > 1 for count in counts.values()) or bool(counts.keys() - expected.keys()),
            "other ids": any(expected.get(number, ids) != ids for number, ids in results),
            "ends badly by itself": any(run["status"] != 0 and not run["killed"] for run in found["runs"]),
            "hangs": any(run["status"] == "hangs" for run in found["runs"]),
            "traceback": any("Traceback" in one for one in found["told"]),
            "processes stay": bool(found["stay"]),
        }.items()
        if true
    ]


def drawn(times: int, draw: random.Random) -> list[float]:
    """Return as many moments, one in each of as many equal parts of the run, in any order."""
    return [(part + draw.random()) / times for part in draw.sample(range(times), times)]


def summary(kind: str, found: list[dict[str, Any]], count: int) -> list[str]:
    """Return the cells of a kind's row in the table."""
    runs = [run for one in found for run in one["runs"]]
    kills = [run for run in runs if run["killed"]]
    written = [run["killed"]["written"] for run in kills]
    return [
        kind,
        str(len(kills)),
        f"{min(written, default=0)} to {max(written, default=0)} of {count}",
        str(sum(run["status"] == 0 for run in kills)),
        str(len(runs) - len(found)),
        f"{max((run['ended_after'] for run in kills), default=0.0):.1f}",
        str(len(found)),
        str(sum(bool(one["faults"]) for one in found)),
    ]


@click.command(help=__doc__.partition("\n")[0])
@click.option("--executor", default="workers,count=2", show_default=True)
@click.option("--victims", default="driver,worker", show_default=True, help=f"Of {', '.join(KINDS)}.")
@click.option("--times", default=10, show_default=True, help="Kills of each.")
@click.option("--count", default=240, show_default=True, help="Prompts.")
@click.option("--new", default=6, show_default=True, help="New tokens of each.")
@click.option("--batch-size", default=8, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the moments.")
@click.option("--folder", default=None, help="For prompts and results; it is made anew. By default a temporary one.")
@click.option("--output", default=None, help="A JSON file for all figures; what it has of other executors is kept.")
def main(
    executor: str,
    victims: str,
    times: int,
    count: int,
    new: int,
    batch_size: int,
    seed: int,
    folder: str | None,
    output: str | None,
) -> None:
    """Run all cycles, and print what came of them."""
    kinds = victims.split(",")
    if wrong := {*kinds} - {*KINDS}:
        raise click.BadParameter(f"expected some of {', '.join(KINDS)}, got {', '.join(sorted(wrong))}")
    if executor.startswith("ray") and "rows=" not in executor:
        executor += f",rows={ROWS}"
    with contextlib.ExitStack() as stack:
        place = Path(folder or stack.enter_context(tempfile.TemporaryDirectory()))
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        plan = Plan(executor, place, place / "prompts.jsonl", count, new, batch_size)
        prompts(plan.prompts, count)
        single = place / "expected.jsonl"
        subprocess.run(plan.command(single, "local", False), check=True, stdout=subprocess.DEVNULL)
        expected = dict(plan.results(single))
        pace, (status, told) = Pace.of(plan)
        run = {"status": status, "killed": {"by": "nobody"}}
        ended = {"runs": [run], "told": [told], "stay": 0, "complete": status == 0}
        alone = faults(ended, plan.results(plan.output("alone")), expected)
        said(json.dumps({"alone": attrs.asdict(pace), "faults": alone}))
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        draws = {kind: random.Random(f"{seed} {kind}") for kind in kinds}
        left = {kind: drawn(times, draws[kind]) for kind in kinds}
        while any(left.values()):
            for kind in filter(left.get, kinds):
                one = cycle(plan, kind, left[kind], pace, draws[kind])
                one["faults"] = faults(one, plan.results(plan.output("killed")), expected)
                said(json.dumps(one))
                found[kind].append(one)
                if output:
                    kept(Path(output), executor, {"prompts": count, "new": new, "pace": attrs.asdict(pace)}, found)
    table = Table(title=f"kill -9, {executor}")
    for name in ("victim", "kills", "rows written", "went on", "resumed", "ended after, s", "results", "wrong"):
        table.add_column(name, justify="left" if name == "victim" else "right")
    for kind in kinds:
        table.add_row(*summary(kind, found[kind], count))
    Console(width=110).print(table)
    sys.exit(bool(alone) or any(one["faults"] for some in found.values() for one in some))


def said(line: str) -> None:
    """Report on standard error what has come of a cycle."""
    print(line, file=sys.stderr, flush=True)


def kept(path: Path, executor: str, figures: dict[str, Any], cycles: dict[str, Any]) -> None:
    """Put the figures of an executor and of some of its victims into a file."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    before = held.get(executor, {}).get("cycles", {})
    held[executor] = figures | {"cycles": before | cycles}
    path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
