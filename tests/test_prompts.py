"""Prompts from files of every format, and from data sets."""

from __future__ import annotations

import codecs
import gzip
import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import invoke
from specframe_lab.commands.grids import readable
from specframe_std.prompts.entries import KEYS, load
from specframe_std.prompts.files import from_file, open_prompts
from specframe_std.prompts.tables import TABLES
from specframe_std.prompts.text_files import READERS
from specframe_std.run_command.results import record
from specframe_std.run_command.sampling import SamplingFlags

from specframe.contracts.requests import Result, SequenceMetrics
from specframe.engine.encoding import LONGEST, encode_prompt
from specframe.errors import OptionError, PromptError, SpecframeWarning
from specframe.text.prompts.prompt import Prompt

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "Because."}]


pytestmark = pytest.mark.usefixtures("here")


def written(content: str | bytes, name: str) -> list[Prompt]:
    """Return the prompts of a file that holds this."""
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return from_file(name)


def given(content: Any, name: str) -> list[Any]:
    """Return what a pipeline is handed for a file that holds this; no prompt has a fault."""
    found = written(content if isinstance(content, str | bytes) else json.dumps(content), name)
    assert [prompt.fault for prompt in found] == [None] * len(found)
    return [prompt.given for prompt in found]


ENTRIES: list[Any] = [
    *(
        "a text",
        [5, 6, 7],
        ANSWERED,
        {"prompt": "p", "text": "t"},
        {"prompt_token_ids": [1, 2]},
        {"messages": ASKED, "id": 3},
    ),
    {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "q"},
            {"from": "gpt", "value": "a"},
        ]
    },
    *({"conversations": ANSWERED}, {"instruction": "Add.", "input": "1 2", "output": "3"}),
]
"""Entries of every form."""


@pytest.mark.wide
@pytest.mark.parametrize("text", ["[1, 2, 3]", "[", "[\n  1,\n", "{}", "{a}\n{b}", "[x for x in y]\n[1]", '"a"', "5"])
def test_code_that_looks_like_json_stays_text(text: str) -> None:
    """The lines of a text file are prompts unless the whole is JSON that holds some."""
    assert given(text, "p.txt") == text.splitlines()


@pytest.mark.wide(
    but=[
        'p.csv-prompt,id\\na,1\\n"b,2\\nc,3\\n-is not CSV: the row after line 2: a quote is not closed',
        'p.jsonl-{"q": 1}\\n{"q": 2}\\n-holds no prompts: p.jsonl line 1: expected one of prompt, text, ',
    ]
)
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("p.json", "5", "holds no prompts: expected a JSON array of texts or objects, got 5"),
        ("p.json", '["a",\n "b"', "is not JSON: Expecting ',' delimiter (line 2 column 5)"),
        ("p.json", "[" * 99999, "is not JSON: it is nested too deep, or holds a number too long to read"),
        (
            "p.json",
            "[1, 2, 3]",
            "holds no prompts: p.json entry 1: expected an object, a text, token ids or messages, got 1",
        ),
        ("p.txt", '[\n {"q": 1},\n {"q": 2}\n]', "holds no prompts: p.txt entry 1: expected one of prompt, text, "),
        ("p.csv", "question,answer\na,b\n", "has the columns question, answer: expected one of prompt, text, "),
        ("p.csv", "prompt,id,id\na,1,2\n", "has two columns 'id': expected a name for each"),
        ("p.csv", 'prompt,id\na,1\n"b,2\nc,3\n', "is not CSV: the row after line 2: a quote is not closed"),
        (
            "p.jsonl",
            codecs.BOM_UTF16_LE + "ab".encode("utf-16-le"),
            "is not text: line 1: expected UTF-8, got byte 0xff at place 0",
        ),
        ("p.jsonl", '{"q": 1}\n{"q": 2}\n', "holds no prompts: p.jsonl line 1: expected one of prompt, text, "),
        ("p.csv", "prompt,turns\n,x\n,y\n", "holds no prompts: p.csv row 1: turns: expected "),
    ],
)
def test_files_without_prompts(name: str, content: str | bytes, reason: str) -> None:
    """A file that holds no prompts, or is no text, is one sentence that names it; no line of it becomes a prompt."""
    with pytest.raises(OptionError) as caught:
        written(content, name)
    assert str(caught.value).startswith(f"--prompts: {name} {reason}")
    assert "\n" not in str(caught.value)


