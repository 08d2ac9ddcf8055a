"""The progress bar: how many of how many, how fast, how long yet; on terminals alone."""

from __future__ import annotations

import io
import re
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from specframe.cli import cli
from specframe.cli.display_settings import DisplaySettings
from specframe.cli.progress import Rows
from specframe.contracts.job import Job
from specframe.observe.counts import RunReport
from specframe.plugins.hookspecs import hookimpl
from specframe.plugins.registry import offer, registry

FIGURES = RunReport(0, 0, 0, 1.0, 0, 0, 0, 0, 0.0, 0.0, {}, {}, 0.0, 0.0, 0, 0, 0)


def drawn(manner: DisplaySettings, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what is drawn of two rows that were done before, and three more in four seconds, of nine."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, get_time=lambda: now[0])
    with Rows(manner, console) as progress:
        for now[0], done in ((0.0, 2), (1.0, 3), (4.0, 5)):
            progress(done, 9)
            progress._bar.refresh()
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_rows_that_are_decoded_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal is shown how many rows are done of how many, how many a second of this run's own, and how long it takes yet."""
    last = drawn(DisplaySettings(), True, monkeypatch).strip().splitlines()[-1]
    assert re.search(r"decoding .* 5/9 0\.8 rows/s 0:00:04 left 0:00:0[4-6]", last), last


@pytest.mark.wide
@pytest.mark.parametrize(("manner", "terminal"), [(DisplaySettings(quiet=True), True), (DisplaySettings(), False)])
def test_nothing_is_drawn(manner: DisplaySettings, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet run, and one whose standard error is no terminal, show none."""
    assert drawn(manner, terminal, monkeypatch).strip() == ""


class Folders:
    """An executor that takes files as a whole, and decodes nothing."""

    offers = frozenset({"files"})
    asked: Job

    def open(self, *_: Any) -> None:
        """Not called."""

    def agree(self, value: Any) -> Any:
        return value

    def decode_files(self, job: Job) -> tuple[int, int, dict[str, Any]]:
        Folders.asked = job
        job.progress(0, 3)
        job.progress(3, 3)
        return 3, 0, FIGURES.figures()


@pytest.fixture
def _folders() -> Iterator[None]:
    """Register the executor "folders" for one test."""
    plugin = types.SimpleNamespace()

    def implementation(register: Any) -> None:
        register("folders", Folders)

    plugin.specframe_register_executors = hookimpl(implementation, specname="specframe_register_executors")
    offer(registry(), plugin, "specframe-stranger")
    yield
    registry.cache_clear()


@pytest.mark.wide
@pytest.mark.usefixtures("_folders")
def test_a_job_is_shown() -> None:
    """An executor that takes files is given what shows the progress of its rows."""
    files = ["--prompts", "p", "--output", "o"]
    done = CliRunner().invoke(cli, ["run", "--executor", "folders", *files, "--samples", "1"])
    assert (done.exit_code, done.stderr) == (0, "o holds all 3 results\n"), done.output
    assert isinstance(Folders.asked.progress, Rows)


@pytest.mark.wide
@pytest.mark.usefixtures("_folders")
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["run", "--limit", "3"], "--limit: expected none with executor 'folders'"),
        (["run", "a text"], "PROMPT: expected none with executor 'folders'"),
        (["verify"], "--executor: expected one of one process, such as local, got 'folders'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_a_job_cannot_have(command: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an executor that takes files as a whole cannot do is refused in one sentence, before anything is loaded."""
    monkeypatch.setattr("specframe.models.loading.load_model", lambda *_: pytest.fail("a model was loaded"))
    more = ["--prompts", "p", "--output", "o"] if command[0] == "run" else []
    done = CliRunner().invoke(cli, [*command, "--executor", "folders", *more])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert told in done.stderr
