"""``specframe run`` on a small random pair: prompts, options, display, the output file, a new package."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import re
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import command_line
import pytest
import torch
from click.testing import CliRunner, Result
from specframe_std import output_file
from specframe_std.run_command import run_report
from specframe_std.run_command.display import Display
from specframe_testing import zoo

import specframe
from specframe.cli import cli
from specframe.observe.counts import RunReport
from specframe.plugins.registry import registry

TEST_AND_RUN = """
import sys, pytest
from specframe.cli import cli
assert pytest.main(["-q", "again"]) == 0
cli(["run", *sys.argv[1:]])
"""


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def pair(saved_pair: list[str]) -> list[str]:
    """Options that name a pair, and a few new tokens."""
    return [*saved_pair, "--max-new-tokens", "12"]


FIGURES = [name for name in attrs.fields_dict(RunReport) if name != "stage_seconds"]


def run(*arguments: str, given: str | None = None) -> Result:
    """Run ``specframe run``."""
    return command_line.invoke("run", *arguments, given=given)


def records(path: str = "out.jsonl") -> list[dict]:
    """Return the records of an output file."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.wide
def test_prompts_from_arguments(pair: list[str]) -> None:
    """Completions, with --verbose all figures, and the combination are printed; nothing goes to standard error."""
    result = run(*pair, "ab", "def f(x):", "--verbose")
    assert (result.exit_code, result.stderr) == (0, "")
    for index, prompt in enumerate(("ab", "def f(x):")):
        assert re.search(
            rf"\[{index}\] length, 12 tokens, acceptance length [\d.]+\n{re.escape(prompt)}", result.stdout
        )
    assert all(f"\n{figure} " in result.stdout for figure in FIGURES[1:])
    figures = dict(
        line.split(maxsplit=1) for line in result.stdout.splitlines() if line.split()[:1] in ([f] for f in FIGURES)
    )
    assert (figures["sequences"], figures["errors"], figures["tokens"]) == ("2", "0", "24")
    shares = [
        float(line.split()[2]) for line in result.stdout.partition("stage ")[2].splitlines()[1:] if line.count(".") == 2
    ]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert result.stdout.splitlines()[-1].startswith("this combination is declared lossless: target ")
    assert "align ragged, schedule continuous, kv slab, draft length goodput, batch size 8" in result.stdout


@pytest.mark.wide(but=["1.26-1.3"])
@pytest.mark.parametrize(("speed", "words"), [(0.0437, "0.044"), (1.26, "1.3"), (9.96, "10"), (1234.5, "1,234")])
def test_a_slow_model_has_a_rate(speed: float, words: str) -> None:
    """Below 10 tokens a second the line has two significant digits, and never 0 for what was decoded."""
    figures = {"sequences": 1, "tokens": 12, "seconds": 12 / speed, "tokens_per_second": speed, "target_forwards": 12}
    told = run_report.summary(figures | {"num_accepted_draft_tokens": 0, "num_draft_tokens": 0})
    assert f" s ({words} a second): " in told


@pytest.mark.wide(but=["bfloat16-True-False-True"])
@pytest.mark.parametrize(
    ("dtype", "lossless", "bitwise", "caveat"),
    [
        ("float16", True, False, True),
        ("bfloat16", True, False, True),
        ("float32", True, False, False),
        ("float16", True, True, False),
        ("float16", False, False, False),
    ],
)
def test_lossless_is_what_strategies_declare(dtype: str, lossless: bool, bitwise: bool, caveat: bool) -> None:
    """The last line of a run repeats a claim as one; in half precision it says that ties may fall otherwise, but for bitwise."""
    said = {"target": "t", "device": "cpu", "dtype": dtype, "generation_config": "", "bitwise": bitwise}
    told = run_report.acceptance({"lossless": lossless, **said})
    assert told.startswith(
        f"this combination is {'declared lossless' if lossless else 'NOT lossless'}: target t, on cpu in "
    )
    assert ("two logits may tie" in told) == caveat


