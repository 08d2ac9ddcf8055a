"""The benchmarks' own arithmetic, and the GPU suite on a CPU."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from specframe_testing import zoo

from specframe import Pipeline
from specframe.contracts.drafts import Draft, Transfer, Verdict
from specframe.forward import unpadded
from specframe.models import loading as models

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import checkout
import contenders
import gpu_suite
import measure
import traffic
import uneven
from exactness import Judge
from grow import load_pair

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def pair() -> contenders.Models:
    target, draft, tokenizer = load_pair("embedded")
    return contenders.Models(target, draft, tokenizer, models.stop_token_ids(target, tokenizer))


@pytest.fixture(scope="module")
def prompts(pair: contenders.Models) -> list[list[int]]:
    return contenders.held_out_prompts(pair.tokenizer, 3)


def cell(name: str, batch: int, decode: Any) -> measure.Cell:
    return measure.Cell(contenders.Contender(name, batch, decode), 2)


def plan(rounds: int, seconds: float = 60) -> measure.Plan:
    pair: Any = contenders.Models(zoo.build("llama"), zoo.bad_draft(), None, frozenset())
    return measure.Plan(pair, [[1], [2], [3]], 4, rounds, 1e9, time.perf_counter() + seconds)


@pytest.mark.slow
def test_every_contender_gives_the_reference_decoders_tokens(pair: contenders.Models, prompts: list[list[int]]) -> None:
    """transformers' own decoding and all schemes are measured on the same output."""
    judge = Judge(pair, prompts, 6)
    for batch in (1, 3):
        found = {one.name: judge.compare(one.decode(prompts, 6), 0.0) for one in contenders.contenders(pair, batch, 4)}
        assert {"transformers plain", "plain", "ragged", "eqspec", "exspec"} <= set(found)
        assert ("transformers assisted" in found) == (batch == 1)
        assert {(one.compared, one.exact) for one in found.values()} == {(3, 3)}


def test_a_wrong_token_is_a_bug_and_an_early_end_is_too(pair: contenders.Models, prompts: list[list[int]]) -> None:
    """What parts from the reference is weighed; what there is no time to weigh is not called equal."""
    judge = Judge(pair, prompts, 4)
    plain = contenders.contenders(pair, 3, 4)[0].decode(prompts, 4)
    wrong = [[*plain[0][:2], 7, 7], plain[1][:2], plain[2]]
    assert str(judge.compare(wrong, 0.0)) == "1/3, 1 bugs, 1 unweighed"
    assert str(judge.compare(wrong, time.perf_counter() + 60)) == "1/3, 2 bugs"


def test_ratios_are_taken_within_a_round() -> None:
    """A round in which everything was slow changes no ratio; one that only one of both has is left out."""
    assert measure.ratio({0: 20.0, 1: 2.0, 2: 9.0}, {0: 10.0, 1: 1.0}) == 2
    assert measure.ratio({0: 1.0}, None) is None
    assert measure.median([3.0, None, 1.0, 2.0]) == 2


def test_a_cell_that_fails_is_a_line_and_the_others_go_on() -> None:
    """An error in one cell is its own; the cells after it, and the next round, are measured."""

    def broken(prompts: list[list[int]], new: int) -> list[list[int]]:
        raise torch.OutOfMemoryError("no room\nfor more")

    cells = [cell(measure.PLAIN, 1, broken), cell("fine", 1, lambda prompts, new: [[0] * new] * len(prompts))]
    measure.measure(cells, plan(rounds=2))
    first, second = measure.summary(cells, None, 0.0)
    assert first["fault"] == "OutOfMemoryError: no room"
    assert "tokens_per_second" not in first
    assert (second["fault"], len(second["by_round"]), second["to_plain"]) == (None, 2, None)


def test_what_benchmarks_import_is_declared() -> None:
    """Every plugin that a benchmark or a test for GPUs imports is found in a checkout that is not installed."""
    files = [*BENCHMARKS.glob("*.py"), *(BENCHMARKS.parent / name for name in gpu_suite.with_marks())]
    imported = {
        name for file in files for name in re.findall(r"^ *(?:from|import) (specframe_\w+)", file.read_text(), re.M)
    }
    assert {"specframe_std", "specframe_testing"} <= imported
    assert imported <= {name.replace("-", "_") for name in checkout.PLUGINS}


