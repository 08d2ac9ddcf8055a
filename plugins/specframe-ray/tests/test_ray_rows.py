"""Rows of files: their pieces, ids, numbers and columns."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from specframe_ray import job, ray_watch
from specframe_ray.machine_versions import difference
from specframe_ray.ray_executor import SETTINGS, Ray, claim
from specframe_ray.ray_figures import merged
from specframe_ray.ray_hub import kept_rows
from specframe_ray.retries import forget_failures
from specframe_ray.rows import ENTRY, ID, NUMBER, block, found
from specframe_std.command_options.name_checks import check_names
from specframe_std.output_folders import claim_folder
from specframe_std.prompts.entries import from_entry
from specframe_std.prompts.files import open_prompts

from specframe.cli import cli
from specframe.errors import OptionError, PluginError
from specframe.observe.counts import RunReport


def rows(given: Any) -> list[dict[str, Any]]:
    """Return the rows of all pieces."""
    return [row for piece in given.pieces for row in block(piece, given.columns).to_pylist()]


def test_lines(tmp_path: Path) -> None:
    """JSON lines keep their columns; ids are their own, or the file and the row, and numbers go on from file to file."""
    (tmp_path / "a.jsonl").write_text(
        '\ufeff{"prompt": "p", "n": 1, "tags": ["x"], "id": 7}\n\n{"prompt": [1, 2], "n": 2.5}\nnot json\n'
    )
    (tmp_path / "b.txt").write_text("one\n\ntwo\n")
    given = found(str(tmp_path), 2)
    assert [(piece.name, piece.start, piece.stop, piece.first) for piece in given.pieces] == [
        ("a.jsonl", 0, 2, 0),
        ("a.jsonl", 2, 3, 2),
        ("b.txt", 0, 2, 3),
    ]
    made = rows(given)
    assert [row[ID] for row in made] == ["7", "a.jsonl:1", "a.jsonl:2", "b.txt:0", "b.txt:1"]
    assert [row[NUMBER] for row in made] == [0, 1, 2, 3, 4]
    assert [row["n"] for row in made] == [1.0, 2.5, None, None, None]
    assert [row["tags"] for row in made] == ['["x"]', None, None, None, None]
    assert [row["prompt"] for row in made] == ["p", "[1, 2]", None, "one", "two"]
    assert json.loads(made[1][ENTRY])["prompt"] == [1, 2]


def test_parquet(tmp_path: Path) -> None:
    """Columns of Parquet keep their types, and one with the name of a result is preempted."""
    table = pa.table({"text": ["a", "b"], "when": pa.array([1, 2], pa.timestamp("ms")), "id": [5, 6]})
    pq.write_table(table, tmp_path / "p.parquet")
    given = found(str(tmp_path / "p.parquet"), 8)
    made = block(given.pieces[0], given.columns)
    assert made["input_text"].to_pylist() == ["a", "b"]
    assert made["when"].type == pa.timestamp("ms")
    assert made[ID].to_pylist() == ["5", "6"]


def test_pieces_begin_where_their_rows_do(tmp_path: Path) -> None:
    """A piece is read from its own place in the file, and has the rows that the whole file has there."""
    texts = [f"é{place} " + "x" * (place % 7) for place in range(50)]
    (tmp_path / "a.jsonl").write_bytes(
        b"\r\n".join(json.dumps({"prompt": text}, ensure_ascii=False).encode() for text in texts)
    )
    pq.write_table(pa.table({"prompt": texts}), tmp_path / "b.parquet")
    given = found(str(tmp_path), 7)
    assert [row["prompt"] for row in rows(given)] == texts * 2
    assert [row[ID] for row in rows(given)][48:52] == ["a.jsonl:48", "a.jsonl:49", "b.parquet:0", "b.parquet:1"]
    for piece in given.pieces[:8]:
        start = (tmp_path / "a.jsonl").read_bytes()[piece.offset :].decode()
        assert json.loads(start.splitlines()[0])["prompt"] == texts[piece.start]


def test_shards(tmp_path: Path) -> None:
    """Shards of both forms are one input, with the columns of all; a column that a shard lacks is empty there."""
    (tmp_path / "deep").mkdir()
    pq.write_table(pa.table({"prompt": ["p0", "p1"], "tags": [["x"], []]}), tmp_path / "deep" / "0.parquet")
    (tmp_path / "1.jsonl").write_text('{"prompt": "l0", "n": 3}\n')
    pq.write_table(pa.table({"prompt": ["q0"], "n": pa.array([4], pa.int64())}), tmp_path / "2.parquet")
    made = rows(found(str(tmp_path), 64))
    assert [(row[ID], row["prompt"], row["n"], row["tags"]) for row in made] == [
        ("1.jsonl:0", "l0", 3, None),
        ("2.parquet:0", "q0", 4, None),
        ("deep/0.parquet:0", "p0", None, ["x"]),
        ("deep/0.parquet:1", "p1", None, []),
    ]


def test_a_data_set_on_disk(tmp_path: Path) -> None:
    """What ``save_to_disk`` writes is read in its order, with its columns; of several splits one has to be named."""
    whole = datasets.Dataset.from_dict({"prompt": [f"p{i}" for i in range(10)], "n": [*range(10)]})
    whole = whole.filter(lambda row: row["n"] % 2 == 0)
    whole.save_to_disk(tmp_path / "one", num_shards=2)
    given = found(str(tmp_path / "one"), 2)
    assert [(row["prompt"], row["n"], row[NUMBER]) for row in rows(given)] == [
        (f"p{2 * i}", 2 * i, i) for i in range(5)
    ]
    assert given.columns.field("n").type == pa.int64()
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(tmp_path / "two")
    with pytest.raises(OptionError, match=r"expected the folder of one split \(test, train\), got '.*two'"):
        found(str(tmp_path / "two"), 2)
    assert len(rows(found(str(tmp_path / "two" / "test"), 2))) == 5


def test_failures_are_forgotten(tmp_path: Path) -> None:
    """Rows with an error are taken out of the results and the notes, others stay; what is written in part is Ray's to remove."""
    notes = tmp_path / "_checkpoint"
    notes.mkdir()
    ids = [["a", "b"], ["c"], ["d", "e"]]
    errors = [[None, "wrong"], ["wrong"], [None, None]]
    for place, (own, told) in enumerate(zip(ids, errors, strict=True)):
        pq.write_table(pa.table({ID: own}), notes / f"u{place}.parquet")
        table = pa.table({ID: own, "error": pa.array(told, pa.string()), "n": [*range(len(own))]})
        pq.write_table(table, tmp_path / f"u{place}_0.parquet")
    (tmp_path / "l.json").write_text('{"id": "f", "error": null}\n{"id": "g", "error": "wrong"}\n')
    pq.write_table(pa.table({ID: ["f", "g"]}), notes / "l.parquet")
    pq.write_table(pa.table({ID: ["x"]}), notes / "v.pending.parquet")
    (tmp_path / "v_0.parquet").write_bytes(b"PAR1 cut off")
    assert forget_failures(tmp_path, notes) == 3
    assert {one.name: pq.read_table(one)[ID].to_pylist() for one in notes.glob("*.parquet")} == {
        "u0.parquet": ["a"],
        "u2.parquet": ["d", "e"],
        "l.parquet": ["f"],
        "v.pending.parquet": ["x"],
    }
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *("_checkpoint", "l.json", "u0_0.parquet", "u2_0.parquet", "v_0.parquet")
    ]
    assert pq.read_table(tmp_path / "u0_0.parquet").to_pylist() == [{ID: "a", "error": None, "n": 0}]
    assert (tmp_path / "l.json").read_text() == '{"id": "f", "error": null}\n'
    assert forget_failures(tmp_path, notes) == 0


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("p.csv", "a,b\n", "expected a file or a folder of .jsonl"),
        ("p.jsonl", "\n", r"p\.jsonl holds no prompts: expected at least one row"),
        ("p.parquet", "PAR1", r"p\.parquet cannot be read: "),
        ("p.txt", b"one\n\xff\n", r"p\.txt is not text: expected UTF-8, got byte 0xff at place 0"),
        ("p.txt", b"one\n\xc3", r"p\.txt is not text: expected UTF-8"),
        (
            "p.jsonl",
            '{"prompt": "a", "id": 1}\n{"prompt": "b", "id": "1"}\n',
            "row 1: expected an id of its own, got '1' again",
        ),
        ("nowhere", None, "expected a file or a folder of .jsonl"),
    ],
)
def test_what_is_no_input_is_refused(tmp_path: Path, name: str, content: str | bytes | None, told: str) -> None:
    """A file of another form, one that cannot be read, an id that comes twice and no file end in a sentence."""
    if content is not None:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(OptionError, match=told):
        found(str(tmp_path / name), 4)


