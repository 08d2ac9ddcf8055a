"""Prompts of the field's benchmark sets, by name: from the hub through the library ``datasets``, or from a copy on disk.

Spec-Bench is a file of its own repository.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from specframe.errors import OptionError, PromptError
from specframe.files import decode_text
from specframe.text.prompts.prompt import Prompt, Prompts, checked_prompt
from specframe_std.prompts.entries import json_beginning
from specframe_std.prompts.entries import load as load_json
from specframe_std.prompts.lazy_text import LazyText
from specframe_std.prompts.tables import faults, load, one_split, open_table
from specframe_std.prompts.text_files import kind

Row = Mapping[str, Any]
LINES = frozenset({".jsonl", ".ndjson"})
"""Endings of copies that hold an entry per line; others are read by the library ``datasets``."""
PATIENCE = 30.0
"""Seconds without an answer after which a file's host counts as out of reach."""
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""Beginning of a turn of SPEED-Bench whose text may not be copied to the hub."""


@attrs.frozen
class Entry:
    """One entry of a set: the turns of its user, in order."""

    id: Any
    category: str | None
    turns: list[str]


def first_of(row: Row, *columns: str) -> Any:
    """Return the value of the first of some columns that a row has, or None if it has none."""
    return next((row[column] for column in columns if row.get(column) is not None), None)


def conversation(row: Row) -> Entry:
    """Return an entry of turns: of Spec-Bench, SPEED-Bench, and MT-bench as FastChat and as the hub has it."""
    return Entry(first_of(row, "question_id", "prompt_id"), row.get("category"), first_of(row, "turns", "prompt"))


def single(column: str, own_id: str = "", before: str = "") -> Callable[[Row], Entry]:
    """Return a reader of entries of one turn, the text of a column below some words."""

    def read(row: Row) -> Entry:
        text = row.get(column)
        return Entry(row.get(own_id), None, [f"{before}{text}" if isinstance(text, str) else text])  # type: ignore[list-item]

    return read


@attrs.frozen
class BenchmarkSet:
    """A benchmark set: where it is, and what its rows mean."""

    place: str
    """A data set of the hub, or the address of a file."""
    read: Callable[[Row], Entry] = conversation
    config: str | None = None
    """The configuration at the hub."""
    configs: tuple[str, ...] = ()
    """The configurations of which the user names one."""
    split: str = "test"
    chat: bool = True
    """Whether turns are messages of a chat; else they are texts that the target continues."""
    digest: str = ""
    """The digest of all entries, or "" if it is not known."""


SETS = {
    "spec-bench": BenchmarkSet(
        "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
        digest="6d9a905c42b2e44cf3aad3a95a1a4f58a0930ac4433beb2f90aeb013e2ade946",
    ),
    "speed-bench": BenchmarkSet(
        "nvidia/SPEED-Bench",
        configs=("qualitative", *(f"throughput_{size}k" for size in (1, 2, 8, 16, 32))),
    ),
    "mt-bench": BenchmarkSet("HuggingFaceH4/mt_bench_prompts", split="train"),
    "humaneval": BenchmarkSet("openai/openai_humaneval", single("prompt", "task_id"), chat=False),
    "gsm8k": BenchmarkSet("openai/gsm8k", single("question"), config="main"),
    # the words before the article are those of Spec-Bench's category summarization
    "cnn-dm": BenchmarkSet("abisee/cnn_dailymail", single("article", "id", "Summarize: "), config="3.0.0"),
}
"""The sets by the names that users give."""

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories that Spec-Bench's own tables have as one, its 80 chats of MT-bench."""


def open_prompts(path: str, limit: int | None = None) -> Prompts:
    """Return the prompts of a benchmark set, ``NAME[:PART...][@COPY]``, or else of a table or a data set.

    Raises:
        OptionError: it cannot be read, is not what its name says, or holds no prompt.
    """
    name = path.partition("@")[0].partition(":")[0]
    if name in SETS and not os.path.exists(path):
        return open_set(path, limit)
    if not os.path.exists(path) and (near := difflib.get_close_matches(name, SETS, n=1)):
        raise OptionError(
            f"--prompts: {path} is neither a file nor one of {', '.join(SETS)}: did you mean {near[0]!r}?"
        )
    return open_table(path, limit)