def test_worker_processes_are_offered_where_they_pay(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run of several batches in one process, on a CPU of several cores, ends with the option that begins workers."""
    asked = "run the same with --executor workers,count=auto"
    offer = f"several processes decode more tokens a second on the 2 cores of this CPU: {asked}"
    batches = [*pair, "aaaa", "bb", "--batch-size", "1", "--max-new-tokens", "2"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert offer not in run(*batches).stdout
    monkeypatch.setattr(run_report, "LONG_RUN", 0.0)
    assert run(*batches).stdout.splitlines()[-1] == offer
    assert offer not in run(*pair, "aaaa", "bb", "--batch-size", "2").stdout
    assert offer not in run(*batches, "--quiet").stdout
    with monkeypatch.context() as without:
        without.setitem(registry().defaults, "worker processes", [])
        assert offer not in run(*batches).stdout
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert offer not in run(*batches).stdout


@pytest.mark.wide(but=["--logprobs-99999-logprobs: expected at most 97, the target's token ids, got 99999"])
@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--accept=greedy", "--temperature=1", "choose a rule that samples"),
        ("--align", "exspek", "did you mean 'exspec'?"),
        ("--kv", "dynamic", "alignment 'ragged' needs 'scatter' to be offered, and KV backend 'dynamic' does not"),
        ("--logprobs", "99999", f"logprobs: expected at most {len(zoo.CHARACTERS)}, the target's token ids, got 99999"),
    ],
)
def test_refused_values(option: str, value: str, reason: str, pair: list[str]) -> None:
    """A value that cannot work is one sentence and status 2, and nothing was decoded or written."""
    assert reason in command_line.refusal("run", *pair, "x", "--output", "out.jsonl", option, value)
    assert not Path("out.jsonl").exists()


def test_a_second_config_is_refused(pair: list[str]) -> None:
    """Of two files none is passed over in silence; the variable names one, whatever blanks its path has."""
    for name, seed in (("a.toml", 1), ("b c.toml", 2)):
        Path(name).write_text(f"seed = {seed}\n")
    told = command_line.refusal("run", *pair, "x", "--config", "a.toml", "--config", "b c.toml")
    assert told == "--config: expected one file, got a.toml and b c.toml"
    done = CliRunner(env={"SPECFRAME_RUN_CONFIG": "b c.toml"}).invoke(cli, ["run", *pair, "x", "--report", "-"])
    assert json.loads(done.stdout)["settings"]["seed"] == 2


@pytest.mark.wide
def test_graphs_without_a_device_that_has_them_are_told(pair: list[str]) -> None:
    """`--graphs on` says where nothing is recorded; "auto" says nothing."""
    result = run(*pair, "x", "--device", "cpu", "--graphs", "on")
    assert result.exit_code == 0
    assert result.stderr == "Warning: --graphs on: cpu records no graphs, so forwards run as they are\n"
    assert run(*pair, "x", "--device", "cpu").stderr == ""


@pytest.mark.wide
def test_terminal_output(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar shows speed and acceptance while it works, and the prompt is dimmed."""
    status, text = on_terminal(monkeypatch, *pair, "--verbose", "--batch-size", "1", "aaaa", "bb\x1b[31mbb", "")
    assert status == 1
    assert "loading models" in text
    assert "tokens/s, acceptance 0." in text
    assert "\x1b[2maaaa\x1b[0m" in text
    assert "\x1b[31mbb" not in text
    assert "[2] error: the prompt is empty" in text
    assert "tokens_per_second" in text


def on_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Any, str]:
    """Return the exit status of ``specframe run`` on a terminal, and what it showed."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    master, slave = pty.openpty()
    with ThreadPoolExecutor() as pool:
        shown = pool.submit(everything, master)
        with open(slave, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            with pytest.raises(SystemExit) as ended:
                cli(["run", *arguments])
    return ended.value.code, shown.result()


def everything(master: int) -> str:
    """Return what a terminal shows until its other end is closed."""
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:
            return shown.decode()


MANY = [f"prompt {number} " + "x" * (3 * number) for number in range(9)]


@pytest.mark.wide
def test_records(pair: list[str]) -> None:
    """A line holds the result and the settings, nothing of the clock, and lines are in the order asked."""
    run(*pair, *MANY, "--batch-size", "3", "--draft-length", "3", "--output", "out.jsonl")
    kept = records()
    assert [record["index"] for record in kept] == list(range(9))
    assert [record["prompt"] for record in kept] == MANY
    assert set(kept[0]) == {"index", "prompt", "text", "token_ids", "finish_reason", "metrics", "settings"}
    for record in kept:
        assert record["text"] == "".join(zoo.CHARACTERS[token] for token in record["token_ids"] if token)
        metrics = record["metrics"]
        assert metrics["num_spec_steps"] == sum(metrics["acceptance_histogram"].values()) > 0
    assert not any("second" in key or "latency" in key for record in kept for key in (*record, *record["metrics"]))


@pytest.mark.wide(but=["3"])
@pytest.mark.quick("3")
@pytest.mark.parametrize("batch_size", ["1", "3"])
def test_resume(batch_size: str, pair: list[str]) -> None:
    """A file out of order and cut off in the middle of a line is completed to what an undisturbed run writes."""
    options = [*pair, *MANY, "", "--batch-size", batch_size, "--draft-length", "3"]
    assert run(*options, "--output", "whole.jsonl").exit_code == 1
    whole = Path("whole.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    Path("out.jsonl").write_bytes(lines[9] + lines[4] + lines[0] + lines[7][:60])
    resumed = run(*options, "--output", "out.jsonl", "--resume")
    assert resumed.exit_code == 1
    assert sorted(int(line[1]) for line in resumed.stdout.splitlines() if line.startswith("[")) == [1, 2, 3, 5, 6, 7, 8]
    assert Path("out.jsonl").read_bytes() == whole
    assert {path.name for path in Path().iterdir()} == {"whole.jsonl", "out.jsonl"}


@pytest.mark.wide
def test_a_full_disk_loses_nothing(pair: list[str]) -> None:
    """Where a result cannot be written there is one sentence and status 2; --resume completes what is there."""
    options = [*pair, *MANY[:5], "--batch-size", "1", "--draft-length", "3", "--output"]
    run(*options, "whole.jsonl")
    whole = Path("whole.jsonl").read_bytes()
    limit, before = len(b"".join(whole.splitlines(keepends=True)[:3])) + 50, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        result = run(*options, "out.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (result.exit_code, result.stderr) == (
        2,
        f"Error: --output: out.jsonl cannot be written: File too large; {Path('out.jsonl').resolve()} "
        "holds 3 of 5 results, --resume decodes the rest\n",
    )
    assert whole.startswith(Path("out.jsonl").read_bytes())
    assert run(*options, "out.jsonl", "--resume").exit_code == 0
    assert Path("out.jsonl").read_bytes() == whole
    assert {path.name for path in Path().iterdir()} == {"whole.jsonl", "out.jsonl"}


@pytest.mark.wide
def test_figures_that_cannot_be_written_lose_no_results(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is full for the file of --report, the sentence says that all results are there."""
    place, replace = Path("report.json").resolve(), output_file.replace

    def full(path: Path, content: Any) -> None:
        if path == place:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(path, content)

    monkeypatch.setattr(output_file, "replace", full)
    result = run(*pair, *MANY[:2], "--quiet", "--output", "out.jsonl", "--report", "report.json")
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: --report: report.json cannot be written: No space left on device; "
        f"{Path('out.jsonl').resolve()} holds all 2 results, nothing is to be decoded again\n",
    )
    assert len(records()) == 2


