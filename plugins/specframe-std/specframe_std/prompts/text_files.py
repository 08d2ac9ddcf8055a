"""Prompts from text files, JSON, token ids and standard input."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from specframe.errors import OptionError, PromptError
from specframe.text.prompts.prompt import Prompt, Prompts, checked_prompt
from specframe_std.prompts.entries import KEYS, from_entry, load
from specframe_std.prompts.lazy_text import GZIP, LazyText

Reader = Callable[[LazyText, str, int | None], Prompts]
"""Returns the first prompts, up to a number, of a text, of the source of that name."""


def some(name: str, prompts: Prompts) -> Prompts:
    """Return the prompts; raise :class:`OptionError` with the first fault if all prompts have one: the file has another format."""
    first = next((prompt.fault for prompt in prompts), None)
    if first and all(prompt.fault for prompt in prompts):
        raise OptionError(f"--prompts: {name} holds no prompts: {first}")
    return prompts


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
