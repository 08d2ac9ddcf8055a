"""Benchmark sets by name: copies in the sets' own formats, their turns, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import urllib.request
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from specframe_std.prompts import benchmark_sets
from specframe_std.prompts.benchmark_sets import SETS, digest_of, entry_of, open_prompts
from specframe_std.prompts.files import from_file
from specframe_std.prompts.files import open_prompts as open_any

from specframe.cli import cli
from specframe.errors import OptionError
from specframe.pipeline import Pipeline

MT_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["x = [", "and"], "reference": []},
    {"question_id": 91, "category": "roleplay", "turns": ["import os", "import sys"]},
]
HUB_MT_BENCH = [{"prompt_id": 81, "category": "writing", "prompt": ["x = [", "and"], "reference": []}]
SPEED = [{"question_id": "a", "category": "coding", "turns": ["one"], "source": "s"}]
HELD_BACK = [{"question_id": "b", "category": "coding", "turns": [f"{benchmark_sets.PLACEHOLDER} USING SPECDEC_BENCH"]}]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a working folder of its own."""
    monkeypatch.chdir(tmp_path)


def written(rows: Any, name: str = "copy.jsonl") -> str:
    """Write a copy of a set, one row per line, and return its name."""
    data = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return name


def told(given: str, limit: int | None = None) -> list[tuple[Any, ...]]:
    """Return id, category, turn and content of each prompt of a set."""
    found = [*open_any(given, limit)]
    return [(p.parameters.get("id"), p.parameters.get("category"), p.turn, p.messages or p.text) for p in found]


def user(text: str) -> list[dict[str, str]]:
    """Return a message of the user."""
    return [{"role": "user", "content": text}]


def test_every_turn_of_an_entry_is_a_prompt() -> None:
    """Turns keep entry, category and order; --limit counts entries; a category is chosen from all of them, whatever its hyphens."""
    first, second = (user(text) for text in MT_BENCH[0]["turns"])
    copy = written(MT_BENCH)
    assert told(f"mt-bench@{copy}", 1) == [(81, "writing", 1, first), (81, "writing", 2, second)]
    assert [one[:3] for one in told(f"mt-bench:Roleplay@{copy}", 1)] == [(91, "roleplay", 1), (91, "roleplay", 2)]
    assert told(f"mt-bench@{written(HUB_MT_BENCH, 'hub.jsonl')}") == told(f"mt-bench@{copy}", 1)
    assert [prompt.turn for prompt in from_file(f"mt-bench@{copy}")] == [1, 1]
    Path("mt-bench").write_text("a file of this name\n")
    assert [prompt.text for prompt in open_any("mt-bench")] == ["a file of this name"]


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("humaneval", {"task_id": "HumanEval/0", "prompt": "def f():\n"}, ("HumanEval/0", None, 1, "def f():\n")),
        ("gsm8k", {"question": "1 + 1?", "answer": "2"}, (None, None, 1, user("1 + 1?"))),
        ("cnn-dm", {"article": "News.", "id": "x"}, ("x", None, 1, user("Summarize: News."))),
    ],
)
def test_sets_of_single_turns(name: str, row: dict[str, str], expected: tuple[Any, ...]) -> None:
    """Code is a text to continue, a question and an article are chats; a copy may be packed with gzip."""
    assert told(f"{name}@{written([row], 'copy.jsonl.gz')}") == [expected]


@pytest.mark.wide
def test_a_folder_of_parquet_is_a_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SPEED-Bench's prepared folders are read, each part from the folder of its name; the digest is that of a copy in lines."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    for part in ("qualitative", "throughput_1k"):
        datasets.Dataset.from_list([SPEED[0] | {"question_id": part}]).to_parquet(f"data/{part}/test.parquet")
    assert told("speed-bench:throughput-1k@data") == [("throughput_1k", "coding", 1, user("one"))]
    assert told("speed-bench:qualitative:coding@data/qualitative")[0][0] == "qualitative"
    lines = open_prompts(f"speed-bench:qualitative@{written([SPEED[0] | {'question_id': 'qualitative'}])}")
    assert open_prompts("speed-bench:qualitative@data").about == lines.about


