"""A run of the embedded pair over short prompts, as a command in a process of its own."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs
from processes import descendants, kill

ROWS = 16
"""Rows that Ray writes together."""
LIMIT = 600.0
"""Seconds after which a command hangs."""
WORDS = (
    "def", "class", "import", "return", "for", "while", "if", "with", "open", "read", "line", "path", "name", "self", "value",
)  # fmt: skip


def prompts(path: Path, count: int) -> None:
    """Write short prompts to a file of JSON lines."""
    draw = random.Random(0)
    lines = ({"prompt": f"{draw.choice(WORDS)} {draw.choice(WORDS)} {draw.randrange(100)}"} for _ in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@attrs.frozen
class Plan:
    """What is run, and where."""

    executor: str
    folder: Path
    prompts: Path
    count: int
    new: int
    batch: int

    @property
    def ray(self) -> bool:
        """Whether the executor is Ray's."""
        return self.executor.partition(",")[0] == "ray"

    def output(self, name: str) -> Path:
        """Return where a run writes."""
        return self.folder / (name if self.ray else f"{name}.jsonl")

    def command(self, output: Path, executor: str, resume: bool) -> list[str]:
        """Return a command line."""
        how = ["--target", "tiny", "--accept", "gumbel", "--dtype", "float32", "--temperature", "0.8", "--seed", "5"]
        how += ["--max-new-tokens", str(self.new), "--batch-size", str(self.batch), "--executor", executor, "--quiet"]
        where = ["--prompts", str(self.prompts), "--output", str(output), *(["--resume"] if resume else [])]
        return [sys.executable, "-m", "specframe", "run", *how, *where]

    def written(self, output: Path) -> int:
        """Return how many rows are written and noted, to the nearest block of Ray's."""
        if self.ray:
            notes = [one for one in (output / "_checkpoint").glob("*.parquet") if ".pending." not in one.name]
            return min(self.count, len(notes) * ROWS)
        return max(0, output.read_bytes().count(b"\n") - 1) if output.exists() else 0  # the first line has the settings

    def results(self, output: Path) -> list[tuple[int, list[int]]]:
        """Return the number and the ids of every result."""
        if not output.is_dir():
            lines = map(json.loads, output.read_text(encoding="utf-8").splitlines())
            return [(line["index"], line["token_ids"]) for line in lines if "index" in line]
        import pyarrow.parquet as pq

        rows = (row for path in output.glob("*.parquet") for row in pq.read_table(path).to_pylist())
        return [(int(row["id"].rpartition(":")[2]), row["token_ids"]) for row in rows]


class Running:
    """A command that runs.

    Args:
        plan: what is run.
        name: of its output, which is completed if it is there.
        resume: whether to complete it.
    """

    def __init__(self, plan: Plan, name: str, resume: bool = False) -> None:
        self._plan, self._output = plan, plan.output(name)
        self.before = self.written
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - it is read at the end
        command = plan.command(self._output, plan.executor, resume)
        self._begun = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._told, start_new_session=True)

    @property
    def seconds(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self._begun

    @property
    def over(self) -> bool:
        """Whether the command has ended; one that hangs is."""
        return self.process.poll() is not None or self.seconds > LIMIT

    @property
    def written(self) -> int:
        """How many rows are written."""
        return self._plan.written(self._output)

    def until_written(self, count: int) -> bool:
        """Wait until ``count`` rows are written; return whether the command still runs then."""
        while not self.over:
            if self.written >= count:
                return True
            time.sleep(0.01)
        return False

    def pause(self, seconds: float, unless_written: bool = False) -> bool:
        """Wait, or only until something is written; return whether the command still runs then."""
        end = time.monotonic() + seconds
        while not self.over:
            if (left := end - time.monotonic()) <= 0 or (unless_written and self.written > self.before):
                return True
            time.sleep(min(left, 0.05))
        return False

    def end(self) -> tuple[int | str, str]:
        """Wait for the end; return the status, or "hangs", and standard error."""
        status: int | str = "hangs"
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(max(1.0, LIMIT - self.seconds))
        if status == "hangs":
            for one in [*descendants(self.process.pid), self.process.pid]:
                kill(one)
            self.process.wait()
        self._told.seek(0)
        return status, self._told.read().decode(errors="replace").strip()