def test_an_output_folder_is_claimed_once(tmp_path: Path) -> None:
    """A folder with something else in it, with results, or with results of other settings is refused."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "._settings.json.1.part").write_text("{")  # of a run that was killed while it wrote them
    assert claim(out, {"seed": 0}, resume=False)
    with pytest.raises(OptionError, match="holds results already: pass --resume"):
        claim(out, {"seed": 0}, resume=False)
    claim(out, {"seed": 0}, resume=True)
    with pytest.raises(OptionError, match="was made with seed 0: expected 1"):
        claim(out, {"seed": 1}, resume=True)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(OptionError, match="expected an empty folder"):
        claim(tmp_path, {}, resume=True)


def test_an_output_that_is_no_folder(tmp_path: Path, monkeypatch: Any) -> None:
    """A file in its place, a folder below a file, and a folder that another run writes end in one sentence."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    for output, told in (
        ("p.jsonl", "--output: expected a folder, got 'p.jsonl', which is a file"),
        ("p.jsonl/out", "--output: p.jsonl/out cannot be written: Not a directory"),
        ("out", "is being written by another run"),
    ):
        with claim_folder("out", SETTINGS, ()):
            done = CliRunner().invoke(cli, ["run", "--executor", "ray", "--prompts", "p.jsonl", "--output", output])
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert told in done.stderr
    assert [*(tmp_path / "out").iterdir()] == []


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"workers": "two"}, {"gpus": -1}, {"cpus": "x"}, {"rows": 0}, {"form": "csv"}]
)
def test_options(options: dict[str, Any]) -> None:
    """Options out of range are refused by name."""
    with pytest.raises(OptionError, match=next(iter(options))):
        Ray(**options)


