"""The file of results: what is taken over, and the order of its lines at the end."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from specframe_std import output_file
from specframe_std.result_file import ResultFile

from specframe.errors import OptionError
from specframe.text.prompts.prompt import Prompt

PROMPTS = [Prompt(text) for text in ("a", "b", "c")]


def kept(index: int, text: str = "") -> dict[str, Any]:
    """Return the record of a prompt's result."""
    return {"index": index, "prompt": PROMPTS[index].text, "text": text, "finish_reason": "length"}


def completed(lines: list[dict[str, Any]], further: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a file of these lines holds after a run that resumes it writes further ones."""
    Path("out.jsonl").write_text("".join(json.dumps(one | {"settings": {}}) + "\n" for one in lines))
    with ResultFile("out.jsonl", PROMPTS, {}, resume=True) as file:
        file.begin(len(PROMPTS))
        for one in further:
            file.write(one)
        file.finish()
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)


def test_lines_that_come_after_those_taken_over_are_sorted_in() -> None:
    """A file that had the last result already is in the order of prompts when the first ones are added."""
    assert [one["index"] for one in completed([kept(0), kept(2)], [kept(1)])] == [0, 1, 2]


def test_a_full_disk_after_the_last_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where lines cannot be sorted the sentence says that all are there and how to sort them; that loses nothing."""
    with ResultFile("out.jsonl", PROMPTS, {}) as file:
        file.begin(len(PROMPTS))
        for index in (1, 0, 2):
            file.write(kept(index))
        with monkeypatch.context() as patch:
            patch.setattr(output_file, "replace", lambda *_: full())
            with pytest.raises(
                OptionError, match=r"No space left on device; \S+ holds all 3 results, not in .*--resume"
            ):
                file.finish()
    before = Path("out.jsonl").read_text().splitlines()
    with ResultFile("out.jsonl", PROMPTS, {}, resume=True) as file:
        file.begin(len(PROMPTS))
    assert Path("out.jsonl").read_text().splitlines() == [before[1], before[0], before[2]]


def full() -> None:
    """Raise what a full disk raises."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_of_two_lines_of_one_prompt_the_later_counts() -> None:
    """A prompt that was decoded again has its later result."""
    found = completed([kept(0, "old"), kept(1), kept(0, "new")], [kept(2)])
    assert [(one["index"], one["text"]) for one in found] == [(0, "new"), (1, ""), (2, "")]


def test_samples_of_one_prompt_have_lines_of_their_own() -> None:
    """A sample takes neither the line of another, nor that of the next prompt, and samples are sorted."""
    found = completed([kept(1), kept(0) | {"sample": 1}], [kept(0)])
    assert [(one["index"], one.get("sample", 0)) for one in found] == [(0, 0), (0, 1), (1, 0)]
