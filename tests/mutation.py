"""Mutation tests: faults of one line, planted one at a time in a copy of the project, each turn a test of the quick set red.

``python tests/mutation.py --help`` tells the options, ``tests/mutants/*.toml`` hold the faults. Each of the copies (one a
job) stands first on ``PYTHONPATH``, so that the environment's own packages are shadowed by it; where something else is
imported nothing is run.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NoReturn, TypeVar

import attrs

Found = TypeVar("Found")
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "mutants"
SECONDS = 300
"""Time that one mutant's tests may take: twenty times the usual, since a copy may run beside much else."""
WHOLE_SECONDS = 3600
"""Time that the whole quick set, or the tests of all entries, may take on one job."""
BROKEN = re.compile(r"^\S+:\d+: ((?:Import|ModuleNotFound|Name|Syntax|Indentation)Error.*)$", re.MULTILINE)
"""The line of a failed test's error that says that the mutant is no program: nothing was found out about the suite."""
FAST = ("-m", "not slow", "--ignore", "tests/test_wheels.py")
FORKS = multiprocessing.get_context("forkserver")
DEPENDENCIES = [
    "torch",
    "transformers",
    "transformers.generation.utils",
    "pytest",
    "click",
    "rich.table",
    "pluggy",
    "fastapi",
]
"""Modules that the process imports from which those of the tests are forked: to import them takes 4 s, most tests less."""


@attrs.frozen
class Mutant:
    """A fault: ``find`` is replaced in ``file``, and one of ``tests`` has to fail."""

    name: str
    fault: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...] = attrs.field(converter=tuple)
    environment: str = ""
    """The virtual environment that its tests need, as "ray" for .venv-ray; "" stands for the project's own."""

    @property
    def named(self) -> bool:
        """Whether single tests are named, which are run though they are slow."""
        return all("::" in test for test in self.tests)


@attrs.frozen
class Finding:
    """The outcome of one mutant: "caught", "not caught", "broken" or "out of time", and by which test or why."""

    mutant: Mutant
    outcome: str
    detail: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.outcome:<11}  {self.mutant.name:<44}  {self.seconds:5.1f} s  {self.detail}"


