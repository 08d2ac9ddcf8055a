"""The table of how a family of drafts was trained: tokens and layers of each."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from typing import Any

import attrs

from specframe.errors import OptionError, literal
from specframe.files import contents
from specframe.value_checks import parse_value, whole
from specframe_lab.laws.measured_runs import reason

COLUMNS = ("drafter", "tokens", "layers")


@attrs.frozen
class TableDraft:
    """A draft of a family."""

    name: str
    """As results name the drafter."""
    tokens: int
    """That it was trained on."""
    layers: int


def read_drafts(file: str) -> list[TableDraft]:
    """Return the drafts of a table: CSV, or a list of objects where the name ends in .json. Other columns mean nothing here.

    Raises:
        OptionError: the file cannot be read, lacks a column, or has a value that cannot be.
    """
    rows = read_rows(file)
    for row in rows:
        if missing := [column for column in COLUMNS if not isinstance(row, Mapping) or row.get(column) is None]:
            raise OptionError(f"--drafts: {file} lacks {missing[0]}: expected the columns {', '.join(COLUMNS)}")
    drafts = [TableDraft(str(row["drafter"]), *(count(file, row, column) for column in COLUMNS[1:])) for row in rows]
    if not drafts:
        raise OptionError(f"--drafts: {file} has no rows: expected a row for each draft, of {', '.join(COLUMNS)}")
    names = [draft.name for draft in drafts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OptionError(f"--drafts: {file} has {literal(twice[0])} twice: expected a row for each draft")
    return drafts


def read_rows(file: str) -> list[Any]:
    """Return the rows of a table."""
    try:
        text = contents(file).decode("utf-8-sig")
        found = (
            json.loads(text) if file.lower().endswith(".json") else [*csv.DictReader(text.splitlines(), strict=True)]
        )
    except (OSError, ValueError, csv.Error) as error:
        raise OptionError(f"--drafts: {literal(file)} cannot be read: {reason(error)}") from error
    if not isinstance(found, list):
        raise OptionError(
            f"--drafts: {file}: expected a list of objects with {', '.join(COLUMNS)}, got {literal(found)}"
        )
    return found


def count(file: str, row: Mapping[str, Any], column: str) -> int:
    """Return a number of a row."""
    value = row[column]
    return whole(
        f"--drafts: {file}: {column} of {row['drafter']}", parse_value(value) if isinstance(value, str) else value, 1
    )