def open_set(given: str, limit: int | None) -> Prompts:
    """Return the prompts of ``NAME[:PART...][@COPY]``: each turn of the first ``limit`` entries is one.

    All entries are read, and compared with the set's digest where one is known; of the hub else no more than are asked for.
    """
    asked, _, copy = given.partition("@")
    name, *parts = asked.split(":")
    found = SETS[name]
    config = found.config
    if found.configs:
        config = parts.pop(0).replace("-", "_") if parts else ""
        if config not in found.configs:
            raise OptionError(f"--prompts: {given}: expected {name}:PART with one of {', '.join(found.configs)}")
    if len(parts) > 1 or (parts and not parts[0]):
        raise OptionError(f"--prompts: expected {name}{':PART' * bool(found.configs)}[:CATEGORY][@COPY], got {given!r}")
    whole = bool(found.digest or parts or copy or limit is None)
    with faults(given):
        rows = local_rows(given, copy, found, config) if copy else hub_rows(given, found, config, stream=not whole)
        numbered = enumerate(rows if whole else itertools.islice(rows, limit), start=1)
        entries = [entry_of(found, row, f"{given} row {number}") for number, row in numbered]
    if not entries:
        raise OptionError(f"--prompts: {given} holds no prompts: expected at least one row")
    digest = digest_of(entries)
    if found.digest and digest != found.digest:
        raise OptionError(
            f"--prompts: {given} is not the set {name}: expected entries with the SHA-256 {found.digest[:16]}, got "
            f"{len(entries)} with {digest[:16]}"
        )
    chosen = of_category(given, entries, parts[0]) if parts else entries
    known = "as published" if found.digest else "whose digest is not known beforehand"
    about = f"{asked}, {len(entries)} entries with the SHA-256 {digest[:16]}, {known}"
    return Prompts(lambda: all_turns(found, chosen[:limit], given), about)


def local_rows(given: str, copy: str, found: BenchmarkSet, config: str | None) -> Iterable[Row]:
    """Return the rows of a copy: a file of JSON lines, or what the library ``datasets`` reads."""
    if kind(copy) in LINES:
        return json_rows(given, [*LazyText(copy, given).lines()])
    own = Path(copy) / (config or "")
    place = str(own) if own.is_dir() else copy
    if not os.path.exists(place):
        raise OptionError(f"--prompts: {given} cannot be read: there is no file or folder {copy}")
    rows = load(given, place, None)
    return one_split(given, rows, found.split if isinstance(rows, dict) and found.split in rows else None)


def json_rows(given: str, lines: Iterable[tuple[int, str]]) -> Iterator[Row]:
    """Yield the rows of numbered lines of JSON."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = load_json(line)
        except PromptError as error:
            raise OptionError(f"--prompts: {given} line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise OptionError(f"--prompts: {given} line {number}: expected an object, got {json_beginning(row)}")
        yield row


def hub_rows(given: str, found: BenchmarkSet, config: str | None, stream: bool) -> Iterable[Row]:
    """Return the rows of the published set; of one outside of the hub its file is fetched, and its digest is compared."""
    if "://" in found.place:
        with urllib.request.urlopen(found.place, timeout=PATIENCE) as answer:
            text = decode_text(answer.read())
        return json_rows(given, enumerate(text.split("\n"), start=1))
    return one_split(given, load(given, found.place, found.split, stream, config), found.split)


def entry_of(found: BenchmarkSet, row: Row, place: str) -> Entry:
    """Return the entry of a row; raise :class:`OptionError` if the row is not of this set."""
    entry = found.read(row)
    turns = entry.turns
    if not isinstance(turns, list) or not turns or not all(isinstance(one, str) and one.strip() for one in turns):
        raise OptionError(
            f"--prompts: {place} is not of this set: expected the texts of its turns, got {', '.join(row) or 'no columns'}"
        )
    if any(one.startswith(PLACEHOLDER) for one in turns):
        raise OptionError(
            f"--prompts: {place} is without its text, which prepare_data.py of NVIDIA's specdec_bench fetches: expected the "
            "folder that it has written, as in speed-bench:qualitative@data/speed"
        )
    return entry


def digest_of(entries: Iterable[Entry]) -> str:
    """Return the SHA-256 of what entries say, whatever the format of the file that they are from."""
    found = hashlib.sha256()
    for entry in entries:
        found.update(json.dumps(attrs.astuple(entry), ensure_ascii=False).encode() + b"\n")
    return found.hexdigest()


def of_category(given: str, entries: list[Entry], category: str) -> list[Entry]:
    """Return the entries of a category; ``mt-bench``: of all that Spec-Bench has from there."""
    known = dict.fromkeys(entry.category for entry in entries if entry.category is not None)
    wanted = category.replace("-", "_").lower()
    names = MT_BENCH if wanted == "mt_bench" and {*MT_BENCH} <= {*known} else (wanted,)
    if not (chosen := [one for one in entries if str(one.category).replace("-", "_").lower() in names]):
        expected = f"one of the categories {', '.join(known)}" if known else "no category, since the set has none"
        raise OptionError(f"--prompts: {given}: expected {expected}, got {category}")
    return chosen


def all_turns(found: BenchmarkSet, entries: Iterable[Entry], given: str) -> Iterator[Prompt]:
    """Yield a prompt for each turn of each entry; later turns follow the answers to those before."""
    for number, entry in enumerate(entries, start=1):
        held = {"id": entry.id, "category": entry.category}
        parameters = {key: value for key, value in held.items() if value is not None}
        for turn, text in enumerate(entry.turns, start=1):
            messages = [{"role": "user", "content": text}] if found.chat else None
            prompt = checked_prompt(text, f"{given} entry {number}")
            yield attrs.evolve(prompt, parameters=parameters, messages=messages, turn=turn)