def test_versions_differ() -> None:
    """The first version that differs is named, with both sides."""
    assert difference({"torch": "1", "a": "1"}, {"torch": "1", "a": "1"}) is None
    assert difference({"torch": "1", "a": "1"}, {"torch": "2"}) == ("a", "1", "not loaded")


def test_figures_are_merged() -> None:
    """Counts are added up, shares are weighted by the rounds or tokens that they are of, and the time is that of the job."""
    one = RunReport(2, 0, 10, 1.0, 4, 4, 8, 4, 2.0, 0.5, {1: 4}, {"draft": 1.0}, 0.5, 1.0, 5, 6, 100)
    other = RunReport(1, 0, 20, 9.0, 12, 12, 24, 0, 1.0, 0.0, {0: 12}, {"draft": 2.0}, 0.1, 0.0, 13, 14, 70)
    one = attrs.evolve(one, tokens_computed=30, filler_share=0.5)
    other = attrs.evolve(other, tokens_computed=10, filler_share=0.1)
    both = merged([one, other], 4.0, 3)
    assert (both.sequences, both.errors, both.tokens, both.seconds, both.rounds) == (3, 3, 30, 4.0, 16)
    assert (both.mean_acceptance_length, both.draft_acceptance_rate) == (1.25, 0.125)
    assert both.acceptance_histogram == {0: 12, 1: 4}
    assert both.padding_share == pytest.approx(0.2)
    assert both.grouping_rate == pytest.approx(0.25)
    assert (both.tokens_computed, both.filler_share) == (40, pytest.approx(0.4))
    assert (both.stage_seconds, both.peak_kv_bytes, both.target_forwards) == ({"draft": 3.0}, 100, 18)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["a text"], "PROMPT: expected none with executor"),
        (["--prompts", "p.jsonl", "--output", "out", "--samples", "2"], "--samples: expected none"),
        (["--prompts", "p.jsonl"], "expected --prompts with a file or a folder, and --output with a folder"),
        (["--prompts", "nowhere.jsonl", "--output", "out"], "--prompts: expected a file or a folder"),
    ],
)
def test_what_a_job_cannot_have_is_refused(more: list[str], told: str, tmp_path: Path, monkeypatch: Any) -> None:
    """What such an executor does not do ends in one sentence."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["run", "--executor", "ray", *more])
    assert (done.exit_code, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
    assert told in done.stderr


def test_commands_that_decode_step_by_step_refuse_it() -> None:
    """Commands other than ``run`` say in one sentence that they cannot have it."""
    with pytest.raises(
        OptionError, match="--executor: expected one of one process, such as local, got 'ray,workers=2'"
    ):
        check_names({"executor": "ray,workers=2"})
    check_names({"executor": "ray,workers=2"}, anywhere=True)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub with one data set."""
    rows = [{"question": f"q{place}", "text": "t", "tags": [place], "top_k": place} for place in range(1500)]
    held = {"train": datasets.Dataset.from_list(rows)}

    def load_dataset(name: str, split: str | None, streaming: bool) -> Any:
        if name != "some/set":
            raise FileNotFoundError(f"there is no {name}")
        return held if split is None else held[split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("given", ["hf:some/set", "hf:some/set:train:question"])
def test_a_data_set_of_the_hub(given: str, tmp_path: Path) -> None:
    """Its rows are those that ``specframe run`` takes without Ray, and keep their columns; ids name the data set."""
    read = found(kept_rows(given, tmp_path), 800, given)
    made = rows(read)
    assert [piece.start for piece in read.pieces] == [0, 800]
    assert [(row[ID], row[NUMBER]) for row in made] == [(f"{given}:{place}", place) for place in range(1500)]
    asked = open_prompts(given)
    for row, prompt in zip(made, asked, strict=True):
        same = from_entry(json.loads(row[ENTRY]), "row")
        assert (same.given, same.parameters) == (prompt.given, prompt.parameters)
    assert made[7]["tags"] == [7]
    assert [path.name for path in tmp_path.iterdir()] == ["_prompts.parquet"]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("hf:other/set", "hf:other/set cannot be read: there is no other/set"),
        ("hf:some/set:train:answer", "has the columns question, text, tags, top_k: expected one of them, got answer"),
        ("hf:some/set:dev", "hf:some/set:dev cannot be read: 'dev'"),
        ("hf:", "expected hf:NAME[:SPLIT[:COLUMN]], got 'hf:'"),
    ],
)
def test_what_is_not_on_the_hub(given: str, told: str, tmp_path: Path) -> None:
    """It is refused in one sentence, before a cluster begins, and the folder can be used for another data set."""
    command = ["run", "--executor", "ray", "--output", str(tmp_path / "out"), "--prompts", given]
    for _ in range(2):
        done = CliRunner().invoke(cli, command)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert told in done.stderr
    assert [*(tmp_path / "out").iterdir()] == []


