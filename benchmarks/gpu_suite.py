"""Everything that needs a GPU, in one command and a given time: tests, equivalence, and benchmarks at published shapes.

    python benchmarks/gpu_suite.py [--budget SECONDS] [--pair qwen3-8b] [--device cuda] [--parts tests,bench] [--together]
        [--small] [--resume] [--output FILE.json]

1. waits and copies per round and scheme, and a run of each in which torch's sync debug mode makes every wait but the round's one
an error; a short part of that under torch's sanitizer of streams; 2. every test marked ``cuda``; 3. the conformance suites of the
built-in strategies on the device; 4. equivalence with the reference decoder, in float32 and bfloat16, on grown pairs; 5. logits
that are the same to the bit, and their price; 6. what each way to attend costs; 7. what drafts of heads cost; 8. rounds of one
pipeline's later runs, with layers as they are and compiled; 9. the benchmark at the shapes of Qwen3-8B and 0.6B in bfloat16,
K = 5, batches 1 to 64, the most telling cells first.

Needs torch, transformers, pytest and specframe's other dependencies; neither a network nor an installation: in a checkout that is
not installed, plugins are declared to Python in a temporary folder (checkout.py), which child processes inherit. Each part is a
process of its own: one that crashes, runs out of memory or of time is a line in the result, and the others go on. A benchmark that
loses the device is scheduled again without the scheme that lost it. What is done is written after each part, and ``--resume`` runs
those of an earlier run again that found something wrong. ``--parts`` chooses some of them, ``--together`` runs them all at once:
faults are found sooner, and times say nothing. ``--small`` does all of it in a minute or two without a GPU, with a small pair: the
first part on the simulated accelerator of the test kit, the others on the CPU.
"""

from __future__ import annotations

import checkout  # noqa: F401  # isort: skip  - first: child processes find the plugins of a checkout that is not installed

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
PROCESSES = 4
"""Test processes on a GPU: each takes half a gigabyte of its memory before it has done anything."""
STANDARD = "plugins/specframe-std/tests"
SMALL = {
    "suites": f"--specframe-device sim -k TestGreedy {STANDARD}/test_other_roles.py",
    "traffic": "--device sim --schemes ragged;eqspec",
    "sanitizer": "--device sim",
    "equivalence": "--pairs small --batches 3 --count 3 --new 8 --device cpu",
    "attention": "--small --device cpu --heads 4,2,16 --dtype float32",
    "bitwise": "--pair small --device cpu --dtypes bfloat16 --batches 3 --count 3 --new 4 --rounds 1",
    "heads": "--pair small --device cpu --dtype float32 --batches 1",
    "rounds": "--pair small --device cpu --dtype float32 --batches 2 --lengths 0,2 --layers eager --runs 2 --new 6",
    "bench": "--pair small --device cpu --dtype float32 --batches 3,1 --longest 24 --new 5"
    " --least 3 --threads 1 --waves 1 --rounds 1",
}
LARGE = {
    "suites": "--specframe-device {device} plugins/specframe-heads/tests/test_conformance.py"
    + "".join(
        f" {STANDARD}/test_{name}.py"
        for name in ("alignments", "drafters", "kv_backends", "other_roles", "tree_drafts")
    ),
    "traffic": "--device {device}",
    "sanitizer": "--device {device} --schemes ragged;eqspec",
    "equivalence": "--pairs small,cpu --batches 8,1 --new 24 --device {device}",
    "attention": "--device {device} --dtype bfloat16",
    "bitwise": "--pair cpu --device {device} --aligns ragged,eqspec --batches 8,1 --rounds 2",
    "heads": "--pair {pair} --device {device} --dtype bfloat16 --batches 8,1,64",
    "rounds": "--pair {pair} --device {device} --dtype bfloat16 --batches 8 --lengths 0,3,goodput",
    "bench": "--pair {pair} --device {device} --dtype bfloat16 --draft-length 5 --batches 8,32,1,64,16,4,2"
    " --new 64 --least 4 --waves 2 --references 8 --rounds 2",
}

SHARES = {
    "traffic": 0.06,
    "sanitizer": 0.06,
    "tests": 0.16,
    "suites": 0.1,
    "equivalence": 0.12,
    "bitwise": 0.08,
    "attention": 0.06,
    "heads": 0.08,
    "rounds": 0.14,
    "bench": 0.28,
}
"""The parts in their order, and the share of all parts' time that each may take; the benchmark has all that is left."""


