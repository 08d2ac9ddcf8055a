"""The benchmarks' own arithmetic, and the GPU suite on a CPU."""

from __future__ import annotations

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

from specframe.contracts.drafts import Acceptance, Draft, Transfer
from specframe.models import loading as models

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import budgeted
import checkout
import contenders
import following
import gpu_fast
import gpu_suite
import measure
import traffic
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


def measured(script: str, output: Path, *words: str) -> Any:
    """Run a benchmark's script, which has to end well, and return what it has written."""
    command = [sys.executable, str(BENCHMARKS / script), *words, "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=700, env=os.environ)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return json.loads(output.read_text())


@pytest.mark.slow
def test_every_contender_gives_the_reference_decoders_tokens(pair: contenders.Models, prompts: list[list[int]]) -> None:
    """transformers' own decoding and all schemes are measured on the same output."""
    judge = Judge(pair, prompts, 6)
    for batch in (1, 3):
        found = {one.name: judge.compare(one.decode(prompts, 6), 0.0) for one in contenders.contenders(pair, batch, 4)}
        assert {"transformers plain", "plain", "ragged", "eqspec", "exspec"} <= set(found)
        assert ("transformers assisted" in found) == (batch == 1)
        assert {(one.compared, one.exact) for one in found.values()} == {(3, 3)}


@pytest.mark.wide
def test_a_policy_learns_while_all_drafters_decode_its_rollouts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the first step both heads accept as much, later the one that has learnt accepts otherwise; rewards are those of a step."""
    for name, value in {"PROMPTS": 1, "SAMPLES": 2, "NEW": 12, "EPOCH": 1}.items():
        monkeypatch.setattr(following, name, value)
    rows = following.run("tiny-medusa", 4, 0.05, 1e-3, str(tmp_path / "responses"))
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    lengths = [(row["length"]["as it was"], row["length"]["follows"]) for row in rows]
    assert lengths[0][0] == lengths[0][1]
    assert any(one != other for one, other in lengths[1:])
    assert len({row["reward"] for row in rows}) > 1


@pytest.mark.wide
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


@pytest.mark.nightly
@pytest.mark.slow
def test_the_gpu_suite_runs_on_a_cpu(tmp_path: Path) -> None:
    """All parts of the suite run, small, and find nothing wrong."""
    result = measured("gpu_suite.py", tmp_path / "suite.json", "--small")
    parts = "traffic sanitizer bitwise tests suites equivalence attention heads rounds bench"
    assert {part: found["wrong"] for part, found in result.items()} == dict.fromkeys(parts.split(), False)
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
    words = ("--streams", "9", "--seconds", "6", "--batch-size", "4")
    figures = measured("soak.py", tmp_path / "soak.json", *words)
    assert figures["streams"] > 0
    assert figures["kinds with other tokens"] == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_run_is_completed(tmp_path: Path) -> None:
    """A run of which a process was killed has every result once in the end, with the ids of one process."""
    words = ("--victims", "driver", "--times", "1", "--count", "12", "--new", "3")
    found = measured("kills.py", tmp_path / "kills.json", *words)["workers,count=2"]["cycles"]
    assert [run["status"] for cycle in found["driver"] for run in cycle["runs"] if run["killed"]] == [-9]
    assert all(cycle["complete"] and not cycle["faults"] for cycle in found["driver"])


class Clocked:
    """A worker whose cells take given seconds of a clock, or fail."""

    def __init__(self) -> None:
        self.now, self.limits = 100.0, dict[str, float]()

    def ask(self, cell: budgeted.Cell, seconds: float, left: float) -> budgeted.Row:
        self.limits[cell.name] = seconds
        self.now += min(cell.options["takes"], seconds)
        return {"outcome": "measured" if cell.options["takes"] <= seconds else "failed", "figures": []}


def budget_of(*cells: tuple[str, str, float, float]) -> tuple[list[budgeted.Row], list[tuple[str, int]], Clocked]:
    """Return the rows of cells (section, name, expected and real seconds) within 100 seconds, what was kept, and the worker."""
    worker, kept = Clocked(), list[tuple[str, int]]()
    asked = [budgeted.Cell(section, name, "", {"takes": takes}, about) for section, name, about, takes in cells]
    rows = budgeted.measured(
        asked,
        {"first": 30, "second": 30},
        100,
        worker.ask,
        lambda rows, row: kept.append((row["cell"], len(rows))),
        lambda: worker.now,
    )
    return rows, kept, worker


def test_cells_keep_to_their_sections_share_and_to_the_budget() -> None:
    """A cell that would not fit is scheduled at the end if time is left; a cell's limit is its section's end and some slack."""
    rows, kept, worker = budget_of(
        ("first", "a", 20, 10),
        ("first", "b", 45, 40),
        ("second", "c", 20, 20),
        ("second", "d", 90, 1),
        ("second", "e", 9, 9),
    )
    told = {row["cell"]: row["outcome"] for row in rows}
    assert told == {"a": "measured", "b": "measured", "c": "measured", "d": "skipped", "e": "measured"}
    assert [name for name, _ in kept] == ["a", "b", "c", "d", "e", "b", "d"]
    assert [count for _, count in kept] == [1, 2, 3, 4, 5, 5, 5], "all rows are written as each cell ends"
    assert rows[3]["reason"] == "21 s were left, and it takes about 90"
    assert worker.limits == {"a": 60, "c": 100 - 10, "e": 100 - 30, "b": 100 - 39}
    assert rows[1]["seconds"] == 40
    assert "reason" not in rows[1]
    rows, _, worker = budget_of(("first", "slow", 20, 300), ("second", "next", 20, 300))
    assert [row["seconds"] for row in rows] == [60, 40]
    assert worker.now <= 200, "the budget is kept whatever cells do"


CELLS = """
import os, time, warnings
from budgeted import AbsentError
class Cells:
    def __init__(self, word): self.word, self.healthy = word, True
    def recover(self): return self.healthy
    def fine(self): return [{"word": self.word, "process": os.getpid()}]
    def missing(self): raise AbsentError("no such device")
    def broken(self): raise ValueError("one line\\nand another")
    def lost(self): self.healthy = False; raise RuntimeError("illegal access")
    def crash(self): os._exit(7)
    def hang(self): time.sleep(60)
"""


def test_a_cell_that_ends_its_process_is_a_line_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error is reported and the process goes on; after a lost device, a crash or a cell that hangs another process does."""
    (tmp_path / "some_cells.py").write_text(CELLS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    worker = budgeted.Worker("some_cells", "Cells", {"word": "set"})
    names = ("fine", "missing", "broken", "fine", "lost", "fine", "crash", "hang", "fine")
    try:
        rows = [worker.ask(budgeted.Cell("", name, name, {}, 1), 1 if name == "hang" else 1200, 1200) for name in names]
    finally:
        worker.close()
    told = [row.get("reason", row["outcome"]) for row in rows]
    assert told == [
        "measured",
        "no such device",
        "ValueError: one line",
        "measured",
        "RuntimeError: illegal access",
        "measured",
        "its process ended with status 7",
        "it took longer than 1 s, so its process was ended",
        "measured",
    ]
    assert rows[2]["trace"][-2:] == ["ValueError: one line", "and another"]
    first, same, second, third = (row["figures"][0] for row in rows if "figures" in row)
    assert first == same
    assert first["word"] == "set"
    assert len({first["process"], second["process"], third["process"]}) == 3
    worker = budgeted.Worker("some_cells", "Cells", {})
    assert worker.ask(budgeted.Cell("", "fine", "fine", {}, 1), 1200, 1200)["reason"].startswith(
        "TypeError: Cells.__init__()"
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_the_cells_of_a_gpu_run_on_the_simulated_device(tmp_path: Path) -> None:
    """Everything that exists is measured, small, and all that is not says why."""
    rows = measured("gpu_fast.py", tmp_path / "cells.json", "--small")["cells"]
    assert {row["reason"] for row in rows if row["outcome"] == "skipped"} == {
        "there is no compiler for sim",
        "there is no Triton, or no CUDA",
        "sim has no kernel for it",
    }
    assert {row["section"] for row in rows if row["outcome"] == "measured"} == set(gpu_fast.SHARES)
    assert all(one["nodes"] > 150 for row in rows if row["section"] == "forwards" for one in row.get("figures", []))


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


@pytest.mark.wide
def test_a_wait_in_a_strict_run_is_a_fault() -> None:
    """Where waits are refused, one is an error that says where, but for a round's transfer."""
    models.pick_device("sim")
    acceptance = Acceptance(
        torch.zeros(1, dtype=torch.long, device="sim"), torch.zeros(1, 1, dtype=torch.long, device="sim")
    )
    transfer = Transfer(Draft(acceptance.tokens_BT[:, :0]), acceptance)
    with traffic.strict(torch.device("sim")):
        assert transfer.host.accepted.tolist() == [0]
        with pytest.raises(RuntimeError, match=r"item.*test_benchmarks"):
            acceptance.accepted_B[0].item()
    assert acceptance.accepted_B[0].item() == 0
