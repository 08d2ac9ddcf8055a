"""The progress bar: how many of how many, how fast, how long yet; on terminals alone."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console
from specframe_ray.ray_command import Rows


def drawn(quiet: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what is drawn of two rows that were done before, and three more in four seconds, of nine."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, get_time=lambda: now[0])
    with Rows(quiet, console) as progress:
        for now[0], done in ((0.0, 2), (1.0, 3), (4.0, 5)):
            progress(done, 9)
            progress._bar.refresh()
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_rows_that_are_decoded_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal is shown how many rows are done of how many, how many a second of this run's own, and how long it takes yet."""
    last = drawn(False, True, monkeypatch).strip().splitlines()[-1]
    assert re.search(r"decoding .* 5/9 0\.8 rows/s 0:00:04 left 0:00:0[4-6]", last), last


@pytest.mark.parametrize(("quiet", "terminal"), [(True, True), (False, False)])
def test_nothing_is_drawn(quiet: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet run, and one whose standard error is no terminal, show none."""
    assert drawn(quiet, terminal, monkeypatch).strip() == ""
