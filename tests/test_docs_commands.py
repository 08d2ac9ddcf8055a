"""The commands of the documentation: those of a page run in order, in one empty folder, with few prompts and tokens."""

from __future__ import annotations

import importlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import invoke
from pages import BLOCK, PAGES, ROOT, command_of, forgetting, name, put

FAST = {"README.md", "docs/output.md", "plugins/specframe-std/README.md"}
"""Pages whose commands take a few seconds."""

SMALL = {
    "RUN_MAX_NEW_TOKENS": "4", "COMPARE_LIMIT": "2", "COMPARE_MAX_NEW_TOKENS": "3", "COMPARE_REPEATS": "1",
    "COMPARE_WARM_UP": "0", "VERIFY_LIMIT": "2", "VERIFY_MAX_NEW_TOKENS": "4", "PLAN_PROMPT_TOKENS": "16",
    "PLAN_MAX_NEW_TOKENS": "4", "PLAN_BATCH_SIZE": "1,2", "PLAN_DRAFT_LENGTH": "2", "TRACE_LIMIT": "2",
    "TRACE_MAX_NEW_TOKENS": "4", "REPRODUCE_LIMIT": "2", "REPRODUCE_MATCH_BATCH_SIZES": "1",
    "REPRODUCE_ARRIVAL_BATCH_SIZES": "2", "REPRODUCE_BATCH_SIZES": "1,2", "REPRODUCE_MATCH_TOKENS": "3",
    "REPRODUCE_MAX_NEW_TOKENS": "4", "REPRODUCE_REPEATS": "1", "HEADS_TRAIN_STEPS": "2", "HEADS_TRAIN_MAX_NEW_TOKENS": "8",
}  # fmt: skip
"""Variables that make commands short where the page does not say how many; what it says wins."""

STAND_INS = {
    "cuda": "cpu", "float16": "float32", "bfloat16": "float32", "qwen3-8b": "tiny", "qwen3-0.6b": "tiny-draft",
    "llama": "tiny", "llama-small": "tiny-draft", "torchao-int8-weight-only": "none,use-safetensors=true", "DIR": "TARGET",
    "SMALL_DIR": "DRAFTER",
}  # fmt: skip
"""Values of commands that no machine of the tests has, and those in their place. TARGET and DRAFTER are folders of saved models."""

ELSEWHERE = {
    "--executor ray": "plugins/specframe-ray/tests",
    "specframe serve": "plugins/specframe-serve/tests",
    "torchrun": "plugins/specframe-std/tests/test_tensor_parallel.py",
    "dflash,checkpoint=RedHatAI": "plugins/specframe-heads/tests",
    "dspark,checkpoint=": "plugins/specframe-heads/tests",
    "--drafter mtp": "plugins/specframe-heads/tests",
    "--prompts mt-bench": "plugins/specframe-std/tests/test_benchmark_sets.py",
    "--prompts spec-bench": "plugins/specframe-std/tests/test_benchmark_sets.py",
    "--prompts speed-bench": "plugins/specframe-std/tests/test_benchmark_sets.py",
    "curl": "plugins/specframe-serve/tests",
    "aiperf": "plugins/specframe-serve/clients",
    "guidellm": "plugins/specframe-serve/clients",
    "make": "Makefile",
    "pip install": ".ci/run",
    "pytest tests": "plugins/specframe-std/tests",
    "pytest my-drafter": "plugins/specframe-testing/tests/test_scaffold.py",
    "pytest repeat": "plugins/specframe-testing/tests/test_scaffold.py",
    "--drafter repeat": "plugins/specframe-testing/tests/test_scaffold.py",
    "python -m specframe_tiny": "plugins/specframe-tiny/specframe_tiny/train.py",
    "python benchmarks/budgets.py": "benchmarks/budgets.py",
    "python benchmarks/laws.py": "benchmarks/laws.py",
    "python -m specframe_std.lm_eval": "plugins/specframe-std/evaluation",
}
"""Commands that need a cluster, others' weights or another program, by a part of theirs, and where they are run."""


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """Yield what a page tells its reader to do, in order: "python" with a block, or "sh" with one command."""
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            yield kind, text
        for line in text.replace("\\\n", " ").splitlines() if kind == "sh" else ():
            if command := line.partition(" #")[0].strip():
                yield kind, command


