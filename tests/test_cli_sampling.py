"""Sampling, stopping and streaming from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import pytest
from click.testing import Result

TINY = ["--max-new-tokens", "10", "--draft-length", "3"]


pytestmark = pytest.mark.usefixtures("here")


def run(*arguments: str) -> Result:
    """Run ``specframe run`` on the embedded pair."""
    return command_line.invoke("run", *TINY, *arguments)


def decoded(*arguments: str) -> list[dict]:
    """Return the records of a run that succeeds."""
    result = run(*arguments, "--output", "out.jsonl")
    assert result.exit_code == 0, result.output
    kept = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    Path("out.jsonl").unlink()
    return kept


@pytest.mark.wide
def test_parameters_of_one_line() -> None:
    """What a JSON line says wins over the options; a wrong value fails that prompt alone, and other keys mean nothing."""
    Path("p.jsonl").write_text(
        '{"prompt": "import os", "max_new_tokens": 3, "id": 7}\n'
        '{"prompt": "import os", "temperature": 0, "samples": 1}\n'
        '{"prompt": "import os", "temperature": "hot"}\n'
    )
    options = ["--prompts", "p.jsonl", "--temperature", "1.3", "--samples", "2"]
    result = run(*options, "--output", "out.jsonl")
    kept = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert result.exit_code == 1
    assert [(one["index"], len(one["token_ids"])) for one in kept] == [(0, 3), (0, 3), (1, 10), (2, 0)]
    assert kept[3]["error"] == "p.jsonl line 3: temperature: expected a number of at least 0, got 'hot'"
    Path("out.jsonl").unlink()
    assert kept[2]["token_ids"] == decoded("import os")[0]["token_ids"]


def test_resume_completes_the_samples_of_a_prompt() -> None:
    """A file that lacks one sample of a prompt gets that one, the same as in one go."""
    options = ["import os", "class A:", "--temperature", "1", "--samples", "2", "--output", "out.jsonl"]
    assert run(*options).exit_code == 0
    whole = Path("out.jsonl").read_text().splitlines()
    Path("out.jsonl").write_text("\n".join([whole[0], whole[1], whole[3]]) + "\n")
    assert run(*options, "--resume").exit_code == 0
    assert Path("out.jsonl").read_text().splitlines() == whole
    changed = run(*options, "--resume", "--top-k", "5")
    assert changed.exit_code == 2
    assert "was made with top-k the default: expected 5" in changed.stderr
    cold = run("import os", "class A:", "--samples", "2", "--output", "out.jsonl", "--resume")
    assert "was made with temperature 1.0: expected the default" in cold.stderr


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--temperature", "1", "--accept", "greedy"], "choose a rule that samples"),
        (["--logprobs", "2"], "--logprobs: expected --output with it"),
    ],
)
def test_refused_values(options: list[str], reason: str) -> None:
    """A wrong value is one sentence and status 2."""
    assert reason in command_line.refusal("run", *TINY, "import os", *options)