def busy_after(call: Callable[[], None]) -> None:
    """Call something, and be busy for a minute."""
    call()
    over = time.monotonic() + 60
    while time.monotonic() < over:
        time.sleep(0.01)


def test_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job ends in the middle when Ray's own process has ended, be it that Ray has raised an error by then, and only then."""
    monkeypatch.setattr(ray_watch.ray, "is_initialized", lambda: True)
    with subprocess.Popen(["sleep", "60"]) as process:
        monkeypatch.setattr(ray_watch, "raylet", lambda node: process.pid)
        monkeypatch.setattr(ray_watch.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=str))
        with ray_watch.raylet_watched():
            pass
        with pytest.raises(ValueError, match="other"), ray_watch.raylet_watched():
            raise ValueError("other")
        with pytest.raises(ray_watch.Gone), ray_watch.raylet_watched():
            busy_after(process.kill)
        with pytest.raises(ray_watch.Gone), ray_watch.raylet_watched():
            raise ValueError("Ray's")


def test_a_process_that_ends_while_ray_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before there is a cluster, Ray's own process is the one of that name that this process begins in the block."""
    monkeypatch.setattr(ray_watch.ray, "is_initialized", lambda: False)
    (tmp_path / "raylet").symlink_to(sys.executable)
    begin = [str(tmp_path / "raylet"), "-I", "-S", "-c", "input()"]
    monkeypatch.setattr(ray_watch, "PACE", 0.01)
    with subprocess.Popen(begin, stdin=subprocess.PIPE) as earlier:
        with ray_watch.raylet_watched():
            earlier.kill()
            time.sleep(0.1)
        with (
            pytest.raises(ray_watch.Gone),
            ray_watch.raylet_watched(),
            subprocess.Popen(begin, stdin=subprocess.PIPE) as process,
        ):
            busy_after(process.kill)


