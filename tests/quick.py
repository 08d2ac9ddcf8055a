"""The quick set of tests: the cheapest ones that together catch every planted fault, with one case for each kept purpose.

    python tests/quick.py measure FOLDER [--jobs N]   which tests reach and catch which fault, and the time of each: hours
    python tests/quick.py choose FOLDER               write the choice into the test files
    python tests/quick.py --check                     whether the choice is whole

The choice is the marker ``wide`` in the test files. A test function with ``@pytest.mark.wide`` is not in the quick set;
``@pytest.mark.wide(but=["a-b"])`` names the cases that are. On a class the marker is for the tests that it inherits. A test
without it is in the quick set: a new test is, until it has been measured. ``@pytest.mark.quick`` keeps a test, or the cases that it
names, in the quick set whatever it costs. ``make test`` runs the quick set, ``make wide`` a part of the others.

A fault is run against the tests that reach its lines, of the files that its entry names, the cheap ones first: the dear ones
only where no cheap one catches it, or where the entry names too few.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import mutation
from mutation import Copy, Mutant

ROOT = mutation.ROOT
CHEAP = 6.0
"""Seconds of processor time within which a fault's tests are all run. The set has at most a minute for 700 faults, so a test that
does not fit in here is chosen only where it is the only one."""
COLLECTION = 0.1
"""Seconds that a test file takes in the quick set before its first test: its import and its models."""
ALL = ("--as-if-quick", "-m", "not slow", "--ignore", "tests/test_wheels.py")


@attrs.frozen
class Table:
    """Measurements: processor seconds of each test, the tests that reach each fault (None: any may), and those that catch it."""

    seconds: dict[str, float]
    reached: dict[str, list[str] | None]
    caught: dict[str, list[str]]

    @classmethod
    def read(cls, folder: Path) -> Table:
        """Return what the files of a folder say."""
        seconds, reached, caught = dict[str, float](), dict[str, list[str] | None](), dict[str, list[str]]()
        for path in sorted(folder.glob("reach-*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            seconds.update(record["seconds"])
            for name, tests in record["reached"].items():
                before = reached.get(name, [])
                reached[name] = None if before is None or tests is None else before + tests
        if (folder / "caught.jsonl").exists():
            for line in (folder / "caught.jsonl").read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                caught[record["fault"]] = record["tests"]
        return cls(seconds, reached, caught)

    def candidates(self, mutant: Mutant) -> list[str]:
        """Return the tests that may catch a fault, the cheapest first."""
        reached = self.reached.get(mutant.name)
        named = {name.partition("::")[0] for name in mutant.tests}
        tests = [test for test in self.seconds if test.partition("::")[0] in named]
        if reached is not None and {*reached} & {*tests}:
            tests = [test for test in tests if test in {*reached}]
        return sorted(tests, key=self.seconds.__getitem__)


def measure(folder: Path, jobs: int, only: Sequence[str]) -> None:
    """Run what the folder does not have yet: all tests once, then each fault's."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    mutation.FORKS.set_forkserver_preload(mutation.DEPENDENCIES)
    with tempfile.TemporaryDirectory(prefix="specframe-quick-") as scratch:
        copies = [Copy(ROOT, Path(scratch, str(job))) for job in range(jobs)]
        if not any(folder.glob("reach-*.json")):
            reach(copies[0], folder, jobs)
        table = Table.read(folder)
        faults = [one for one in mutation.read() if not one.environment]
        left = [one for one in faults if one.name not in table.caught and (not only or one.name in only)]
        with (folder / "caught.jsonl").open("a", encoding="utf-8") as file:
            for mutant, tests in mutation.spread(copies, left, lambda *one: (one[1], catching(*one, table))):
                print(json.dumps({"fault": mutant.name, "tests": tests}), file=file, flush=True)
                print(f"{len(tests):4} catch {mutant.name}", flush=True)


def reach(copy: Copy, folder: Path, jobs: int) -> None:
    """Run all tests that the quick set may have, with their lines recorded."""
    environment = copy.environment()
    environment["PYTHONPATH"] += os.pathsep + str(copy.folder / "tests")
    environment["SPECFRAME_REACH"] = str(folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "reach", "-n", str(jobs), "--dist", "loadfile", *ALL]
    if subprocess.run(command, cwd=copy.folder, env=environment).returncode:
        raise SystemExit("quick: tests fail without any fault: nothing was measured")


