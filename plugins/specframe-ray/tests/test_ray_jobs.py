"""Jobs on a Ray cluster of this machine: the ids of one process, every row once, whatever ends a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from specframe import Pipeline, Sampling

OPTIONS: dict[str, Any] = {"target": "tiny", "batch_size": 3, "draft_length": 3, "device": "cpu", "seed": 5}
PROMPTS = [f"def f{place}(x):\n    return" for place in range(12)]


def command(folder: Path, *more: str, form: str = "parquet", rows: int = 3) -> list[str]:
    """Return the command that decodes the prompts of a folder to its folder ``out``."""
    given = ["--prompts", str(folder / "in.jsonl"), "--output", str(folder / "out"), "--target", "tiny", "--quiet"]
    how = ["--batch-size", "3", "--draft-length", "3", "--seed", "5", "--max-new-tokens", "12", "--temperature", "0.8"]
    executor = f"ray,workers=2,rows={rows},form={form}"
    return [sys.executable, "-m", "specframe", "run", "--executor", executor, *given, *how, *more]


def written(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of results, by their label."""
    found = [row for path in (folder / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    found += [
        json.loads(line) for path in (folder / "out").glob("[!_]*.json") for line in path.read_text().splitlines()
    ]
    return sorted((row for row in found if "label" in row), key=lambda row: row["label"])


def committed(folder: Path) -> int:
    """Return the number of rows that are noted as done."""
    noted = (folder / "out" / "_checkpoint").glob("*.parquet")
    return sum(pq.read_metadata(path).num_rows for path in noted)


def alone(prompts: list[str]) -> list[list[int]]:
    """Return the ids of one process."""
    results = Pipeline(**OPTIONS).generate(prompts, 12, sampling=Sampling(temperature=0.8))
    return [result.token_ids for result in results]


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_job(tmp_path: Path, form: str) -> None:
    """Two actors give the ids of one process; columns stay, wrong rows fail alone, and nothing is done twice."""
    lines = [json.dumps({"prompt": text, "label": place, "tag": "t"}) for place, text in enumerate(PROMPTS)]
    lines += [json.dumps({"label": 12, "other": "x"}), json.dumps({"prompt": "a", "label": 13, "top_p": 7})]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        command(tmp_path, "--report", str(tmp_path / "r.json"), form=form), capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "2 of 14 prompts failed" in done.stderr
    rows = written(tmp_path)
    assert [row["label"] for row in rows] == [*range(14)]
    assert [row["token_ids"] for row in rows[:12]] == alone(PROMPTS)
    assert {(row["tag"], row["error"], row["finish_reason"]) for row in rows[:12]} == {("t", None, "length")}
    assert [row["id"] for row in rows[:2]] == ["in.jsonl:0", "in.jsonl:1"]
    assert [row["finish_reason"] for row in rows[12:]] == ["error"] * 2
    assert "expected one of prompt" in rows[12]["error"]
    assert "top_p" in rows[13]["error"]
    figures = json.loads((tmp_path / "r.json").read_text())["figures"]
    assert (figures["sequences"], figures["errors"], figures["tokens"]) == (12, 2, 144)


def test_resume_after_a_crash(tmp_path: Path) -> None:
    """After ``kill -9`` of the command, ``--resume`` decodes the rows that are not noted as done, and no other."""
    count = 120
    prompts = [f"def f{place}(x):\n    return" for place in range(count)]
    lines = [json.dumps({"prompt": text, "label": place}) for place, text in enumerate(prompts)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    running = subprocess.Popen(command(tmp_path), stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 120
    while not committed(tmp_path):
        assert running.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    time.sleep(3)  # what the cluster still writes
    before = committed(tmp_path)
    report = tmp_path / "r.json"
    done = subprocess.run(command(tmp_path, "--resume", "--report", str(report)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["figures"]["sequences"] == count - before < count
    rows = written(tmp_path)
    assert [row["label"] for row in rows] == [*range(count)]
    assert [row["token_ids"] for row in rows] == alone(prompts)


def test_a_data_set_in_python() -> None:
    """``specframe_ray.map`` puts the columns of results beside those of a data set."""
    code = f"""
import specframe_ray
from specframe_ray import job
job.begin(job.Place(2, 0, 1))
import ray.data
prompts = {PROMPTS!r}
rows = ray.data.from_items([{{"prompt": text, "label": i}} for i, text in enumerate(prompts)], override_num_blocks=3)
found = specframe_ray.map(rows, {OPTIONS!r}, max_new_tokens=12, workers=2).take_all()
found.sort(key=lambda row: row["label"])
from specframe import Pipeline
alone = [one.token_ids for one in Pipeline(**{OPTIONS!r}).generate(prompts, 12)]
assert [[*row["token_ids"]] for row in found] == alone
assert {{row["finish_reason"] for row in found}} == {{"length"}}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