def damaged(text: str, random: Random) -> bytes:
    """Return a text with a few characters cut out, put in or changed, perhaps cut short, in one of some encodings."""
    for _ in range(random.randint(1, 4)):
        start = random.randrange(len(text) + 1)
        put = "".join(random.choices('[]{}",:\\ \t\r\n0-.eNabz\0é\u2028', k=random.randint(0, 2)))
        text = text[:start] + put + text[start + random.randint(0, 3) :]
    if random.random() < 0.2:
        text = text[: random.randrange(len(text) + 1)]
    return text.encode(random.choices(["utf-8", "utf-16", "utf-16-le"], [20, 1, 1])[0])


@pytest.mark.wide
@pytest.mark.parametrize("name", ["p.json", "p.jsonl", "p.txt", "p.csv", "p.tsv", "p.ids"])
def test_damaged_files(name: str) -> None:
    """Whatever is in a file, it gives prompts that have a fault or a form that a pipeline takes, or one sentence."""
    random = Random(name)
    table = 'id,prompt,turns\n1,a,\n2,,"[""b""]"\n'
    whole = {
        "p.json": json.dumps(ENTRIES),
        "p.csv": table,
        "p.tsv": table.replace(",", "\t"),
        "p.ids": "1 2 3\n[4, 5]\n",
    }
    lines = "\n".join(json.dumps(entry) for entry in ENTRIES)
    for _ in range(150):
        content = damaged(whole.get(name, lines), random)
        fault, found = "", []
        try:
            found = written(content, name)
        except OptionError as error:
            fault = str(error)
        assert bool(found) != bool(fault), content
        assert fault == "" or fault.startswith(f"--prompts: {name}")
        assert "\n" not in fault
        assert all(prompt.fault or isinstance(prompt.given, str | list) for prompt in found), content
        assert all(prompt.fault is None or prompt.fault.startswith(f"{name} ") for prompt in found), content


FAULTS: list[tuple[Any, str]] = [
    ({"prompt": None}, "prompt: expected a prompt, got null"),
    (5, "expected an object, a text, token ids or messages, got 5"),
    ([3, -1], "the entry: expected a list of token ids, got [3, -1]"),
    ({}, "got an empty object"),
    (
        {"question": "q"},
        "expected one of prompt, text, turns, messages, conversations, instruction, prompt_token_ids, got question",
    ),
    ({"text": [1]}, "text: expected a text, got [1]"),
    ({"turns": []}, "turns: expected a list of texts, got []"),
    ({"messages": []}, "messages: expected a message to answer"),
    ({"messages": [{"role": "user"}]}, "messages: expected a list of messages, objects with role and content, got "),
    ({"messages": ANSWERED[2:]}, "messages: expected a message to answer, got 1 of the assistant alone"),
    ({"conversations": [{"from": "gpt", "value": "a"}]}, "conversations: expected turns with from and value"),
    ({"prompt_token_ids": [1.5]}, "prompt_token_ids: expected a list of token ids, got [1.5]"),
    ({"prompt": "\ud800"}, "expected text, got half of a surrogate pair"),
]
"""Entries that hold no prompt, and why."""


