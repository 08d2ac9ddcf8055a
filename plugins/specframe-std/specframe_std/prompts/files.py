"""Prompts from all places that the command line takes them from."""

from __future__ import annotations

import os
import re

from specframe.errors import OptionError
from specframe.text.prompts.prompt import Prompt, Prompts
from specframe_std.prompts import benchmark_sets
from specframe_std.prompts.tables import HUB, TABLES
from specframe_std.prompts.text_files import READERS, from_text, kind, text_of


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
    compressed with gzip, as ``.jsonl.gz``.

    Raises:
        OptionError: the file cannot be read or holds no prompt.
    """
    suffix = kind(path)
    if re.match(r"[a-z][a-z0-9+.-]+://", path):
        raise OptionError(f"--prompts: {path} is an address: expected a file, or {HUB}NAME for a data set of the hub")
    if path.startswith(HUB) or suffix in TABLES or os.path.isdir(path) or not (path == "-" or os.path.exists(path)):
        return benchmark_sets.open_prompts(path, limit)
    name = "standard input" if path == "-" else path
    return READERS.get(suffix, from_text)(text_of(path, name), name, limit)
