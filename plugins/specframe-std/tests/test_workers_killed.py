"""Worker processes and commands that are killed at any moment: nothing is lost, comes twice or stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from specframe.cli import cli
from specframe.pipeline import Pipeline
from specframe.text.sampling import Sampling

pytestmark = pytest.mark.slow


def children(parent: int) -> list[int]:
    """Return the processes that a process has begun."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = status.read_text().partition(" (")
        except OSError:
            continue
        if int(rest.rpartition(")")[2].split()[1]) == parent:
            found.append(int(pid))
    return found


def workers_of(parent: int) -> list[int]:
    """Return the workers among the processes that a process has begun."""
    return sorted(pid for pid in children(parent) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())


def alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_for(what: Callable[[], Any], seconds: float = 1200.0) -> Any:
    """Return what a function returns as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def test_a_worker_that_cannot_start(tmp_path: Path) -> None:
    """A script without a main guard ends in one sentence that says what to do."""
    script = tmp_path / "script.py"
    script.write_text(
        "from specframe import Pipeline\n"
        "print(next(Pipeline('tiny', executor='workers,count=2').generate(['x'], 2)).token_ids)\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 1
    assert "ended with exit status 1 before it had its models" in ended.stderr
    assert "if __name__ == '__main__':" in ended.stderr.splitlines()[-1]


def hears_interrupts() -> None:
    """Undo what a shell does to programs in its background: they, and all that they begin, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def deaf_to_interrupts(pid: int) -> bool:
    """Return whether a process blocks Ctrl-C."""
    (blocked,) = re.findall(r"^SigBlk:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(blocked, 16) >> (signal.SIGINT - 1) & 1)


class Command:
    """``specframe run`` with workers on a file of prompts."""

    def __init__(self, folder: Path) -> None:
        self.prompts, self.output = folder / "prompts.jsonl", folder / "out.jsonl"
        texts = [f"def function_{i}(x, y):\n    " for i in range(60)]
        # the last one takes seconds, so that no run ends before it is ended
        lengths = [*[24] * 59, 900]
        self.entries: list[dict[str, Any]] = [
            {"prompt": text, "max_new_tokens": length, "min_new_tokens": length}
            for text, length in zip(texts, lengths, strict=True)
        ]
        self.prompts.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries))

    def arguments(self, workers: int = 2) -> list[str]:
        """Return the command line, which begins the file of results or goes on with it."""
        options = ["--prompts", str(self.prompts), "--target", "tiny", "--batch-size", "2"]
        files = ["--output", str(self.output), *(["--resume"] if self.output.exists() else [])]
        executor = ["--executor", f"workers,count={workers}"]
        return [sys.executable, "-m", "specframe", "run", *options, *files, *executor, "--quiet"]

    def begun(self) -> subprocess.Popen[str]:
        """Return the command after it has written some results, or all but the last."""
        wanted = min(len(self.results()) + 5, len(self.entries) - 1)
        running = subprocess.Popen(
            self.arguments(), stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=hears_interrupts
        )
        wait_for(lambda: len(workers_of(running.pid)) == 2 and len(self.results()) >= wanted, seconds=200)
        return running

    def results(self) -> list[tuple[int, list[int]]]:
        """Return the index and the tokens of every result in the file."""
        *lines, _ = self.output.read_text().split("\n") if self.output.exists() else [""]
        return sorted((line["index"], line["token_ids"]) for line in map(json.loads, lines) if "index" in line)


def gone(pids: list[int]) -> bool:
    """Return whether none of the processes runs."""
    return not any(map(alive, pids))


def test_a_run_that_is_ended_in_every_way(tmp_path: Path) -> None:
    """SIGTERM, Ctrl-C and ``kill -9`` leave no process, and ``--resume`` completes the results all the same."""
    command = Command(tmp_path)
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)):
        running = command.begun()
        left = children(running.pid)
        assert [deaf_to_interrupts(pid) for pid in workers_of(running.pid)] == [True, True]
        if number == signal.SIGINT:
            os.killpg(running.pid, number)
        else:
            running.send_signal(number)
        _, told = running.communicate(timeout=1200)
        assert running.returncode == status, told
        assert len(told.strip().splitlines()) == (number != signal.SIGKILL), told
        wait_for(lambda left=left: gone(left))  # type: ignore[misc]
    assert len(command.results()) < len(command.entries)
    ended = CliRunner().invoke(cli, command.arguments(workers=1)[3:])
    assert ended.exit_code == 0, ended.stderr
    texts = [entry.pop("prompt") for entry in command.entries]
    expected = Pipeline("tiny", batch_size=2).generate(texts, sampling=[Sampling(**entry) for entry in command.entries])
    assert command.results() == [(result.index, result.token_ids) for result in expected]