@pytest.mark.wide
def test_faults_of_single_entries() -> None:
    """An entry that holds no prompt has a fault with its place; the others are prompts."""
    found = written(json.dumps([entry for entry, _ in FAULTS] + ["fine"]), "p.json")
    for number, (prompt, (entry, reason)) in enumerate(zip(found[:-1], FAULTS, strict=True), start=1):
        assert prompt.fault, entry
        assert prompt.fault.startswith(f"p.json entry {number}: "), prompt.fault
        assert reason in prompt.fault
        assert prompt.given == ""
    assert (found[-1].given, found[-1].fault) == ("fine", None)


@pytest.mark.wide
def test_a_key_given_twice_fails_its_prompt_alone() -> None:
    """Neither the first value nor the last is taken silently."""
    first, second = written('{"prompt": "a", "top_k": 1, "top_k": 2}\n{"prompt": "b"}\n', "p.jsonl")
    assert first.fault == "p.jsonl line 1: the key 'top_k' is given twice: expected one value"
    assert (second.given, second.fault) == ("b", None)
    assert written('[{"prompt": "a", "prompt": "b"}, "c"]', "p.json")[0].fault
    with pytest.raises(PromptError, match=r"Expecting value \(line 2 column 1\)"):
        load("[\n")


@pytest.mark.wide
def test_token_ids() -> None:
    """A file .ids has a prompt of token ids per line; a line of something else is a fault."""
    found = written("1 2 3\n\n[4, 5]\n6,7\n1 -2\nx\n", "p.ids")
    assert [prompt.given for prompt in found] == [[1, 2, 3], [4, 5], [6, 7], "", ""]
    assert found[0].text == "[1, 2, 3]"
    assert found[3].fault == "p.ids line 5: expected token ids with blanks between them, got '1 -2'"


@pytest.mark.wide
@pytest.mark.parametrize(("name", "barrier"), [("p.csv", ","), ("p.tsv", "\t")])
def test_csv(name: str, barrier: str) -> None:
    """A table with a line of names has a prompt per row; other columns are parameters, texts stay as they are."""
    rows = [
        ["id", "prompt", "temperature"],
        ["1", '"a ""b""\nc"', "0.5"],
        ["2", "null", ""],
        ["3", "", "1"],
        ["4", "5", "hot"],
    ]
    found = written("\n".join(barrier.join(row) for row in rows) + "\n", name)
    assert [prompt.given for prompt in found] == ['a "b"\nc', "null", "", "5"]
    assert [prompt.parameters.get("temperature") for prompt in found] == [0.5, None, None, "hot"]
    assert found[2].fault == f"{name} row 3: expected one of {', '.join(KEYS)}, got id, temperature"
    assert given("prompt\n007\nNA\n1e3\nTrue\n", name) == ["007", "NA", "1e3", "True"]
    assert given(f"turns{barrier}x\n" + f'"[""a"", ""b""]"{barrier}1\n', name) == ["a"]
    assert (
        written(f"prompt\na{barrier}b\nc\n", name)[0].fault
        == f"{name} row 1: expected a cell for each column, got more"
    )


ROWS = [{"prompt": "a", "question": "b", "top_k": 3}, {"prompt": "c", "question": "d", "top_k": 4}]


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Parquet file, data sets that were saved, and a folder of files; the library's cache is the test's own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_list(ROWS)
    table.to_parquet("p.parquet")
    table.save_to_disk("saved")
    datasets.DatasetDict(train=table).save_to_disk("one")
    datasets.DatasetDict(train=table, test=table.select([1])).save_to_disk("two")
    datasets.Dataset.from_list([{"messages": ANSWERED}]).to_parquet("chats.parquet")
    datasets.Dataset.from_list([{"question": "b"}]).to_parquet("questions.parquet")
    Path("folder").mkdir()
    table.to_parquet("folder/train.parquet")
    return tmp_path