def catching(copy: Copy, mutant: Mutant, table: Table) -> list[str]:
    """Return the tests that turn red with the fault: the cheap ones, or of the others the first."""
    tests, cheap, spent = table.candidates(mutant), list[str](), 0.0
    for test in tests:
        spent += table.seconds[test]
        if cheap and spent > CHEAP:
            break
        cheap.append(test)
    with copy.planted(mutant):
        found = failed(copy, cheap)
        if not found and (dear := tests[len(cheap) :]):
            found = failed(copy, dear, "-x")
    return found


def failed(copy: Copy, tests: Sequence[str], *options: str) -> list[str]:
    """Run tests in a copy and return those that fail; a run that does not end or breaks counts for the test that it was at."""
    status, output = copy.test(tests, mutation.SECONDS, *options, *ALL)
    lines = [line.partition(" ")[2] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    found = [max((test for test in tests if line.startswith(test)), key=len, default="") for line in lines]
    if status not in (0, 1):
        print(f"     status {status}: {output.strip().splitlines()[-1:]}", flush=True)
    return [*dict.fromkeys(filter(None, found))]


def choose(table: Table, kept: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the quick set, and the faults that no test is known to catch: a greedy cover by processor time.

    A test costs its own seconds, and of a file that has none in the set yet its :data:`COLLECTION`.
    """
    catches = defaultdict[str, set[str]](set)
    for fault, tests in table.caught.items():
        for test in tests:
            catches[test].add(fault)
    chosen = [*dict.fromkeys(kept)]
    left = {fault for fault, tests in table.caught.items() if tests} - set().union(*(catches[test] for test in chosen))
    files = {file_of(test) for test in chosen}

    def worth(test: str) -> tuple[float, str]:
        cost = table.seconds[test] + COLLECTION * (file_of(test) not in files)
        return len(catches[test] & left) / max(cost, 1e-3), test

    while left:
        best = max((test for test in catches if catches[test] & left), key=worth)
        chosen.append(best)
        files.add(file_of(best))
        left -= catches[best]
    for test in sorted(set(chosen) - {*kept}, key=table.seconds.__getitem__, reverse=True):
        others = set().union(*(catches[other] for other in chosen if other != test))
        if catches[test] <= others:  # later choices catch all that it does
            chosen.remove(test)
    return chosen, sorted(fault for fault, tests in table.caught.items() if not tests)


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def name_of(test: str) -> tuple[str, str, str]:
    """Return the class of a test ("" for none), its function, and its case ("" for the only one)."""
    _, _, name = test.partition("::")
    name, bracket, case = name.partition("[")
    outer, _, function = name.rpartition("::")
    return outer, function, case.removesuffix("]") if bracket else ""


@attrs.frozen
class Collected:
    """A test as pytest collects it: whether it is in the quick set, and whether its marker ``quick`` keeps it there."""

    test: str
    quick: bool
    kept: bool


def collect() -> list[Collected]:
    """Return the tests that the quick set may have, as the markers stand."""
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", f"--list-quick={file.name}", *ALL]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"quick: the tests cannot be collected:\n{done.stdout[-2000:]}")
        return [Collected(*json.loads(line)) for line in Path(file.name).read_text(encoding="utf-8").splitlines()]


def ends_to_end(tests: Iterable[str], seconds: dict[str, float]) -> list[str]:
    """Return the cheapest case of each strategy from prompts to tokens, for each class that inherits a conformance suite."""
    suites = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for test in tests:
        outer, function, _ = name_of(test)
        if outer and function in END_TO_END and test in seconds:
            suites[f"{file_of(test)}::{outer}"][function].append(test)
    return [min(found[min(found, key=END_TO_END.index)], key=seconds.__getitem__) for found in suites.values()]


END_TO_END = ["test_equals_reference", "test_chains"]
"""Tests of the conformance suites that decode whole requests with a strategy; a suite has the first of them that it has."""


def written(text: str, tests: Sequence[str], quick: set[str]) -> str:
    """Return a test file's text with the markers of a choice among its tests."""
    lines = text.splitlines(keepends=True)
    own, inherited = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    tree = ast.parse(text)
    outer = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    defined = {
        name: {one.name for one in node.body if isinstance(one, ast.FunctionDef)} for name, node in outer.items()
    }
    for test in tests:
        suite, function, _ = name_of(test)
        if suite and function not in defined[suite]:
            inherited[suite].append(test)
        else:
            own[f"{suite}::{function}"].append(test)
    nodes: list[tuple[ast.FunctionDef | ast.ClassDef, list[str], bool]] = []
    for name, node in outer.items():
        mine = [test for key in own if key.startswith(f"{name}::") for test in own[key]]
        nodes.append((node, inherited[name] or ([] if quick & {*mine} else mine), True))
    for name, body in [("", tree.body), *((name, node.body) for name, node in outer.items())]:
        nodes += [(one, own[f"{name}::{one.name}"], False) for one in body if isinstance(one, ast.FunctionDef)]
    for node, by_rule, whole in sorted(nodes, key=lambda one: one[0].lineno, reverse=True):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
        new = marker(
            [short(test, whole) for test in by_rule], [short(test, whole) for test in by_rule if test in quick]
        )
        old = [
            one
            for one in node.decorator_list
            if (ast.get_source_segment(text, one) or "").startswith("pytest.mark.wide")
        ]
        for one in reversed(old):
            del lines[one.lineno - 1 : one.end_lineno]
        if new:
            lines.insert(first, " " * node.col_offset + new + "\n")
    text = "".join(lines)
    return with_import(text) if "pytest.mark.wide" in text and "import pytest\n" not in text else text


def short(test: str, whole: bool) -> str:
    """Return a test's name in a marker: its case, or of a class's marker the function, too."""
    _, function, case = name_of(test)
    return (f"{function}[{case}]" if case else function) if whole else case


def marker(by_rule: list[str], quick: list[str]) -> str:
    """Return the decorator for a test or class of which some cases are in the quick set; "" where all are."""
    if len(quick) == len(by_rule):
        return ""
    return f"@pytest.mark.wide(but={quick!r})" if quick else "@pytest.mark.wide"


def with_import(text: str) -> str:
    """Return a test file's text with pytest imported."""
    return re.sub(r"^(?=import |from (?!__future__))", "import pytest\n", text, count=1, flags=re.MULTILINE)


def check() -> list[str]:
    """Return one sentence for everything that is wrong with the choice as it stands."""
    tests = collect()
    quick = {file_of(one.test) for one in tests if one.quick}
    found = [
        f"{mutant.name}: none of the test files that its entry names has a test in the quick set"
        for mutant in mutation.read()
        if not mutant.named and not mutant.environment and not quick & {file_of(test) for test in mutant.tests}
    ]
    names = {name for one in tests for name in (short(one.test, True), short(one.test, False))}
    for path in sorted({file_of(one.test) for one in tests}):
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            for one in getattr(node, "decorator_list", []):
                if isinstance(one, ast.Call) and ast.unparse(one.func) in ("pytest.mark.wide", "pytest.mark.quick"):
                    cases = [
                        case for value in [*one.args, *(word.value for word in one.keywords)] for case in listed(value)
                    ]
                    found += [f"{path}:{one.lineno}: there is no case {case!r}" for case in cases if case not in names]
    return found


def listed(value: ast.expr) -> list[str]:
    """Return the texts of a marker's argument; none where it is no literal."""
    given = ast.literal_eval(value) if isinstance(value, ast.Constant | ast.List) else []
    return [given] if isinstance(given, str) else given


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, choose or check; return the exit status: 1 where the choice is not whole."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", nargs="?", choices=["measure", "choose"])
    parser.add_argument("folder", nargs="?", type=Path, help="where the measurements are")
    parser.add_argument("--jobs", type=int, default=2, help="processes that measure")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="measure this fault only")
    parser.add_argument("--check", action="store_true", help="say what is wrong with the choice as it stands")
    given = parser.parse_args(arguments)
    if given.check == bool(given.command) or bool(given.command) != bool(given.folder):
        parser.error("expected `measure FOLDER`, `choose FOLDER` or `--check`")
    if given.check:
        found = check()
        print(*found, sep="\n", end="\n" if found else "")
        return 1 if found else 0
    if given.command == "measure":
        measure(given.folder, given.jobs, given.only)
        return 0
    table, tests = Table.read(given.folder), collect()
    kept = [one.test for one in tests if one.kept] + ends_to_end((one.test for one in tests), table.seconds)
    unjudged = [one.test for one in tests if one.test not in table.seconds]
    chosen, missed = choose(table, [test for test in kept if test in table.seconds])
    quick = {*chosen, *kept, *unjudged}
    by_file = defaultdict[str, list[str]](list)
    for one in tests:
        by_file[file_of(one.test)].append(one.test)
    for name, own in by_file.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(written(text, own, quick), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", "--fix", "--select", "I", *by_file], cwd=ROOT)
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *by_file], cwd=ROOT, check=True)
    seconds = sum(table.seconds[test] for test in quick if test in table.seconds)
    print(
        f"{len(quick)} of {len(tests)} tests, {seconds:.0f} s of processor time; {len(unjudged)} of them not measured yet"
    )
    print(*(f"no test is known to catch {fault}" for fault in missed), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