def test_a_part_that_is_not_installed_is_declared(tmp_path: Path) -> None:
    """What a checkout's pyproject.toml says of entry points is found as an installation's would be."""
    checkout.declare(
        {"name": "specframe-some", "version": "1.2", "entry-points": {"specframe": {"some": "specframe_some"}}},
        tmp_path,
    )
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    assert (found.metadata["Name"], found.version) == ("specframe-some", "1.2")
    assert [(point.group, point.name, point.value) for point in found.entry_points] == [
        ("specframe", "some", "specframe_some")
    ]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_gpu_suite_runs_on_a_cpu(tmp_path: Path) -> None:
    """All parts of the suite run, small, and find nothing wrong."""
    output = tmp_path / "suite.json"
    command = [sys.executable, str(BENCHMARKS / "gpu_suite.py"), "--small", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ)
    result = json.loads(output.read_text())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert {part: found["wrong"] for part, found in result.items()} == {
        "traffic": False,
        "sanitizer": False,
        "bitwise": False,
        "tests": False,
        "suites": False,
        "equivalence": False,
        "attention": False,
        "heads": False,
        "rounds": False,
        "bench": False,
    }
    assert [(row["equal"], row["bugs"]) for row in result["bitwise"]["rows"]] == [("3 of 3", 0)]
    assert [row["scheme"] for row in result["traffic"]["rows"]] == ["ragged", "eqspec"]
    assert {row["most_waits"] for row in result["traffic"]["rows"]} == {1}
    assert len(result["equivalence"]["rows"]) >= 10
    assert {row["way"] for row in result["attention"]["rows"]} == {"masked", "flex"}
    assert all(row["attend_ms"] > 0 and row["prepare_ms"] > 0 for row in result["attention"]["rows"])
    assert {row["draft"] for row in result["heads"]["rows"]} >= {"none", "eagle", "dflash", "medusa", "clover2", "mtp"}
    assert [(row["length"], row["run"]) for row in result["rounds"]["rows"]] == [("0", 1), ("0", 2), ("2", 1), ("2", 2)]
    cells = result["bench"]["runs"][0]["result"]["cells"]
    assert {cell["contender"] for cell in cells} >= {
        "transformers plain",
        "transformers assisted",
        "plain",
        "ragged",
        "exspec",
    }
    assert all(cell["fault"] is None and cell["exactness"].startswith("3/3") for cell in cells)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_server_keeps_streams_apart(tmp_path: Path) -> None:
    """Clients that hang up, read slowly and err leave the streams of others as they are."""
    output = tmp_path / "soak.json"
    command = [sys.executable, str(BENCHMARKS / "soak.py"), "--streams", "9", "--seconds", "6", "--batch-size", "4"]
    done = subprocess.run([*command, "--output", str(output)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    figures = json.loads(output.read_text())
    assert figures["streams"] > 0
    assert figures["kinds with other tokens"] == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_run_is_completed(tmp_path: Path) -> None:
    """A run of which a process was killed has every result once in the end, with the ids of one process."""
    output = tmp_path / "kills.json"
    command = [
        sys.executable,
        str(BENCHMARKS / "kills.py"),
        "--victims",
        "driver",
        "--times",
        "1",
        "--count",
        "12",
        "--new",
        "3",
    ]
    done = subprocess.run([*command, "--output", str(output)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = json.loads(output.read_text())["workers,count=2"]["cycles"]
    assert [run["status"] for cycle in found["driver"] for run in cycle["runs"] if run["killed"]] == [-9]
    assert all(cycle["complete"] and not cycle["faults"] for cycle in found["driver"])


def test_the_gpu_suite_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of an earlier run that found nothing wrong are kept, and so are those that are not asked for."""
    path, ran = tmp_path / "suite.json", list[str]()
    kept = {
        name: {"wrong": wrong, "rows": []} for name, wrong in (("traffic", False), ("heads", True), ("bitwise", True))
    }
    path.write_text(json.dumps(kept))

    def one(part: str, *_: Any) -> dict[str, Any]:
        ran.append(part)
        return {"status": 0, "seconds": 1.0, "lines": [], "rows": [], "wrong": False}

    monkeypatch.setattr(gpu_suite, "one", one)
    done = CliRunner().invoke(
        gpu_suite.main, ["--resume", "--parts", "bitwise,traffic,attention", "--small", "--output", str(path)]
    )
    assert ran == ["bitwise", "attention"]
    assert done.exit_code == 1, "what was wrong and is not run again stays wrong"
    found = json.loads(path.read_text())
    wrong = {part: outcome["wrong"] for part, outcome in found.items()}
    assert wrong == {"traffic": False, "heads": True, "bitwise": False, "attention": False}


def test_the_gpu_suite_runs_the_files_with_marks() -> None:
    """Every file with a test for CUDA is run, and no file without one."""
    files = gpu_suite.with_marks()
    assert {"tests/test_attention.py", "tests/test_equivalence.py", "tests/test_flex.py"} <= {*files}
    assert "tests/test_pool.py" not in files


@pytest.mark.slow
def test_traffic_is_told_by_round() -> None:
    """A scheme's waits and copies are counted per round, with their places, and its strict run is exact."""
    row = traffic.measure("eqspec", models.pick_device("sim"))
    assert (row["waits"], row["most_waits"], row["fault"]) == (1, 1, None)
    assert 0 < row["steady_copies"] <= 2
    assert any("eqspec.py" in place for place in row["places"])


def test_a_wait_in_a_strict_run_is_a_fault() -> None:
    """Where waits are refused, one is an error that says where, but for a round's transfer."""
    models.pick_device("sim")
    verdict = Verdict(torch.zeros(1, dtype=torch.long, device="sim"), torch.zeros(1, 1, dtype=torch.long, device="sim"))
    transfer = Transfer(Draft(verdict.tokens_BT[:, :0]), verdict)
    with traffic.strict(torch.device("sim")):
        assert transfer.host.accepted.tolist() == [0]
        with pytest.raises(RuntimeError, match=r"item.*test_benchmarks"):
            verdict.accepted_B[0].item()
    assert verdict.accepted_B[0].item() == 0


@pytest.mark.parametrize("name", uneven.CELLS)
def test_runs_that_leave_out_filler_are_compared_on_the_same_tokens(name: str) -> None:
    """Both kinds of runs are made and timed, of the rows that a cell says, and what was changed for that is as it was."""
    target, (policy, share), pays = zoo.build("llama"), uneven.CELLS[name], unpadded.FILLER_PAYS
    watch, asked = uneven.Verifying(torch.device("cpu")), uneven.asked(4, share, 8)
    assert [one.speculate for one in asked].count(True) == 4 * share
    how = {"draft_length": policy, "batch_size": 4, "generation_config": None, "observers": [watch]}
    found = uneven.ratios(Pipeline(target, zoo.good_draft(target), accept="greedy", **how), watch, asked, 1)
    assert found["same_tokens"] == 1
    assert min(found["verify"], found["whole"]) > 0
    assert pays == unpadded.FILLER_PAYS
