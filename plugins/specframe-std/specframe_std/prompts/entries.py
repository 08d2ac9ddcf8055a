"""Prompts from entries. An entry is an object, a text or a list, from a JSON line, a JSON array or a table's row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs

from specframe.errors import PromptError
from specframe.text.prompts.prompt import Given, Prompt, checked_prompt

SHOWN = 40
"""Characters of a wrong value that an error shows."""


class Doubled(dict[str, Any]):
    """An object in which a key is given twice."""

    twice: str


def load(text: str) -> Any:
    """Return the value of a JSON text; an object with a key given twice is :class:`Doubled`.

    Raises:
        PromptError: the text is not JSON, is nested too deep, or holds numbers too long to read.
    """
    try:
        return json.loads(text, object_pairs_hook=json_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise PromptError(f"{error.msg} ({where})") from None
    except (ValueError, RecursionError):
        raise PromptError("it is nested too deep, or holds a number too long to read") from None


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, marked if a key is given twice."""
    found, keys = dict(pairs), [key for key, _ in pairs]
    if len(found) < len(keys):
        found = Doubled(pairs)
        found.twice = next(key for key in found if keys.count(key) > 1)
    return found


def from_entry(entry: Any, place: str) -> Prompt:
    """Return the prompt of one entry; a wrong entry gives a prompt with a fault.

    Args:
        entry: a text, a list of token ids or of messages, or an object with one of :data:`KEYS`.
        place: the entry's place in its file, for messages.
    """
    rest = {key: entry[key] for key in entry if key not in KEYS} if isinstance(entry, dict) else {}
    try:
        return attrs.evolve(prompt_of(content_of(entry), place), parameters=rest)
    except PromptError as error:
        own = {key: rest[key] for key in rest if key == "id"}  # by which the failed entry is found again
        return Prompt(json_beginning(entry), f"{place}: {error}", place, own)


def prompt_of(content: Given, place: str) -> Prompt:
    """Return the prompt that holds a text, token ids or messages."""
    if isinstance(content, str):
        return checked_prompt(content, place)
    prompt = checked_prompt(json.dumps(content, ensure_ascii=False, default=str), place)
    if isinstance(content[0], int):
        return attrs.evolve(prompt, token_ids=content)
    return attrs.evolve(prompt, messages=content)


def content_of(entry: Any) -> Given:
    """Return the text, token ids or messages of an entry; raise :class:`PromptError` if it has none."""
    if isinstance(entry, str | list):
        return any_form("the entry", entry)
    if not isinstance(entry, dict):
        raise PromptError(f"expected an object, a text, token ids or messages, got {json_beginning(entry)}")
    if isinstance(entry, Doubled):
        raise PromptError(f"the key {entry.twice!r} is given twice: expected one value")
    key = next((key for key in READERS if entry.get(key) is not None), None)
    if key is None:
        if empty := [key for key in READERS if key in entry]:
            raise PromptError(f"{empty[0]}: expected a prompt, got null")
        raise PromptError(f"expected one of {', '.join(KEYS)}, got {', '.join(map(str, entry)) or 'an empty object'}")
    return READERS[key](key, entry[key], entry)


def any_form(key: str, value: Any, entry: Any = None) -> Given:
    """Return a text, token ids or messages as they are."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return chat(key, value)
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        return token_ids(key, value)
    raise PromptError(f"{key}: expected a text, token ids or messages, got {json_beginning(value)}")


def text(key: str, value: Any, entry: Any = None) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise PromptError(f"{key}: expected a text, got {json_beginning(value)}")
    return value


def token_ids(key: str, value: Any, entry: Any = None) -> list[int]:
    """Return a list of token ids; true and false are not token ids."""
    if not isinstance(value, list) or not value or not all(type(one) is int and one >= 0 for one in value):
        raise PromptError(f"{key}: expected a list of token ids, got {json_beginning(value)}")
    return value


def first_turn(key: str, value: Any, entry: Any = None) -> str:
    """Return the first turn of a SpecBench entry. Later turns follow answers that are not generated yet."""
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, str):
        raise PromptError(f"{key}: expected a list of texts, got {json_beginning(value)}")
    return first


def chat(key: str, value: Any, entry: Any = None) -> list[dict[str, Any]]:
    """Return the messages of a chat up to the last one not from the assistant: the message to answer."""
    fits = isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and "content" in one for one in value
    )
    if not fits:
        raise PromptError(
            f"{key}: expected a list of messages, objects with role and content, got {json_beginning(value)}"
        )
    last = max((place for place, one in enumerate(value) if one["role"] != "assistant"), default=-1)
    if last < 0:
        raise PromptError(f"{key}: expected a message to answer, got {len(value)} of the assistant alone")
    return [dict(one) for one in value[: last + 1]]


def conversation(key: str, value: Any, entry: Any = None) -> Given:
    """Return the first human turn of a ShareGPT entry (``from`` and ``value``); messages with roles are read as a chat."""
    turns = value if isinstance(value, list) and all(isinstance(one, dict) for one in value) else []
    if turns and all("role" in one for one in turns):
        return chat(key, turns)
    first = next((one.get("value") for one in turns if one.get("from") in ("human", "user")), None)
    if not isinstance(first, str):
        raise PromptError(
            f"{key}: expected turns with from and value, one of them from human, got {json_beginning(value)}"
        )
    return first


def instruction(key: str, value: Any, entry: Any) -> str:
    """Return the instruction of an Alpaca entry and, below the instruction, its input."""
    about = entry.get("input") or ""
    return "\n\n".join(part for part in (text(key, value), text("input", about)) if part)


READERS: dict[str, Callable[[str, Any, Any], Given]] = {
    "prompt": any_form,
    "text": text,
    "turns": first_turn,
    "messages": chat,
    "conversations": conversation,
    "instruction": instruction,
    "prompt_token_ids": token_ids,
}
"""Readers of prompts by key. The first key that an object has is read."""

KEYS = tuple(READERS)
"""The keys under which an object may hold its prompt."""


def json_beginning(value: Any) -> str:
    """Return the beginning of a value's JSON."""
    return json.dumps(value, ensure_ascii=False, default=str)[:SHOWN]
