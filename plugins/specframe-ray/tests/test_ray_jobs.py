"""Jobs on a Ray cluster of this machine: the ids of one process, every row once, whatever ends a run.

All tests use one cluster. Most jobs are begun in this process, since importing torch takes longer than they do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.data
from click.testing import CliRunner, Result
from specframe_ray import job, ray_watch
from specframe_ray.ray_command import Rows

from specframe import Pipeline, Sampling
from specframe.cli import cli
from specframe.errors import OptionError

OPTIONS: dict[str, Any] = {"target": "tiny", "batch_size": 3, "draft_length": 3, "device": "cpu", "seed": 5}
HOW = ["--batch-size", "3", "--draft-length", "3", "--seed", "5", "--max-new-tokens", "12", "--temperature", "0.8"]
PROMPTS = [f"def f{place}(x):\n    return" for place in range(14)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """A cluster that all jobs join; its address."""
    job.begin(job.ResultPlace(1, 0, 1))
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def arguments(folder: Path, *more: str, workers: int = 1, form: str = "parquet") -> list[str]:
    """Return the arguments of a job that decodes the folder ``in`` to the folder ``out``."""
    files = ["--prompts", str(folder / "in"), "--output", str(folder / "out"), "--target", "tiny", "--quiet"]
    return ["run", "--executor", f"ray,workers={workers},rows=3,form={form}", *files, *HOW, *more]


def invoked(folder: Path, *more: str, **how: Any) -> Result:
    """Run a job in this process."""
    return CliRunner().invoke(cli, arguments(folder, *more, **how))


def lines(folder: Path, rows: list[dict[str, Any]], name: str = "a.jsonl") -> None:
    """Write a file of JSON lines into the folder ``in``."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


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
    return sum(pq.read_metadata(path).num_rows for path in noted if ".pending." not in path.name)


def alone(prompts: list[str]) -> list[list[int]]:
    """Return the ids of one process."""
    results = Pipeline(**OPTIONS).generate(prompts, 12, sampling=Sampling(temperature=0.8))
    return [result.token_ids for result in results]


def figures(folder: Path) -> dict[str, Any]:
    """Return the figures that a job has written."""
    found: dict[str, Any] = json.loads((folder / "r.json").read_text())["figures"]
    return found


def test_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two actors give the ids of one process and keep columns; wrong rows fail alone, and are decoded again by ``--resume``."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(Rows, "__call__", lambda self, *counts: told.append(counts))
    rows: list[dict[str, Any]] = [
        {"prompt": text, "label": place, "tag": "t"} for place, text in enumerate(PROMPTS[:12])
    ]
    wrong = [{"label": 12, "other": "x"}, {"prompt": PROMPTS[13], "label": 13, "top_p": 7}]
    lines(tmp_path, rows + wrong)
    report = ("--report", str(tmp_path / "r.json"))
    done = invoked(tmp_path, *report, workers=2, form="jsonl")
    assert (done.exit_code, "2 of 14 prompts failed" in done.stderr) == (1, True), done.stderr
    found = written(tmp_path)
    assert [row["label"] for row in found] == [*range(14)]
    expected = alone(PROMPTS)
    assert [row["token_ids"] for row in found[:12]] == expected[:12]
    assert {(row["tag"], row["error"], row["finish_reason"]) for row in found[:12]} == {("t", None, "length")}
    assert [row["id"] for row in found[:2]] == ["a.jsonl:0", "a.jsonl:1"]
    assert [row["finish_reason"] for row in found[12:]] == ["error"] * 2
    assert "expected one of prompt" in found[12]["error"]
    assert "top_p" in found[13]["error"]
    counted = figures(tmp_path)
    assert (counted["sequences"], counted["errors"], counted["tokens"]) == (12, 2, 144)
    assert (told[0], told[-1], told) == ((0, 14), (14, 14), sorted(told))
    told.clear()

    lines(tmp_path, [*rows, wrong[0], wrong[1] | {"top_p": 1}])
    done = invoked(tmp_path, *report, "--resume", form="jsonl")
    assert (done.exit_code, "1 of 14 prompts failed" in done.stderr) == (1, True), done.stderr
    again = written(tmp_path)
    assert [row["label"] for row in again] == [*range(14)]
    assert again[:12] == found[:12]
    assert (again[12]["finish_reason"], again[13]["token_ids"]) == ("error", expected[13])
    assert (figures(tmp_path)["sequences"], figures(tmp_path)["errors"]) == (1, 1)
    assert (told[0], told[-1]) == ((12, 14), (14, 14))