@pytest.mark.wide
@pytest.mark.parametrize("more", [[], ["--resume"]], ids=["anew", "resumed"])
def test_a_file_is_written_by_one_run(more: list[str], pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run into the same file is refused while the first goes on, which loses nothing by it."""
    options = [*pair, *MANY[:4], "--batch-size", "1", "--draft-length", "3", "--output"]
    run(*options, "whole.jsonl")
    observe, others = Display.round, []

    def intrude(self: Display, report) -> None:
        observe(self, report)
        if report.finished and not others:
            others.append(None)
            others[0] = run(*options, "out.jsonl", *more)

    monkeypatch.setattr(Display, "round", intrude)
    assert run(*options, "out.jsonl").exit_code == 0
    assert (others[0].exit_code, others[0].stdout) == (2, "")
    assert others[0].stderr == (
        f"Error: --output: out.jsonl is being written by another run (process {os.getpid()}): "
        "wait for its end, or name another\n"
    )
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert {path.name for path in Path().iterdir()} == {"whole.jsonl", "out.jsonl"}


@pytest.mark.wide
@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (errno.EPIPE, 0, ""),
        (
            errno.ENOSPC,
            2,
            "Error: standard output cannot be written: No space left on device; the results are where --output says\n",
        ),
    ],
    ids=["reader left", "disk full"],
)
@pytest.mark.parametrize("more", [[], ["--stream"]], ids=["complete", "streamed"])
def test_a_run_with_a_file_needs_no_standard_output(
    number: int,
    status: int,
    said: str,
    more: list[str],
    pair: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All results are written though none can be printed; only a full disk is reported, at the end."""

    def refuse(text: str) -> None:
        raise OSError(number, os.strerror(number))

    command = ["run", *pair, *MANY[:3], "--output", "out.jsonl", *more]
    with io.StringIO() as stream, monkeypatch.context() as patched:
        stream.write = refuse
        patched.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            cli(command, prog_name="specframe")
    assert (ended.value.code, capsys.readouterr().err) == (status, said)
    assert [kept["prompt"] for kept in records()] == MANY[:3]


@pytest.mark.wide
def test_results_on_standard_output(pair: list[str]) -> None:
    """With --output - standard output has nothing but the lines a file would have; the rest goes to standard error."""
    options = [*pair, *MANY[:3], "", "--batch-size", "1", "--draft-length", "3"]
    run(*options, "--output", "out.jsonl")
    result = run(*options, "--output", "-")
    assert result.exit_code == 1
    assert [json.loads(line) for line in sorted(result.stdout.splitlines())] == records()
    assert "[3] error: the prompt is empty" in result.stderr
    assert "this combination is declared lossless" in result.stderr
    assert MANY[0] not in result.stderr
    assert not Path("-").exists()
    streamed = run(*options, "--output", "-", "--stream")
    assert streamed.stdout == result.stdout
    assert f"[0]\n{MANY[0]}" in streamed.stderr


@pytest.mark.quick
def test_the_report(pair: list[str]) -> None:
    """--report writes every figure by its documented name, what was combined, the settings and the versions."""
    options = [*pair, "ab", "", "--temperature", "0.5", "--seed", "3"]
    result = run(*options, "--report", "report.json")
    found = json.loads(Path("report.json").read_text())
    assert result.exit_code == 1
    figures, combined = found["figures"], found["combination"]
    assert {field.name for field in attrs.fields(RunReport)} <= figures.keys()
    assert {"tokens_per_second", "stage_shares", "realign_share"} <= figures.keys()
    assert (figures["sequences"], figures["errors"], found["failed"], figures["tokens"]) == (1, 1, 1, 12)
    assert (combined["lossless"], combined["accept"], combined["align"]) == (True, "block", "ragged")
    assert found["environment"]["specframe"] == specframe.__version__
    settings = found["settings"]
    assert (settings["temperature"], settings["seed"], settings["max_new_tokens"]) == (0.5, 3, 12)
    assert "\n1 sequence, 12 tokens in " in result.stdout
    printed = run(*options, "--report", "-")
    assert json.loads(printed.stdout)["settings"] == settings
    assert "\n1 sequence, 12 tokens in " in printed.stderr
    assert run(*options, "--report", "report.json").exit_code == 1


@pytest.mark.wide
def test_resume_with_nothing_left(pair: list[str]) -> None:
    """A complete file is left as it is, and no model is loaded for it."""
    options = [*pair, "x", "--output", "out.jsonl"]
    run(*options)
    before = Path("out.jsonl").read_bytes()
    result = run(*options, "--resume")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "holds all 1 results already" in result.stderr
    assert Path("out.jsonl").read_bytes() == before


@pytest.mark.wide
def test_existing_results_are_refused(pair: list[str]) -> None:
    """Without --resume a file with results is not touched, nor one with anything else, and each is called what it is."""
    for content, said in (
        ('{"index": 0, "prompt"', "results already: pass --resume to complete them, or name another file"),
        ("precious\n", "something other than results: name another file"),
    ):
        Path("out.jsonl").write_text(content)
        result = run(*pair, "x", "--output", "out.jsonl")
        assert (result.exit_code, result.stderr) == (2, f"Error: --output: out.jsonl holds {said}\n")
        assert Path("out.jsonl").read_text() == content


@pytest.mark.wide
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (["x", "z"], "out.jsonl line 2 answers another prompt: expected prompt 1 of those now given"),
        (["x"], "out.jsonl line 2 answers another prompt: expected prompt 1 of those now given"),
        (
            ["x", "y", "--align", "eqspec"],
            "out.jsonl line 1 was made with align ragged: expected eqspec, as now asked for",
        ),
        (["x", "y", "--kv", "slab"], "out.jsonl line 1 was made with kv the default: expected slab, as now asked for"),
    ],
)
def test_resume_of_another_run_is_refused(changed: list[str], reason: str, pair: list[str]) -> None:
    """A file of other prompts or settings is not continued and not touched."""
    run(*pair, "x", "y", "--output", "out.jsonl")
    before = Path("out.jsonl").read_bytes()
    result = run(*pair, *changed, "--output", "out.jsonl", "--resume")
    assert (result.exit_code, result.stderr) == (2, f"Error: --resume: {reason}\n")
    assert Path("out.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_new_package_installs_passes_its_tests_and_runs(pair: list[str], tmp_path: Path) -> None:
    """What `plugins new` writes installs in an environment of its own, passes its tests and drafts for a run."""
    assert command_line.invoke("plugins", "new", "again").exit_code == 0
    python = environment(tmp_path / "env")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "-e", "again"], check=True)
    options = [*pair, "--drafter", "again,span=2", "ababab", "--output", "again.jsonl"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-c", TEST_AND_RUN, *options], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    run(*pair, "--drafter", "none", "ababab", "--output", "none.jsonl")
    assert records("again.jsonl")[0]["token_ids"] == records("none.jsonl")[0]["token_ids"]
    assert records("again.jsonl")[0]["metrics"]["num_draft_tokens"] > 0


def environment(folder: Path) -> Path:
    """Make a virtual environment that also sees what is installed in this one, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    here = Path(pytest.__file__).parents[1]
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "outer.pth").write_text(f"import site; site.addsitedir({str(here)!r})\n")
    return folder / "bin" / "python"


TINY = ["--max-new-tokens", "10", "--draft-length", "3"]


@pytest.mark.wide
def test_log_probabilities_need_a_file() -> None:
    """They are in the lines of a file alone: without one they are refused in a sentence."""
    assert "--logprobs: expected --output with it" in command_line.refusal("run", *TINY, "import os", "--logprobs", "2")


@pytest.mark.wide
def test_parameters_of_one_line() -> None:
    """What a JSON line says wins over the options; a wrong value fails that prompt alone, and other keys mean nothing."""
    Path("p.jsonl").write_text(
        '{"prompt": "import os", "max_new_tokens": 3, "id": 7}\n'
        '{"prompt": "import os", "temperature": 0, "samples": 1}\n'
        '{"prompt": "import os", "temperature": "hot"}\n'
    )
    options = ["--prompts", "p.jsonl", "--temperature", "1.3", "--samples", "2"]
    result = run(*TINY, *options, "--output", "out.jsonl")
    kept = records()
    assert result.exit_code == 1
    assert [(one["index"], len(one["token_ids"])) for one in kept] == [(0, 3), (0, 3), (1, 10), (2, 0)]
    assert kept[3]["error"] == "p.jsonl line 3: temperature: expected a number of at least 0, got 'hot'"
    Path("out.jsonl").unlink()
    assert run(*TINY, "import os", "--output", "out.jsonl").exit_code == 0
    assert kept[2]["token_ids"] == records()[0]["token_ids"]


def test_resume_completes_the_samples_of_a_prompt() -> None:
    """A file that lacks one sample of a prompt gets that one, the same as in one go."""
    options = ["import os", "class A:", "--temperature", "1", "--samples", "2", "--output", "out.jsonl"]
    assert run(*TINY, *options).exit_code == 0
    whole = Path("out.jsonl").read_text().splitlines()
    Path("out.jsonl").write_text("\n".join([whole[0], whole[1], whole[3]]) + "\n")
    assert run(*TINY, *options, "--resume").exit_code == 0
    assert Path("out.jsonl").read_text().splitlines() == whole
    changed = run(*TINY, *options, "--resume", "--top-k", "5")
    assert changed.exit_code == 2
    assert "was made with top-k the default: expected 5" in changed.stderr
    cold = run(*TINY, "import os", "class A:", "--samples", "2", "--output", "out.jsonl", "--resume")
    assert "was made with temperature 1.0: expected the default" in cold.stderr