@click.command(help=__doc__.partition("\n")[0])
@click.option("--budget", default=520.0, show_default=True, help="Seconds for everything.")
@click.option("--pair", default="qwen3-8b", show_default=True, help="The pair of the benchmark.")
@click.option("--device", default="cuda", show_default=True)
@click.option("--parts", default=",".join(SHARES), show_default=True, help="What to run.")
@click.option("--together", is_flag=True, help="All parts at once, to find faults sooner: times say nothing then.")
@click.option("--small", is_flag=True, help="Everything on a CPU, with a small pair.")
@click.option("--resume", is_flag=True, help="Keep the parts of an earlier run that found nothing wrong.")
@click.option("--output", default=None, help="Where the JSON goes.  [default: benchmarks/results/]")
def main(
    budget: float,
    pair: str,
    device: str,
    parts: str,
    together: bool,
    small: bool,
    resume: bool,
    output: str | None,
) -> None:
    """Run the parts, write what came of them, and print it; exit with 1 when a part found something wrong."""
    deadline = time.monotonic() + budget
    chosen = {part: text.format(pair=pair, device=device).split() for part, text in (SMALL if small else LARGE).items()}
    path = Path(output or HERE / "results" / f"gpu-suite-{'small' if small else pair}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    result = earlier(path) if resume else {}
    writing, shares = threading.Lock(), sum(SHARES[part] for part in named(parts))
    with tempfile.TemporaryDirectory() as name:

        def act(part: str) -> None:
            seconds = 0.95 * budget if together else SHARES[part] / shares * budget
            found = one(part, chosen.get(part, []), seconds, deadline, Path(name))
            with writing:
                result[part] = found
                path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

        with ThreadPoolExecutor(len(SHARES) if together else 1) as pool:
            list(pool.map(act, [part for part in named(parts) if result.get(part, {"wrong": True})["wrong"]]))
    result = {part: result[part] for part in SHARES if part in result}
    show(result)
    print(f"written to {path}")
    sys.exit(any(found["wrong"] for found in result.values()))


def named(parts: str) -> list[str]:
    """Return the parts of that name; raise an error of click's for one there is not."""
    names = parts.split(",")
    if unknown := [name for name in names if name not in SHARES]:
        raise click.BadParameter(f"there is no part {unknown[0]!r}: expected {', '.join(SHARES)}", param_hint="--parts")
    return names


def one(part: str, options: list[str], seconds: float, deadline: float, folder: Path) -> dict[str, Any]:
    """Run a part for ``seconds`` seconds and return what came of it; the benchmark takes the time that there is."""
    match part:
        case "tests":
            return tests(["-m", "cuda", *with_marks()], seconds)
        case "suites":
            return tests(["-m", "not slow", *options], seconds)
        case "sanitizer":
            return sanitized(options, seconds)
        case "bench":
            return bench(options, deadline - 5, folder)
    return by_rows(part, options, seconds, folder, timed=part != "traffic")


def earlier(path: Path) -> dict[str, Any]:
    """Return what came of the parts of an earlier run; those that found something wrong are run again where they are asked for."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def run(command: list[str], seconds: float, **variables: str) -> dict[str, Any]:
    """Run a part and return its exit status (None: out of time), its time and the end of what it printed."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=HERE.parent,
            timeout=seconds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
        )
        status, printed = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, printed = None, late.stdout or b""
    print(text := printed.decode(errors="replace"), flush=True)
    lines = text.strip().splitlines()
    return {
        "status": status,
        "seconds": round(time.monotonic() - started, 1),
        "lines": lines[-25:],
        "wrong": status != 0,
    }


def tests(options: list[str], seconds: float) -> dict[str, Any]:
    """Run tests; what failed, and the sum, or the test that ran out of time, are among the lines."""
    options = ["-v", "-p", "no:cacheprovider", "--no-header", "--continue-on-collection-errors", *options]
    options += ["--durations=10", "-o", "faulthandler_timeout=60"]  # a test that hangs shows where
    if find_spec("xdist") and (os.cpu_count() or 1) >= 2 * PROCESSES:
        options += ["-n", str(PROCESSES)]  # tests of tiny models leave most of a GPU idle
    found = run([sys.executable, "-u", "-m", "pytest", *options], seconds)
    kept = [line for line in found["lines"] if line.startswith(("FAILED", "ERROR")) or " FAILED" in line]
    last = found["lines"][-1].strip("= ") if found["lines"] else ""
    return found | {"lines": [*kept, f"out of time: {last}" if found["status"] is None else last]}


def with_marks() -> list[str]:
    """Return the files with tests marked ``cuda``: to collect all others would take longer than to run these on a GPU."""
    root = HERE.parent
    files = [*root.glob("tests/test_*.py"), *root.glob("plugins/*/tests/test_*.py")]
    return sorted(str(file.relative_to(root)) for file in files if "mark.cuda" in file.read_text(encoding="utf-8"))


def sanitized(options: list[str], seconds: float) -> dict[str, Any]:
    """Run a short part under torch's sanitizer, which reports memory that two streams use without waiting for each other.

    On another device than CUDA's there is nothing to run: it would be the first part again.
    """
    if not any(option.startswith("cuda") for option in options):
        return {"lines": ["not run: it asks for CUDA"], "wrong": False}
    return run([sys.executable, str(HERE / "traffic.py"), *options], seconds, TORCH_CUDA_SANITIZER="1")