@pytest.mark.wide
def test_data_sets(sets: Path) -> None:
    """Parquet files and saved data sets are read as they are, others by name, split and column."""
    for path in (
        "p.parquet",
        "saved",
        "one",
        "hf:two:train",
        "hf:./folder",
        "hf:folder:train",
        str(sets / "p.parquet"),
    ):
        found = from_file(path)
        assert [prompt.given for prompt in found] == ["a", "c"], path
        assert found[1].parameters == {"question": "d", "top_k": 4}
    assert [prompt.given for prompt in from_file("hf:two:test")] == ["c"]
    for path in ("hf:p.parquet:train:question", "hf:saved::question", "hf:folder:train[:1]:question"):
        assert from_file(path)[0].given == "b", path
    assert from_file("chats.parquet")[0].given == ASKED


@pytest.mark.wide
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("two", "two has the splits train, test: expected one of them, got none named"),
        ("hf:two:dev", "hf:two:dev has the splits train, test: expected one of them, got 'dev'"),
        ("hf:saved::answer", "has the columns prompt, question, top_k: expected one of them, got answer"),
        ("questions.parquet", "has the columns question: expected one of prompt, text, "),
        ("hf:a:b:c:d", "expected hf:NAME[:SPLIT[:COLUMN]], got 'hf:a:b:c:d'"),
        ("broken.parquet", "broken.parquet cannot be read: "),
        (
            "empty",
            "empty is a folder: expected a file, a data set that save_to_disk wrote, or hf:empty for a folder of files",
        ),
    ],
)
def test_refused_data_sets(sets: Path, path: str, reason: str) -> None:
    """What cannot be read, and a choice that is not there, is one sentence."""
    Path("broken.parquet").write_text("PAR1")
    Path("empty").mkdir()
    Path("broken").mkdir()
    Path("broken/train.parquet").write_text("PAR1")
    with pytest.raises(OptionError) as caught:
        from_file(path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.wide
def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library is not installed, the sentence says how to get it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    Path("p.parquet").write_bytes(b"PAR1")
    for path in ("p.parquet", "hf:some/set"):
        with pytest.raises(OptionError, match=r"takes the package datasets, .*: pip install 'specframe-std\[data\]'"):
            from_file(path)


TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def pipe() -> Any:
    """The embedded target, decoding plainly, with a tokenizer of its own."""
    from specframe import Pipeline

    return Pipeline(target="tiny", drafter="none")


@pytest.mark.wide
def test_messages_that_cannot_be_rendered_fail_alone(pipe: Any) -> None:
    """Without a template, or where it refuses, that prompt fails with a sentence and the others are decoded."""
    pipe.tokenizer.chat_template = None
    chat, text = pipe.generate([ASKED, "import os"], 4)
    assert chat.error == (
        "the prompt is a list of messages, and the target's tokenizer has no chat template: expected a text or token ids"
    )
    assert text.token_ids
    pipe.tokenizer.chat_template = TEMPLATE
    (refused,) = pipe.generate([[{"role": "tool", "content": "x"}]], 4)
    assert refused.error == "the target's chat template refuses the messages: no tools"


@pytest.mark.wide
def test_a_target_without_a_template_is_refused(pipe: Any) -> None:
    """A chat needs a template: of Python and of the command line, one sentence before anything is decoded or written."""
    told = "chat: expected a target whose tokenizer has a chat template, got one without"
    pipe.tokenizer.chat_template = None
    shutil.copytree(pipe.target_model.name_or_path, "plain")
    Path("plain", "chat_template.jinja").unlink()
    with pytest.raises(OptionError, match=told):
        pipe.chat(["Why?"])
    options = ["--target", "plain", "--drafter", "none", "--chat", "--output", "o.jsonl"]
    refused = invoke("run", *options, "Why?")
    assert (refused.exit_code, Path("o.jsonl").exists()) == (2, False), refused.output
    assert told in refused.output


@pytest.mark.wide
def test_a_run_of_chats(pipe: Any) -> None:
    """``run --chat`` decodes texts as messages, keeps them as they were asked, and is not completed by a run of texts."""
    pipe.tokenizer.chat_template = TEMPLATE
    shutil.copytree(pipe.target_model.name_or_path, "target")
    pipe.tokenizer.save_pretrained("target")
    Path("p.jsonl").write_text('{"prompt": "Why?"}\n{"prompt": [5, 6, 7]}\n')
    options = ["--target", "target", "--drafter", "none", "--prompts", "p.jsonl", "--max-new-tokens", "4"]
    done = invoke("run", "--chat", "--output", "o.jsonl", *options)
    assert done.exit_code == 0, done.output
    kept = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert [one["prompt"] for one in kept] == ["Why?", "[5, 6, 7]"]
    expected = pipe.generate(["<user>Why?<assistant>", [5, 6, 7]], 4)
    assert [one["token_ids"] for one in kept] == [one.token_ids for one in expected]
    texts = invoke("run", "--resume", "--output", "o.jsonl", *options)
    assert texts.exit_code == 2
    assert "chat" in texts.output


def test_an_entrys_id_comes_back_with_its_result() -> None:
    """The record of a result has the id of its entry, of one that cannot be decoded, too; null and no id give none."""
    entries = [{"id": 7}, {"id": "q-7"}, {"id": [1, {"a": 2}]}, {"id": None}, {}]
    asked = [
        *({"prompt": "a"} | one for one in entries),
        {"prompt": 5, "id": "wrong"},
        {"prompt": "a", "id": 8, "top_p": 9},
    ]
    found = written("\n".join(map(json.dumps, asked)), "p.jsonl")
    kept = [record(Result(0, "", [], "eos", SequenceMetrics()), prompt) for prompt in found]
    assert [one.get("id") for one in kept] == [7, "q-7", "[1, {'a': 2}]", None, None, "wrong", 8]
    assert ["id" in one for one in kept] == [True, True, True, False, False, True, True]
    assert found[5].fault
    assert next(iter(kept[0])) == "index"  # by which a file of results is recognised


@pytest.mark.wide
def test_a_grid_says_which_parameters_it_passes_over(recwarn: pytest.WarningsRecorder) -> None:
    """Parameters of single prompts have no effect on a grid, which is said once; what else an object holds is not named."""
    Path("p.jsonl").write_text('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 2, "top_k": 3}\n')
    assert readable((), "p.jsonl") == ["a", "b"]
    (warning,) = (one for one in recwarn if issubclass(one.category, SpecframeWarning))
    assert str(warning.message) == "p.jsonl line 2: parameters of single prompts have no effect here: top_k"


@pytest.mark.wide(but=["7_1"])
@pytest.mark.parametrize("second", [7, "7"])
def test_an_id_that_is_given_twice_is_told_of(second: int | str, recwarn: pytest.WarningsRecorder) -> None:
    """A warning names the first line whose id an earlier line has; a number is no text of the same digits."""
    entries = [{"prompt": "a", "id": 7}, {"prompt": "b"}, {"prompt": "c", "id": second}, {"prompt": "d", "id": 7}]
    found = written("\n".join(map(json.dumps, entries)), "p.jsonl")
    assert SamplingFlags({}).survey(found) == (4, 4)
    (warning,) = (one for one in recwarn if issubclass(one.category, SpecframeWarning))
    assert str(warning.message) == (
        f"p.jsonl line {3 if second == 7 else 4}: an earlier prompt has the id 7 as well: results are distinguished by "
        "their index alone"
    )


@pytest.mark.wide
def test_every_ending_is_documented() -> None:
    """The page of formats names each ending that is read in a way of its own, and each key."""
    page = (Path(__file__).parents[1] / "docs/prompts.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in [*READERS, *TABLES, *KEYS])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.txt", "a\n\nb\nc\n"),
        ("p.jsonl", '{"text": "a"}\n{"text": "b"}\n{"text": 5}\n{'),
        ("p.json", '["a", {"text": "b"}, 5]'),
        ("p.csv", "text\na\nb\nc,d\n"),
    ],
)
def test_a_limit_reads_no_further(name: str, content: str) -> None:
    """Nothing is reported of what comes after the prompts that are wanted."""
    Path(name).write_text(content)
    found = from_file(name, 2)
    assert [(prompt.given, prompt.fault) for prompt in found] == [("a", None), ("b", None)]
    assert len(from_file(name, 9)) == len(from_file(name)) > 2