@pytest.mark.parametrize(
    ("left", "told"), [(1, "its rows are decoded by the others"), (0, "no other has room for an actor")]
)
def test_a_machine_that_is_lost(
    left: int, told: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """A machine that leaves the cluster is reported once, with what comes of it; the others are not."""
    nodes = [{"NodeID": name, "Alive": True, "Resources": {"CPU": 4.0}} for name in "abc"]
    monkeypatch.setattr(ray_watch.ray, "nodes", lambda: [dict(node) for node in nodes])
    monkeypatch.setattr(ray_watch, "NODES_PACE", 0.01)
    with ray_watch.nodes_watched(2, 0):
        nodes[1]["Alive"] = False
        for node in nodes[:: 2 if not left else 5]:
            node["Resources"] = {"CPU": 1.0}
        over = time.monotonic() + 60
        while not recwarn.list and time.monotonic() < over:
            time.sleep(0.01)
        time.sleep(0.1)
    (warning,) = recwarn.list
    assert str(warning.message).startswith("executor ray: node b has left the cluster")
    assert told in str(warning.message)


def test_a_cluster_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without RAY_ADDRESS a job begins a cluster, also beside another one; signals end it as they end other commands."""
    begun: list[Any] = []
    told: list[int] = []
    libc = ctypes.CDLL(None)

    def init(*where: str, **how: Any) -> None:
        begun.append((where, how.get("num_cpus")))
        libc.signal(signal.SIGTERM, 0)  # as Ray's own code does: Python does not know of it

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(job.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(job.ray, "init", init)
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        job.begin(job.ResultPlace(2, 0, 1.5))
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM]
    monkeypatch.setenv("RAY_ADDRESS", "there")
    job.begin(job.ResultPlace(2, 0, 1.5))
    assert begun == [(("local",), job.OWN_CPUS + 3), ((), None)]
    monkeypatch.setattr(job.ray, "init", lambda **_: 1 / 0)
    with pytest.raises(PluginError, match="the cluster of RAY_ADDRESS, 'there', cannot be joined: division by zero"):
        job.begin(job.ResultPlace(2, 0, 1.5))


def test_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported at once, and the folder is as new: the next run needs no ``--resume``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    monkeypatch.setattr(job.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(job.ray, "init", lambda **_: pytest.fail("Ray would try for a quarter of an hour"))
    done = CliRunner().invoke(cli, ["run", "--executor", "ray", "--prompts", "p.jsonl", "--output", "out"])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"the cluster of RAY_ADDRESS, '127.0.0.1:{port}', cannot be joined: Connection refused" in done.stderr
    assert [*(tmp_path / "out").iterdir()] == []