def read(folder: Path = FOLDER) -> list[Mutant]:
    """Return the mutants of all files of a folder; ValueError names an entry with other keys than those of :class:`Mutant`."""
    mutants = []
    keys = {field.name for field in attrs.fields(Mutant)}
    own = keys - {"environment"}
    for path in sorted(folder.glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        if tables.keys() - {"mutant"}:
            raise ValueError(f"{path.name}: expected only [[mutant]] tables, got {sorted(tables)}")
        for entry in tables.get("mutant", []):
            if not own <= entry.keys() <= keys:
                raise ValueError(f"{path.name}: expected the keys {sorted(own)} in each entry, got {sorted(entry)}")
            mutants.append(Mutant(**entry))
    return mutants


def problems(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """Return one sentence for everything in the entries that cannot be run on the project at ``root``."""
    names = [mutant.name for mutant in mutants]
    found = [f"{name}: {names.count(name)} mutants have this name" for name in {*names} if names.count(name) > 1]
    for mutant in mutants:
        path = root / mutant.file
        times = path.read_text(encoding="utf-8").count(mutant.find) if path.is_file() else None
        if times is None:
            found.append(f"{mutant.name}: there is no file {mutant.file}")
        elif times != 1:
            found.append(f"{mutant.name}: `find` has to occur once in {mutant.file}, and occurs {times} times")
        if mutant.find == mutant.replace:
            found.append(f"{mutant.name}: `find` and `replace` are the same text")
        if not mutant.tests:
            found.append(f"{mutant.name}: no tests are named")
        missing = [test for test in mutant.tests if not (root / test.partition("::")[0]).is_file()]
        found += [f"{mutant.name}: there is no test file {test}" for test in missing]
    return found


class Copy:
    """A copy of the project's files, those that git ignores left out, in a folder of its own."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        for name in filter(None, names):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        self.parts = [folder, *sorted(path.parent for path in folder.glob("plugins/*/pyproject.toml"))]

    def environment(self) -> dict[str, str]:
        """Return the environment in which Python imports the copy's packages; one thread a process."""
        own = {"PYTHONPATH": os.pathsep.join(map(str, self.parts)), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, "TOKENIZERS_PARALLELISM": "false"}

    def imported_from_elsewhere(self) -> list[str]:
        """Return the copy's packages that Python would take from another folder."""
        packages = {path.parent.name: path for part in self.parts for path in part.glob("*/__init__.py")}
        code = "import importlib.util, sys\nfor name in sys.argv[1:]: print(importlib.util.find_spec(name).origin)"
        command = [sys.executable, "-P", "-c", code, *packages]  # a process that a test starts may stand elsewhere
        found = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=True
        )
        pairs = zip(packages.items(), found.stdout.splitlines(), strict=True)
        return [name for (name, path), origin in pairs if Path(origin).resolve() != path.resolve()]

    @contextlib.contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Hold the mutant's fault while the context lasts."""
        path = self.folder / mutant.file
        sound = path.read_text(encoding="utf-8")
        try:
            self._write(path, sound.replace(mutant.find, mutant.replace))
            yield
        finally:
            self._write(path, sound)

    def _write(self, path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()  # Python tells sources apart by size and whole seconds, which a mutant may share

    def test(self, tests: Sequence[str], seconds: float, *options: str) -> tuple[int | None, str]:
        """Run tests in the copy and return pytest's exit status and output; no status if they took longer than ``seconds``."""
        arguments = ["-q", "-p", "no:cacheprovider", "--tb=line", "-rfE", *options, *tests]
        with tempfile.NamedTemporaryFile() as output:
            process = FORKS.Process(
                target=_pytest, args=(self.folder, self.parts, self.environment(), arguments, output.name)
            )
            process.start()
            try:
                process.join(seconds)
                return process.exitcode, Path(output.name).read_text(encoding="utf-8", errors="replace")
            finally:
                for kill in (lambda: os.killpg(process.pid or 0, signal.SIGKILL), process.kill):
                    with contextlib.suppress(ProcessLookupError):
                        kill()  # a test that was ended may have left processes
                process.join()


def _pytest(
    folder: Path, parts: Sequence[Path], environment: dict[str, str], arguments: list[str], output: str
) -> NoReturn:
    """Be ``python -m pytest`` in ``folder``, in a process that has its dependencies already, with its output in a file."""
    os.setsid()
    written = os.open(output, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(written, stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [str(folder), *map(str, parts), *(path for path in sys.path if Path(path) != FOLDER.parent)]
    import pytest

    sys.exit(pytest.main(arguments))


def outcome_of(status: int | None, output: str) -> tuple[str, str]:
    """Return the outcome that pytest's exit status and output stand for, and the test or the reason."""
    if status is None:
        return "out of time", "its tests did not end"
    if status == 0:
        return "not caught", "all its tests pass"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", output, re.MULTILINE)
    last = output.strip().splitlines()[-1:] or [""]
    if status != 1 or not failed:
        return "broken", f"no test failed, but pytest ended with status {status}: {last[0]}"
    if error := BROKEN.search(output):
        return "broken", f"{failed[1]}: {error[1]}"
    return "caught", failed[1]


def run(copy: Copy, mutant: Mutant, whole: bool = False, seconds: float = SECONDS) -> Finding:
    """Plant a mutant in a copy and run its tests; with ``whole`` the whole quick set, too, where none of them fails."""
    begun = time.monotonic()
    with copy.planted(mutant):
        outcome, detail = outcome_of(*copy.test(mutant.tests, seconds, "-x", *(() if mutant.named else FAST)))
        if outcome == "not caught" and whole:
            outcome, detail = outcome_of(*copy.test([], WHOLE_SECONDS, "-x", *FAST))
            detail = f"{detail}, which its entry does not name" if outcome == "caught" else detail
    return Finding(mutant, outcome, detail, time.monotonic() - begun)


def spread(copies: Sequence[Copy], mutants: Sequence[Mutant], act: Callable[[Copy, Mutant], Found]) -> Iterator[Found]:
    """Yield what comes of each mutant as it comes; each copy holds one at a time."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> Found:
        copy = free.get()
        try:
            return act(copy, mutant)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        for future in as_completed([pool.submit(one, mutant) for mutant in mutants]):
            yield future.result()


def unfit(copies: Sequence[Copy], mutants: Sequence[Mutant]) -> str | None:
    """Return why the copies tell nothing about the project: others' packages are imported, or a test fails without a fault."""
    if elsewhere := copies[0].imported_from_elsewhere():
        return f"the copy's packages have to be imported; another folder's are: {', '.join(elsewhere)}"
    # environments of their own have no pytest-xdist
    jobs = ("-n", str(len(copies)), "--dist", "loadfile") if len(copies) > 1 else ()
    for named in (False, True):
        tests = sorted({test for mutant in mutants if mutant.named == named for test in mutant.tests})
        status, output = copies[0].test(tests, WHOLE_SECONDS, *jobs, *(() if named else FAST)) if tests else (0, "")
        if status != 0:
            return f"the tests fail without any fault (status {status}):\n{output[-2000:]}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants, print one line each, and return the exit status: 0 if all are caught, 1 if not, 2 if none was run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", action="append", help="run this mutant only; may be given again")
    parser.add_argument(
        "--environment", metavar="NAME", default="", help="run the mutants of another environment, as ray"
    )
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="mutants at a time, each in a copy of its own")
    parser.add_argument("--whole", action="store_true", help="run the whole quick set on mutants that their tests miss")
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, which is then forked
    FORKS.set_forkserver_preload(DEPENDENCIES)
    mutants = read()
    if missing := {*(given.only or [])} - {mutant.name for mutant in mutants}:
        parser.error(f"there is no mutant {', '.join(sorted(missing))}")
    if given.jobs < 1:
        parser.error(f"--jobs: expected a whole number of at least 1, got {given.jobs}")
    mutants = [
        one for one in mutants if (one.name in given.only if given.only else one.environment == given.environment)
    ]
    wrong = problems(mutants)
    with tempfile.TemporaryDirectory(prefix="specframe-mutants-") as scratch:
        copies = (
            [Copy(ROOT, Path(scratch, str(job))) for job in range(min(given.jobs, len(mutants)))] if not wrong else []
        )
        if why := "\n".join(wrong) or unfit(copies, mutants):
            print(why, file=sys.stderr)
            return 2
        findings = []
        for finding in spread(copies, mutants, functools.partial(run, whole=given.whole)):
            print(finding, flush=True)
            findings.append(finding)
    missed = [finding for finding in findings if finding.outcome != "caught"]
    print(f"{len(findings) - len(missed)} of {len(findings)} caught", *map(str, missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
