"""The examples run, and show what they say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
SHOWS = {
    "batch": r"(?s)--- 0: .*--- 3: .*\d+ tokens, \d+ per second",
    "compare_alignments": r"(?s)plain decoding .*ragged .*eqspec .*exspec .*the tokens are equal",
    "drop_in": r"(?s)import os\n.*def read_lines.*class Stack.*the same tokens as without drafts: True",
    "observer": r"(?s)round +1: read prompts of \[\d+, \d+\] tokens\nround +2: prompt 0 at \d+: \d/5, prompt 1 at ",
    "own_drafter": r"(?s)def second\(items\):\n.*acceptance rate \d",
    "own_model": r"0 \w+ \[.*\]\n1 \w+ \[.*\]\n2 \w+ \[.*\]",
    "stream": r"(?s)sample [01]: \d+ tokens, '.*sample [01]: (stop|length), log-probability -\d",
}
"""What each example prints, as a pattern."""

ELSEWHERE = {"trl_grpo"}
"""Examples that need packages of their own: ``make test-trl`` runs them."""


@pytest.mark.wide
def test_every_example_is_tested() -> None:
    """There is an expectation for each example."""
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SHOWS) | ELSEWHERE


@pytest.mark.wide
@pytest.mark.parametrize("example", sorted({*SHOWS, *ELSEWHERE}))
def test_example_is_short(example: str) -> None:
    """An example has at most 40 lines, and says in its first what it shows."""
    lines = (FOLDER / f"{example}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert re.fullmatch(r'""".+\."""', lines[0])


@pytest.mark.wide(but=["stream"])
@pytest.mark.parametrize("example", sorted(SHOWS))
def test_example_runs(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example runs by itself from any folder, and prints what its docstring says."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / f"{example}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(SHOWS[example], printed), printed
