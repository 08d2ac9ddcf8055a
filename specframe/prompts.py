"""Prompts from text files, JSON lines and standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attrs

from specframe.errors import OptionError, PromptError

_BUILT_IN = '''\
import os
import sys

=====
def read_lines(path):
=====
def is_palindrome(text):
    """Return True if text reads the same both ways."""
=====
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
=====
for name in sorted(os.listdir(path)):
    full = os.path.join(path, name)
    if os.path.isdir(full):
=====
def parse_header(line):
    """Split a header line into its name and value.

    Raise ValueError if there is no colon.
    """
    if ":" not in line:
=====
class Node:
    def __init__(self, value, next=None):
        self.value = value
        self.next = next

    def __repr__(self):
=====
import unittest

class TestQueue(unittest.TestCase):
    def setUp(self):
        self.queue = Queue(maxsize=4)

    def test_empty(self):
        self.assertTrue(self.queue.empty())

    def test_put(self):
'''
BUILT_IN = tuple(text.rstrip("\n") for text in _BUILT_IN.split("=====\n"))
"""Starts of Python code, short and long, for a run that was given no prompts."""

KEYS = ("prompt", "text", "turns")


@attrs.frozen
class Prompt:
    """One prompt, or why it cannot be had; ``text`` is then what stood in its place."""

    text: str
    fault: str | None = None
    place: str = ""
    """Where it came from, for messages."""
    parameters: dict[str, Any] = attrs.Factory(dict)
    """What else its JSON line holds."""


def from_arguments(texts: tuple[str, ...]) -> list[Prompt]:
    """Return the prompts given as arguments of a command."""
    return [checked(text, f"argument {number}") for number, text in enumerate(texts, start=1)]


def from_file(path: str) -> list[Prompt]:
    """Return the prompts of a file, ``-`` being standard input: one per line, or one JSON object per line.

    Blank lines are passed over. JSON lines are known by the ending ``.jsonl`` or by their content.

    Raises:
        OptionError: the file cannot be read or holds no prompt.
    """
    name = "standard input" if path == "-" else path
    lines = [
        (n, line.removesuffix("\r")) for n, line in enumerate(read(path, name).split("\n"), start=1) if line.strip()
    ]
    if not lines:
        raise OptionError(f"--prompts: {name} holds no prompts: expected one per line")
    if Path(path).suffix.lower() in (".jsonl", ".ndjson") or looks_like_objects([line for _, line in lines]):
        return [from_json(line, f"{name} line {number}") for number, line in lines]
    return [checked(line, f"{name} line {number}") for number, line in lines]


def read(path: str, name: str) -> str:
    """Return a file's text, a byte-order mark left out."""
    if path == "-" and sys.stdin is None:
        raise OptionError("--prompts: standard input is closed: expected prompts, one per line")
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise OptionError(f"--prompts: {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        byte, place = error.object[error.start], error.start
        raise OptionError(
            f"--prompts: {name} is not text: expected UTF-8, got byte 0x{byte:02x} at place {place}"
        ) from error


def looks_like_objects(lines: list[str]) -> bool:
    """Return whether these are JSON lines: the first starts an object, and some line holds one with a prompt."""
    return lines[0].lstrip().startswith("{") and any(holds_prompt(line) for line in lines)


def holds_prompt(line: str) -> bool:
    """Return whether a line is a JSON object with a key that may hold a prompt."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and any(key in entry for key in KEYS)


def from_json(line: str, place: str) -> Prompt:
    """Return the prompt of one JSON line, or what is wrong with the line."""
    try:
        entry = json.loads(line)
        prompt = checked(prompt_text(entry), place)
        return attrs.evolve(prompt, parameters={key: entry[key] for key in entry if key not in KEYS})
    except json.JSONDecodeError as error:
        return Prompt(line, f"{place}: expected a JSON object, got {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        return Prompt(
            line, f"{place}: expected a JSON object, got one nested too deep or with numbers too long to read"
        )
    except PromptError as error:
        return Prompt(line, f"{place}: {error}")


def prompt_text(entry: Any) -> str:
    """Return ``prompt``, ``text`` or the first of ``turns`` of a JSON object."""
    if not isinstance(entry, dict):
        raise PromptError(f"expected a JSON object, got {json.dumps(entry)[:40]}")
    key = next((key for key in KEYS if key in entry), None)
    if key is None:
        raise PromptError(f"expected one of {', '.join(KEYS)}, got {', '.join(entry) or 'an empty object'}")
    value = entry[key]
    if key == "turns":
        value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, str):
        expected = "a list of texts" if key == "turns" else "a text"
        raise PromptError(f"{key}: expected {expected}, got {json.dumps(value)[:40]}")
    return value


def checked(text: str, place: str) -> Prompt:
    """Return a prompt, with a fault if it is no text that a tokenizer can read."""
    fault = text_fault(text)
    return Prompt(text, fault and f"{place}: {fault}", place)


def text_fault(text: str) -> str | None:
    """Return why no tokenizer can read a text, or None when one can."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "expected text, got half of a surrogate pair or a byte that is not UTF-8"
    return None