def test_resume_after_a_crash(tmp_path: Path, cluster: str) -> None:
    """After ``kill -9`` of the command, ``--resume`` decodes the rows that are not noted as done, and no other."""
    count = 90
    prompts = [f"def f{place}(x):\n    return" for place in range(count)]
    lines(tmp_path, [{"prompt": text, "label": place} for place, text in enumerate(prompts[:30])])
    for name, places in (("b", range(30, 60)), ("c", range(60, 90))):
        table = pa.table({"prompt": prompts[places.start : places.stop], "label": places, "more": [[1, 2]] * 30})
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet")
    running = subprocess.Popen(
        [sys.executable, "-m", "specframe", *arguments(tmp_path)],
        env=os.environ | {"RAY_ADDRESS": cluster},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + 200
    while not committed(tmp_path):
        assert running.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    quiet = committed(tmp_path), 0
    while quiet[1] < 20:  # what the cluster still writes
        time.sleep(0.1)
        now = committed(tmp_path)
        quiet = now, quiet[1] + 1 if now == quiet[0] else 0
    before = quiet[0]
    done = invoked(tmp_path, "--resume", "--report", str(tmp_path / "r.json"))
    assert done.exit_code == 0, done.stderr
    assert 0 < figures(tmp_path)["sequences"] <= count - before < count
    rows = written(tmp_path)
    assert [row["label"] for row in rows] == [*range(count)]
    assert [row["token_ids"] for row in rows] == alone(prompts)
    assert {row["label"]: row["more"] for row in rows} == {
        place: None if place < 30 else [1, 2] for place in range(count)
    }


def test_a_data_set_in_python() -> None:
    """``Pipeline.map`` puts the columns of results beside those of a data set."""
    rows = [{"prompt": text, "label": place} for place, text in enumerate(PROMPTS[:6])]
    data = ray.data.from_items([*rows, {"prompt": "", "label": 6}], override_num_blocks=2)
    pipe = Pipeline(**OPTIONS, executor="ray")
    found = sorted(pipe.map(data, 12).take_all(), key=lambda row: row["label"])
    expected = [result.token_ids for result in Pipeline(**OPTIONS).generate(PROMPTS[:6], 12)]
    assert [[*row["token_ids"]] for row in found[:6]] == expected
    assert [row["finish_reason"] for row in found] == ["length"] * 6 + ["error"]
    assert "parts" not in vars(pipe)


def test_machines_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a machine has another version, nothing is decoded: neither a file nor a data set."""
    monkeypatch.setattr(job, "versions", lambda: {"torch": str(os.getpid())})
    lines(tmp_path, [{"prompt": "a", "label": 0}])
    done = invoked(tmp_path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"Error: executor ray: expected torch {os.getpid()} on every machine, as here, got " in done.stderr
    assert written(tmp_path) == []
    with pytest.raises(OptionError, match="expected torch"):
        Pipeline("tiny", executor="ray").map(ray.data.from_items([{"prompt": "a"}]))


def test_the_process_that_is_watched() -> None:
    """Ray's own process of this machine is found among all processes, and lives."""
    found = ray_watch.raylet(ray.get_runtime_context().get_node_id())
    assert found is not None
    assert not ray_watch.ended(found)
    assert ray_watch.raylet("0" * 56) is None


def test_what_cannot_be_mapped() -> None:
    """Another data set, and prompts that are decoded step by step, are refused in one sentence; so is an object for an option."""
    pipe = Pipeline("tiny", executor="ray")
    with pytest.raises(OptionError, match="map: expected a data set of Ray with executor ray, got"):
        pipe.map([{"prompt": "a"}])
    with pytest.raises(OptionError, match="executor ray: expected files of prompts"):
        [*pipe.generate(["a"])]
    given = Pipeline("tiny", executor="ray", tokenizer=pipe.tokenizer)
    with pytest.raises(OptionError, match="tokenizer: expected a plain value with executor ray, got"):
        given.map(ray.data.from_items([{"prompt": "a"}]))


def test_a_cluster_without_room(recwarn: pytest.WarningsRecorder) -> None:
    """Actors that would leave nothing for reading are refused in a sentence."""
    job.warn_of_waiting(job.ResultPlace(2, 0, 1))
    assert not recwarn.list
    job.warn_of_waiting(job.ResultPlace(5, 0, 1))
    assert "the cluster has 5 CPUs, of which actors take 5 and reading 1" in str(recwarn.pop().message)


def test_the_innermost_error_is_told() -> None:
    """Of an error with causes, the first one's sentence is shown, without what Ray adds."""
    outer = RuntimeError("a task failed")
    outer.__cause__ = OSError(28, "No space left on device", "Failed to apply UDF transform")
    assert job.told(outer) == "No space left on device"
    assert job.told(ValueError("x is wrong.")) == "x is wrong"
    assert job.told(job.ray.exceptions.ActorDiedError()) == "a process of the job has ended, or was killed"