@pytest.mark.wide
def test_a_limit_reaches_into_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as wanted are fetched, as a stream; a part of a split cannot be one."""
    import datasets

    asked = []

    def load_dataset(name: str, split: str | None, streaming: bool = False) -> Iterator[dict[str, str]]:
        asked.append((name, split, streaming))
        return ({"text": "abc"[row]} for row in range(3 if streaming else 4))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [prompt.given for prompt in from_file("hf:some/set:train", 3)] == ["a", "b", "c"]
    assert [prompt.given for prompt in from_file("hf:some/set:train[:9]", 2)] == ["a", "b"]
    with pytest.raises(OptionError, match="cannot be read"):
        from_file("hf:some/set:train")
    assert asked == [("some/set", "train", True), ("some/set", "train[:9]", False), ("some/set", "train", False)]


@pytest.mark.wide
@pytest.mark.parametrize("name", ["p.jsonl.gz", "p.csv.gz", "p.txt.gz", "p.TSV.GZ"])
def test_packed_files(name: str) -> None:
    """A file that gzip has packed is read as the file inside, as often as its prompts are looped over."""
    content = {"p.jsonl.gz": '{"prompt": "a\u00e9"}\n{"prompt": "b"}\n', "p.txt.gz": "a\u00e9\nb\n"}
    table = "prompt,id\na\u00e9,1\nb,2\n"
    text = content.get(name, table.replace(",", "\t") if name == "p.TSV.GZ" else table)
    Path(name).write_bytes(gzip.compress(text.encode()))
    asked = open_prompts(name)
    for _ in range(2):
        assert [prompt.text for prompt in asked] == ["a\u00e9", "b"]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("content", "said"),
    [(b"plain", "Not a gzipped file"), (gzip.compress(b"import os" * 99, mtime=0)[:-12], "ended before")],
    ids=["not packed", "cut off"],
)
def test_packed_files_that_are_broken(content: bytes, said: str) -> None:
    """A file that gzip did not write, or not to its end, is one sentence."""
    Path("p.jsonl.gz").write_bytes(content)
    with pytest.raises(OptionError, match=rf"^--prompts: p.jsonl.gz cannot be read: .*{said}.*$"):
        open_prompts("p.jsonl.gz")


@pytest.mark.wide(
    but=["https://example.org/p.jsonl-is an address: expected a file, or hf:NAME for a data set of the hub"]
)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("https://example.org/p.jsonl", "is an address: expected a file, or hf:NAME for a data set of the hub"),
        ("hf:./nowhere", "cannot be read: there is no file or folder ./nowhere"),
    ],
)
def test_places_that_hold_no_file(given: str, said: str) -> None:
    """An address and a folder that is not there are named as such, and no hub is asked."""
    with pytest.raises(OptionError, match=rf"^--prompts: {re.escape(given)} {re.escape(said)}$"):
        open_prompts(given)


def test_a_text_far_too_long_is_refused_by_its_beginning() -> None:
    """Of a text of many contexts only two contexts of long tokens are read; one that may fit is read whole."""
    read: list[int] = []

    def tokenizer(text: str) -> SimpleNamespace:
        read.append(len(text))
        return SimpleNamespace(input_ids=[1] * (len(text) // 2))

    with pytest.raises(
        PromptError, match=r"^the prompt has about 500000 tokens: expected fewer than the target's context of 10$"
    ):
        encode_prompt("ab" * 500_000, tokenizer, 10)
    assert read == [2 * LONGEST * 10]
    assert len(encode_prompt("ab" * 50, tokenizer, 10)) == 50
