"""Memory plans: what is chosen, the least, the knee, speeds from files, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import invoke
from specframe_lab.planning.candidates import Candidate, CandidatePlan, measured_speeds
from specframe_memory.allocations import Allocations
from specframe_testing import zoo

from specframe import Pipeline
from specframe.errors import OptionError
from specframe.models import loading


def candidate(rows: int, length: int, total: int, speed: float) -> Candidate:
    """Return a candidate."""
    return Candidate(rows, length, total, 0, {"all": total}, speed)


PLAIN, SHORT, LONG, MANY, LARGE = (
    candidate(1, 0, 100, 10),
    candidate(1, 2, 120, 20),
    candidate(1, 5, 130, 25),
    candidate(8, 2, 300, 97),
    candidate(8, 5, 400, 100),
)
ALL = [PLAIN, SHORT, LONG, MANY, LARGE]


def test_the_knee_keeps_most_of_the_greatest_speed() -> None:
    """The knee is the one with the fewest bytes among those with 96% of the greatest speed, whatever fits."""
    assert CandidatePlan(ALL, 110).knee is MANY
    assert CandidatePlan([*ALL[:3], candidate(8, 2, 300, 95.9), LARGE], None).knee is LARGE


@pytest.mark.wide
def test_measured_speeds_are_the_medians_of_runs(tmp_path: Path) -> None:
    """Runs of one batch size and draft length are one speed; those of adaptive lengths are none."""
    file = tmp_path / "results.jsonl"
    runs = [
        {"cell": {"batch_size": 2, "draft_length": length}, "plain": plain, "figures": {"tokens_per_second": speed}}
        for length, plain, speed in (*(("3", False, speed) for speed in (5, 9, 6)), ("5", True, 2), ("auto", False, 7))
    ]
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))
    assert measured_speeds(str(file)) == {(2, 3): 6, (2, 0): 2}
    file.write_text("{}\n")
    with pytest.raises(OptionError, match="has no run with a batch size"):
        measured_speeds(str(file))
    with pytest.raises(OptionError, match="cannot be read"):
        measured_speeds(str(tmp_path / "none"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A pair in folders."""
    return zoo.save_pair(tmp_path_factory.mktemp("pair"))[1::2]


def run(pair: list[str], *options: str) -> Any:
    """Return what the command has done with a pair."""
    asked = ["--target", pair[0], "--drafter", pair[1], "--batch-size", "2", "--draft-length", "2"]
    asked += ["--dtype", "float32", "--prompt-tokens", "8", "--max-new-tokens", "3"]
    return invoke("plan", *asked, *options)


@pytest.mark.quick
def test_a_plan_is_that_of_the_run(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without loading weights the command gives the bytes of the caches to the byte, and no run takes more than it says."""
    with monkeypatch.context() as patched:
        patched.setattr(loading, "load_model", None)
        found = run(pair, "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert [(one["batch_size"], one["draft_length"]) for one in told["candidates"]] == [(2, 0), (2, 2)]
    planned = told["candidates"][1]
    assert sum(planned["parts"].values()) == planned["bytes"]
    pipe = Pipeline(*pair, batch_size=2, draft_length=2, device="cpu", dtype="float32", generation_config=None)
    counter = Allocations()
    models = [model for model in (pipe.target_model, pipe.draft_model) if model is not None]
    counter.hold([tensor for one in models for tensor in (*one.parameters(), *one.buffers())], "weights")
    with counter, torch.inference_mode():
        list(pipe.generate([[1] * 8, [2] * 8, [3] * 8, [4] * 5], 3))
    assert pipe.report.peak_kv_bytes == planned["kv_bytes"]
    assert counter.peak.total <= planned["bytes"]


@pytest.mark.wide
def test_the_table_tells_what_fits(pair: list[str]) -> None:
    """Each candidate is a line, and the chosen one is shown with its options; with less than the least there is one sentence."""
    table = run(pair, "--memory", "1GB", "--acceptance", "0.5")
    assert table.exit_code == 0, table.output
    assert table.stdout.count("yes") == 2
    assert "chosen: --batch-size 2 --drafter none" in table.stdout  # a draft model as large as its target
    assert "target's weights: " in table.stdout


def test_what_does_not_fit_is_shown(pair: list[str]) -> None:
    """With less memory than the least the candidates are shown all the same, and one sentence says the least."""
    refused = run(pair, "--memory", "1KB")
    assert refused.exit_code != 0
    assert (refused.stdout.count("  no\n"), "chosen" in refused.stdout) == (2, False)
    assert "least: --batch-size" in refused.stdout
    assert "expected at least" in refused.stderr
    assert "got 1,000 bytes (1.00 KB)" in refused.stderr