def by_rows(script: str, options: list[str], seconds: float, folder: Path, timed: bool = True) -> dict[str, Any]:
    """Run a script that writes what it finds row by row; rows found before a crash are kept. ``timed``: it takes ``--budget``."""
    path = folder / f"{script}.json"
    command = [sys.executable, str(HERE / f"{script}.py"), *options, "--output", str(path)]
    found = run([*command, *(["--budget", str(0.8 * seconds)] if timed else [])], seconds)
    return found | {"rows": json.loads(path.read_text(encoding="utf-8")) if path.exists() else []}


def bench(options: list[str], deadline: float, folder: Path) -> dict[str, Any]:
    """Run the benchmark; when the device is lost, run what is left without the scheme that lost it."""
    path = folder / "bench.json"
    runs: list[dict[str, Any]] = []
    without: list[str] = []
    batches = options[options.index("--batches") + 1]
    while batches and (left := deadline - time.monotonic()) > 30 and len(runs) < 3:
        path.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / "bench.py"), *options, "--batches", batches, "--output", str(path)]
        for scheme in without:
            command += ["--without", scheme]
        runs.append(run([*command, "--budget", str(max(20, left - 40))], left))
        if not path.exists():
            break
        runs[-1]["result"] = json.loads(path.read_text(encoding="utf-8"))
        cells = runs[-1]["result"]["cells"]
        lost = {cell["batch"] for cell in cells if "device failed" in (cell["fault"] or "")}
        without += [
            cell["contender"] for cell in cells if cell["fault"] and not cell["fault"].startswith("not reached")
        ]
        batches = ",".join(batch for batch in batches.split(",") if int(batch) in lost)
    return {"runs": runs, "wrong": not runs or any(one["wrong"] for one in runs)}


def show(result: dict[str, Any]) -> None:
    """Print one line per part and per thing that went wrong; the parts have printed their own tables."""
    table = Table("part", "outcome", title="GPU suite")
    for part, found in result.items():
        if part in ("tests", "suites"):
            table.add_row(part, "\n".join(found["lines"]))
        elif part == "bench":
            show_bench(table, found)
        elif part == "sanitizer":
            table.add_row(part, state(found))
        else:
            told, wrong = ROWS[part]
            table.add_row(part, f"{len(found['rows'])} {told}; {state(found)}")
            for line in filter(None, map(wrong, found["rows"])):
                table.add_row("", line)
    Console(width=132).print(table)


def waits(row: dict[str, Any]) -> str | None:
    """Return what is wrong with a scheme's waits."""
    if row["fault"] or row["most_waits"] > 1:
        return f"{row['scheme']}: {row['fault'] or ''} {row['most_waits']} waits in a round"
    return None


def inexact(row: dict[str, Any]) -> str | None:
    """Return where a scheme's tokens are not the reference decoder's."""
    if row["fault"] or row["bugs"]:
        place = f"{row['pair']} {row['dtype']} {row['scheme']} batch {row['batch']}"
        return f"{place}: {row['fault'] or row['exactness']}"
    return None


def price(row: dict[str, Any]) -> str:
    """Return in how many prompts all logits are the same to the bit, and the price of that."""
    told = row["fault"] or f"equal {row['equal']}, without {row['plain']}, {row['price']} times the time"
    return f"{row['dtype']} {row['align']} batch {row['batch']}: {told}"


def failed_way(row: dict[str, Any]) -> str | None:
    """Return how a way to attend failed."""
    return row["fault"] and f"{row['way']}, {row['rows']} rows, {row['slots']} slots: {row['fault']}"


def failed_run(row: dict[str, Any]) -> str | None:
    """Return how a pipeline failed."""
    return row["fault"] and f"K = {row['length']}, {row['layers']}, batch {row['batch']}: {row['fault']}"


def failed_draft(row: dict[str, Any]) -> str | None:
    """Return how a head's draft failed."""
    return row["fault"] and f"{row['draft']}, batch {row['batch']}: {row['fault']}"


ROWS: dict[str, tuple[str, Callable[[dict[str, Any]], str | None]]] = {
    "traffic": ("schemes", waits),
    "equivalence": ("comparisons", inexact),
    "bitwise": ("comparisons", price),
    "attention": ("timings", failed_way),
    "heads": ("rounds timed", failed_draft),
    "rounds": ("runs", failed_run),
}
"""Of each part that writes rows: the noun for them, and the line that is shown of a row, if any."""


def show_bench(table: Table, part: dict[str, Any]) -> None:
    """Add how many cells were measured, and which failed or gave other tokens."""
    for run in part["runs"]:
        cells = run.get("result", {}).get("cells", [])
        measured = [cell for cell in cells if "tokens_per_second" in cell]
        table.add_row("benchmark", f"{len(measured)} of {len(cells)} cells; {state(run)}")
        for cell in cells:
            if cell["fault"] or cell.get("bugs"):
                table.add_row("", f"{cell['contender']} batch {cell['batch']}: {cell['fault'] or cell['exactness']}")


def state(part: dict[str, Any]) -> str:
    """Return how a process ended, or why there was none."""
    if "status" not in part:
        return str(part["lines"][-1])
    ended = "out of time" if part["status"] is None else f"exit status {part['status']}"
    return f"{ended} after {part['seconds']:.0f} s"


if __name__ == "__main__":
    main()