def test_a_set_says_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known digest is compared, whatever part is asked for; of another set it is shown."""
    copy = written(MT_BENCH)
    digest = digest_of([entry_of(SETS["mt-bench"], row, "") for row in MT_BENCH])
    assert open_prompts(f"mt-bench@{copy}").about == (
        f"mt-bench, 2 entries with the SHA-256 {digest[:16]}, whose digest is not known beforehand"
    )
    monkeypatch.setitem(SETS, "mt-bench", attrs.evolve(SETS["mt-bench"], digest=digest))
    assert open_prompts(f"mt-bench:writing@{copy}", 1).about == (
        f"mt-bench:writing, 2 entries with the SHA-256 {digest[:16]}, as published"
    )
    with pytest.raises(
        OptionError, match=rf"^--prompts: .* is not the set mt-bench: .* {digest[:16]}, got 1 with \w+$"
    ):
        open_prompts(f"mt-bench@{written(MT_BENCH[:1])}", 1)


@pytest.mark.parametrize(
    ("given", "rows", "words"),
    [
        ("mt-bnch", None, "is neither a file nor one of spec-bench, .*: did you mean 'mt-bench'"),
        ("mt-bench@none.jsonl", None, "cannot be read: No such file"),
        ("mt-bench@none", None, "there is no file or folder none"),
        ("mt-bench:math@copy.jsonl", MT_BENCH, "expected one of the categories writing, roleplay, got math"),
        ("mt-bench:math:x@copy.jsonl", MT_BENCH, r"expected mt-bench\[:CATEGORY\]\[@COPY\], got"),
        ("gsm8k:math@copy.jsonl", [{"question": "q"}], "expected no category, since the set has none"),
        ("gsm8k@copy.jsonl", MT_BENCH, "row 1 is not of this set: expected the texts of its turns, got question_id, "),
        ("mt-bench@copy.jsonl", [{"turns": ["a", ""]}], "row 1 is not of this set"),
        ("mt-bench@copy.jsonl", ["{"], "line 1 is not JSON"),
        ("mt-bench@copy.jsonl", ["3"], "line 1: expected an object, got 3"),
        ("mt-bench@copy.jsonl", [], "holds no prompts"),
        ("speed-bench", SPEED, "expected speed-bench:PART with one of qualitative, throughput_1k"),
        ("speed-bench:throughput@copy.jsonl", SPEED, "expected speed-bench:PART with one of qualitative"),
        ("speed-bench:qualitative@copy.jsonl", HELD_BACK, "is without its text, which prepare_data.py"),
    ],
)
def test_what_is_no_set_is_refused_in_a_sentence(given: str, rows: Any, words: str) -> None:
    """A wrong name, part, category, copy or row ends in one sentence with what was expected."""
    if rows is not None:
        written(rows)
    with pytest.raises(OptionError, match=words) as caught:
        open_any(given)
    assert "\n" not in str(caught.value)


@pytest.mark.wide
def test_a_set_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a copy the published set is loaded with its configuration and split; with --limit no more is fetched than that."""
    import datasets

    asked: list[Any] = []

    def load(*given: Any, **options: Any) -> Any:
        asked.append((given, options))
        return iter([{"question": "a"}, {"question": "b"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert [one[3] for one in told("gsm8k", 1)] == [user("a")]
    assert asked == [(("openai/gsm8k", "main"), {"split": "test", "streaming": True})]


def test_a_set_is_fetched_from_its_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read as a copy of it is; where it cannot be reached, or is another one, a sentence says so."""
    content = Path(written(MT_BENCH)).read_bytes()
    monkeypatch.setattr(urllib.request, "urlopen", lambda place, timeout: io.BytesIO(content))
    monkeypatch.setitem(SETS, "spec-bench", attrs.evolve(SETS["spec-bench"], digest=""))
    assert told("spec-bench") == told("mt-bench@copy.jsonl")
    monkeypatch.setitem(SETS, "spec-bench", attrs.evolve(SETS["spec-bench"], digest="another"))
    with pytest.raises(OptionError, match="is not the set spec-bench"):
        told("spec-bench", 1)
    monkeypatch.setattr(urllib.request, "urlopen", lambda place, timeout: 1 / 0)
    with pytest.raises(OptionError, match=r"^--prompts: spec-bench cannot be read: "):
        told("spec-bench")


def run(*arguments: str) -> list[dict[str, Any]]:
    """Return the results of a run in order."""
    out = CliRunner().invoke(cli, ["run", "--max-new-tokens", "4", "--quiet", *arguments])
    assert out.exit_code in (0, 1), out.output
    return [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_later_turn_follows_the_answer() -> None:
    """A second turn's chat holds the first one's answer, at any batch size; a chat that is incomplete is completed by --resume."""
    copy = written(MT_BENCH)
    arguments = ["--prompts", f"mt-bench@{copy}", "--output", "out.jsonl"]
    found = run(*arguments, "--batch-size", "3")
    assert [(one["index"], one["id"], one.get("turn")) for one in found] == [
        (0, 81, None),
        (1, 81, 2),
        (2, 91, None),
        (3, 91, 2),
    ]
    pipe = Pipeline(drafter="none")
    for first, second in (found[2:], found[:2]):
        chat = user(first["prompt"])
        assert [one.token_ids for one in pipe.generate([chat], 4)] == [first["token_ids"]]
        chat += [{"role": "assistant", "content": first["text"]}, *user(second["prompt"])]
        assert [one.token_ids for one in pipe.generate([chat], 4)] == [second["token_ids"]]
    assert [one.token_ids for one in pipe.generate([[chat[0], chat[2]]], 4)] != [found[1]["token_ids"]]
    lines = Path("out.jsonl").read_text(encoding="utf-8").splitlines()
    Path("out.jsonl").write_text(f"{lines[0]}\n{lines[3]}\n", encoding="utf-8")
    assert run(*arguments, "--batch-size", "3", "--resume") == found


def test_a_turn_after_one_that_failed_fails() -> None:
    """Its result says so, and other chats go on."""
    copy = written([{"turns": ["x " * 3000, "why"]}, {"turns": ["import os"]}])
    found = run("--prompts", f"mt-bench@{copy}", "--output", "out.jsonl")
    assert [one["finish_reason"] for one in found] == ["error", "error", "length"]
    assert found[1]["error"].startswith("the turn before it failed: the prompt has ")