def elsewhere(command: str) -> bool:
    """Return whether a command is run by other tests."""
    return any(excused(command, part) for part in ELSEWHERE)


def excused(command: str, part: str) -> bool:
    """Return whether a part of ELSEWHERE is one of a command."""
    return command.startswith(part) or f" {part}" in command or f'"{part}' in command


WALKED = [page for page in PAGES if any(kind == "sh" and not elsewhere(step) for kind, step in steps(page))]


@pytest.fixture
def models(saved_pair: list[str]) -> dict[str, str]:
    """Folders of a saved pair, by their placeholders."""
    return {"TARGET": saved_pair[1], "DRAFTER": saved_pair[3]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with nothing in it but what readers have: prompts and moments of their own."""
    for variable, value in SMALL.items():
        monkeypatch.setenv(f"SPECFRAME_{variable}", value)
    monkeypatch.setenv("SPECFRAME_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    texts = ["import os\n", "def add(a, b):\n", "class Stack:\n"]
    for file, key in (("prompts.jsonl", "prompt"), ("questions.jsonl", "prompt"), ("questions/test.jsonl", "question")):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text("".join(json.dumps({key: text}) + "\n" for text in texts))
    Path("moments.txt").write_text("0\n0.5\n")
    Path("benchmarks").mkdir()
    Path("benchmarks/results").symlink_to(ROOT / "benchmarks" / "results")
    monkeypatch.syspath_prepend(str(work / "src"))
    with forgetting(work):
        yield work


def words(command: str, models: dict[str, str]) -> list[str]:
    """Return a command's arguments, with what stands in for other machines and other people's models."""
    given = [STAND_INS.get(word, word) for word in shlex.split(command)]
    return [models.get(word, word) for word in given]


@pytest.mark.wide
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow, pytest.mark.nightly] * (name(page) not in FAST), id=name(page))
        for page in WALKED
    ],
)
def test_commands_of_a_page_run_in_order(page: Path, folder: Path, models: dict[str, str]) -> None:
    """Each command of a page, and each of its Python blocks, is done as the page says after those before it."""
    namespace: dict[str, object] = {"__name__": "documentation"}
    for kind, step in steps(page):
        if kind == "python":
            if not put(step, folder):
                importlib.invalidate_caches()
                exec(compile(step, name(page), "exec"), namespace)
        elif not elsewhere(step):
            program, *arguments = words(step, models)
            assert program == "specframe", f"{step}: expected a command of specframe, or a line in ELSEWHERE"
            done = invoke(*arguments)
            assert done.exit_code == 0, f"{step}\n{done.output[-2000:]}"


@pytest.mark.wide
def test_commands_that_are_run_elsewhere_are_there() -> None:
    """Every entry of ELSEWHERE excuses a command of some page, and names what is there to run it."""
    asked = [step for page in PAGES for kind, step in steps(page) if kind == "sh"]
    for part, where in ELSEWHERE.items():
        assert (ROOT / where).exists()
        assert any(excused(step, part) for step in asked), part


@pytest.mark.wide(but=["docs/output.md"])
@pytest.mark.parametrize("page", WALKED, ids=name)
def test_commands_of_a_page_write_to_places_of_their_own(page: Path) -> None:
    """No command of a page is given a file or a folder that an earlier one has filled, unless it goes on with it."""
    taken: dict[str, str] = {}
    for kind, step in steps(page):
        if kind != "sh" or not step.startswith("specframe ") or elsewhere(step):
            continue
        place = output_of(shlex.split(step)[1:])
        if place is None or place == "-" or {"--resume", "--dry-run"} & {*step.split()}:
            continue
        if place in taken and not place.endswith(".html"):  # a page is drawn anew
            pytest.fail(f"{name(page)}: {step!r} writes to {place!r}, as {taken[place]!r} does")
        taken[place] = step


def output_of(arguments: list[str]) -> str | None:
    """Return the value of --output that a command has, the default where none is given."""
    command, context, left = command_of(arguments)
    given, _, _ = command.make_parser(context).parse_args(left)
    option = next((param for param in command.params if param.name == "output"), None)
    place = given.get("output", option.default if option else None)
    return place if isinstance(place, str) else None
