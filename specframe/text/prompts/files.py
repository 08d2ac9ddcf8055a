"""Prompts from arguments, text files, JSON, token ids and standard input."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from specframe.errors import OptionError, PromptError
from specframe.plugins.registry import registry
from specframe.text.prompts.entries import KEYS, from_entry, load
from specframe.text.prompts.lazy import GZIP, LazyText, Prompts, some
from specframe.text.prompts.prompt import Prompt, checked_prompt

Reader = Callable[[LazyText, str, int | None], Prompts]
"""Returns the first prompts, up to a number, of a text, of the source of that name."""
HUB = "hf:"
"""Prefix that distinguishes a data set's name from a file's."""
TABLES = frozenset({".csv", ".tsv", ".parquet"})
"""Endings of files that hold a table."""


def from_arguments(texts: tuple[str, ...]) -> list[Prompt]:
    """Return the prompts given as arguments of a command."""
    return [checked_prompt(text, f"argument {number}") for number, text in enumerate(texts, start=1)]


def from_file(path: str, limit: int | None = None) -> list[Prompt]:
    """Return the prompts of :func:`open_prompts` as a list, without later turns of chats, which follow answers."""
    return [prompt for prompt in open_prompts(path, limit) if prompt.turn == 1]


def open_prompts(path: str, limit: int | None = None) -> Prompts:
    """Return the prompts of a file, of ``-`` (standard input), of a saved data set, of ``hf:NAME[:SPLIT[:COLUMN]]`` or of a
    benchmark set.

    No more of them than the first ``limit`` are read. They are read while they are looped over; of the forms only a JSON array
    is held as a whole.

    A text file has one prompt per line; blank lines are skipped. JSON lines and JSON arrays are recognised by the endings
    ``.jsonl``, ``.ndjson`` and ``.json`` or by their content, ``.ids`` (token ids, one prompt per line) by its ending; all may be
    compressed with gzip, as ``.jsonl.gz``. Tables, data sets and sets with names are read by the plugin of the option ``prompts``.

    Raises:
        OptionError: the file cannot be read or holds no prompt.
    """
    suffix = kind(path)
    if re.match(r"[a-z][a-z0-9+.-]+://", path):
        raise OptionError(f"--prompts: {path} is an address: expected a file, or {HUB}NAME for a data set of the hub")
    if path.startswith(HUB) or suffix in TABLES or os.path.isdir(path) or not (path == "-" or os.path.exists(path)):
        return registry().entry("option", "prompts").factory(path, limit)
    name = "standard input" if path == "-" else path
    return READERS.get(suffix, from_text)(text_of(path, name), name, limit)


def text_of(path: str, name: str) -> LazyText:
    """Return the text of a file; raise :class:`OptionError` where it cannot be read, or all of it is blank."""
    text = LazyText(path, name)
    if next(text.lines(), None) is None:
        raise OptionError(f"--prompts: {name} holds no prompts: expected one per line")
    return text


def kind(path: str) -> str:
    """Return a file's ending in small letters, without that of its compression."""
    name = Path(path.lower())
    return (name.with_suffix("") if name.suffix == GZIP else name).suffix


def by_line(read_line: Callable[[str, str], Prompt]) -> Reader:
    """Return a function that reads a text line by line."""

    def read_all(text: LazyText, name: str, limit: int | None) -> Prompts:
        lines = lambda: itertools.islice(text.lines(), limit)  # noqa: E731 - it is the loop below, begun anew
        return some(name, Prompts(lambda: (read_line(line, f"{name} line {number}") for number, line in lines())))

    return read_all


def from_text(text: LazyText, name: str, limit: int | None) -> Prompts:
    """Return the prompts of a text: read as JSON if the text looks like JSON, else one prompt per line."""
    if looks_like_objects(text):
        return by_line(from_json)(text, name, limit)
    return from_array(text, name, limit) if looks_like_array(text) else by_line(checked_prompt)(text, name, limit)


def from_document(text: LazyText, name: str, limit: int | None) -> Prompts:
    """Return the prompts of a file named ``.json``: an array, one object, or JSON lines."""
    several = len([*itertools.islice(text.lines(), 2)]) > 1
    return (by_line(from_json) if several and looks_like_objects(text) else from_array)(text, name, limit)


def from_array(text: LazyText, name: str, limit: int | None) -> Prompts:
    """Return the prompts of a JSON array, or of one object.

    Raises:
        OptionError: the text is not JSON, or no entry holds a prompt.
    """
    whole = text.whole()
    try:
        entries = load(whole)
    except PromptError as error:
        raise OptionError(f"--prompts: {name} is not JSON: {error}") from None
    if isinstance(entries, dict):
        entries = [entries]
    if not isinstance(entries, list) or not entries:
        raise OptionError(
            f"--prompts: {name} holds no prompts: expected a JSON array of texts or objects, got {whole.strip()[:40]}"
        )
    wanted = entries[:limit]
    return some(
        name, Prompts(lambda: (from_entry(entry, f"{name} entry {n}") for n, entry in enumerate(wanted, start=1)))
    )


def looks_like_objects(text: LazyText) -> bool:
    """Return whether lines are JSON lines: the first line starts an object, and some line is an object with a prompt."""
    lines = (line for _, line in text.lines())
    first = next(lines)
    return first.lstrip().startswith("{") and any(
        may_hold_prompt(parse_json(line)) for line in itertools.chain([first], lines)
    )


def looks_like_array(text: LazyText) -> bool:
    """Return whether a text is a JSON array or object that spans several lines or holds a prompt."""
    if next(text.lines())[1].lstrip()[:1] not in ("[", "{"):
        return False
    whole = text.whole()
    found = parse_json(whole)
    entries = found if isinstance(found, list) else [found]
    return found is not None and (
        "\n" in whole.strip() or any(isinstance(e, str) or may_hold_prompt(e) for e in entries)
    )


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, or None if the text is not JSON."""
    try:
        return load(text)
    except PromptError:
        return None


def may_hold_prompt(entry: Any) -> bool:
    """Return whether an entry is an object with a key that may hold a prompt."""
    return isinstance(entry, dict) and any(key in entry for key in KEYS)


def from_json(line: str, place: str) -> Prompt:
    """Return the prompt of one JSON line; a wrong line gives a prompt with a fault."""
    try:
        entry = load(line)
    except PromptError as error:
        return Prompt(line, f"{place} is not JSON: {error}", place)
    prompt = from_entry(entry, place)
    return attrs.evolve(prompt, text=line) if prompt.fault else prompt


def from_ids(line: str, place: str) -> Prompt:
    """Return the prompt of one line of token ids, separated by blanks or commas."""
    parts = re.split(r"[\s,]+", line.strip().strip("[]").strip())
    if not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        return Prompt(line, f"{place}: expected token ids with blanks between them, got {line.strip()[:40]!r}", place)
    return from_entry([int(part) for part in parts], place)


READERS: dict[str, Reader] = {
    ".jsonl": by_line(from_json),
    ".ndjson": by_line(from_json),
    ".json": from_document,
    ".ids": by_line(from_ids),
}
"""Readers of files, by the ending of the file name."""
