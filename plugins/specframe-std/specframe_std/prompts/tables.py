"""Prompts from tables: CSV files, and Parquet files and data sets through the library ``datasets``."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specframe.errors import OptionError, sentence
from specframe.text.prompts.prompt import Prompt, Prompts
from specframe.value_checks import parse_value
from specframe_std.prompts.entries import KEYS, from_entry
from specframe_std.prompts.lazy_text import LazyText
from specframe_std.prompts.text_files import kind, parse_json, some, text_of

HUB = "hf:"
"""Prefix that distinguishes a data set's name from a file's."""
TABLES = frozenset({".csv", ".tsv", ".parquet"})
"""Endings of files that hold a table."""
COLON = re.compile(r":(?![^\[]*\])")
"""A colon outside of brackets: a split may be named with a range, as in ``train[:100]``."""
BUILDERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
"""Builders of ``load_dataset``, by the ending of a file name."""
JSON_TEXTS = frozenset({"turns", "messages", "conversations", "prompt_token_ids"})
"""Columns of a CSV file that hold JSON."""


def open_table(path: str, limit: int | None = None) -> Prompts:
    """Return the first prompts of a CSV or Parquet file, of a data set's folder, or of ``hf:NAME[:SPLIT[:COLUMN]]``.

    Raises:
        OptionError: it cannot be read, or holds no prompt.
    """
    if path.startswith(HUB):
        return prompts(path, *dataset_name(path), limit)
    if kind(path) == ".parquet" or os.path.isdir(path):
        return from_path(path, limit)
    return from_csv(text_of(path, path), path, limit)


def from_path(path: str, limit: int | None = None) -> Prompts:
    """Return the prompts of a Parquet file or of a data set's folder, the first ``limit``, without asking the hub."""
    if not os.path.exists(path):
        raise OptionError(f"--prompts: {path} cannot be read: No such file or directory")
    if os.path.isdir(path) and not is_saved_dataset(path):
        raise OptionError(
            f"--prompts: {path} is a folder: expected a file, a data set that save_to_disk wrote, or {HUB}{path} for a "
            "folder of files"
        )
    return prompts(path, path, None, None, limit)


def dataset_name(given: str) -> tuple[str, str | None, str | None]:
    """Return the name, the split and the column of ``hf:NAME[:SPLIT[:COLUMN]]``; raise :class:`OptionError` for anything else."""
    name, split, column, *more = [*COLON.split(given.removeprefix(HUB)), "", ""]
    if not name or any(more):
        raise OptionError(f"--prompts: expected {HUB}NAME[:SPLIT[:COLUMN]], got {given!r}")
    return name, split or None, column or None


def prompts(shown: str, name: str, split: str | None, column: str | None, limit: int | None) -> Prompts:
    """Return the prompts of the first ``limit`` rows; errors call the data set ``shown``."""
    with faults(shown):
        found = one_split(shown, load(shown, name, split, stream=limit is not None), split)
        # a stream of the hub is fetched once, and no further than is asked for; files on disk are read anew
        rows = found if limit is None or hasattr(found, "__len__") else [*itertools.islice(found, limit)]
        first = next(iter(rows), None)
    if first is None:
        raise OptionError(f"--prompts: {shown} holds no prompts: expected at least one row")
    require_column(shown, [*first], column)

    def read() -> Iterator[Prompt]:
        with faults(shown):
            for number, row in enumerate(itertools.islice(rows, limit), start=1):
                entry = dict(row) if column is None else with_column(row, column)
                yield from_entry(entry, f"{shown} row {number}")

    return some(shown, Prompts(read))


@contextlib.contextmanager
def faults(shown: str) -> Iterator[None]:
    """Turn errors of the library into an :class:`OptionError` of one sentence about the data set called ``shown``."""
    try:
        yield
    except OptionError:
        raise
    except Exception as error:  # the type of the library's error depends on the file
        raise OptionError(f"--prompts: {shown} cannot be read: {sentence(error.__cause__ or error)}") from error


def require_column(shown: str, columns: list[str], column: str | None) -> None:
    """Raise :class:`OptionError` unless a data set has the chosen column; without a choice, one that is a key of prompts."""
    if column is None:
        require_key(shown, columns)
    elif column not in columns:
        raise OptionError(
            f"--prompts: {shown} has the columns {', '.join(columns)}: expected one of them, got {column}"
        )


def with_column(row: dict[str, Any], column: str) -> dict[str, Any]:
    """Return a row with the given column as its prompt."""
    return {"prompt": row[column], **{key: row[key] for key in row if key not in KEYS}}


def is_saved_dataset(path: str) -> bool:
    """Return whether ``save_to_disk`` wrote a folder."""
    return any((Path(path) / name).is_file() for name in ("state.json", "dataset_dict.json"))


def load(shown: str, name: str, split: str | None, stream: bool = False, config: str | None = None) -> Any:
    """Return the rows of a file, of a folder written by ``save_to_disk``, or of the data set ``load_dataset`` finds.

    With ``stream`` no more of a data set is fetched than is read, but for a part of a split, as in ``train[:100]``.
    """
    if importlib.util.find_spec("datasets") is None:
        raise OptionError(
            f"--prompts: {shown} takes the package datasets, which is not installed: pip install 'specframe-std[data]'"
        )
    import datasets

    datasets.disable_progress_bars()
    path = Path(name)
    if name.startswith((".", "/", "~")) and not path.exists():
        raise OptionError(f"--prompts: {shown} cannot be read: there is no file or folder {name}")
    if is_saved_dataset(name):
        found = datasets.load_from_disk(name)
        return found if isinstance(found, dict) else {str(found.split or "train"): found}
    if path.is_file() and (builder := BUILDERS.get(path.suffix.lower())):
        # read as a stream, nothing is written to the cache of data sets
        return datasets.load_dataset(builder, data_files=name, split=split or "train", streaming=True)
    # without the hub it tries for half a minute, and then looks into its cache
    named = [name, config] if config else [name]
    return datasets.load_dataset(*named, split=split, streaming=stream and "[" not in (split or ""))


def one_split(shown: str, found: Any, split: str | None) -> Iterable[Any]:
    """Return the rows of the chosen split, or of the only split."""
    if not isinstance(found, dict):
        return found
    if (split is None and len(found) > 1) or (split is not None and split not in found):
        got = "none named" if split is None else repr(split)
        raise OptionError(f"--prompts: {shown} has the splits {', '.join(found)}: expected one of them, got {got}")
    return found[split or next(iter(found))]


def require_key(shown: str, columns: Iterable[str]) -> None:
    """Raise :class:`OptionError` unless a column has one of the keys of prompts."""
    if not set(columns) & set(KEYS):
        raise OptionError(
            f"--prompts: {shown} has the columns {', '.join(columns) or 'none'}: expected one of {', '.join(KEYS)}; another "
            f"is named as in {HUB}{shown.removeprefix(HUB).split(':')[0]}:train:COLUMN"
        )


# CSV is not read by the library `datasets`, for it changes what they say: of CSV it makes
# numbers of texts ("007" becomes 7) and nothing of "NA", and one line that is no JSON fails the file, not the line's prompt.
def from_csv(text: LazyText, name: str, limit: int | None) -> Prompts:
    """Return the prompts of a table whose first line names the columns, one of them a key of prompts."""
    csv.field_size_limit(2**31 - 1)  # the default refuses a cell of more than 128 KiB
    columns = next(table(text, name))
    require_key(name, columns)
    if twice := next((column for column in columns if columns.count(column) > 1), None):
        raise OptionError(f"--prompts: {name} has two columns {twice!r}: expected a name for each")

    def read() -> Iterator[Prompt]:
        for number, row in enumerate(itertools.islice(table(text, name), 1, limit and limit + 1), start=1):
            yield from_cells(row, f"{name} row {number}")

    if next(read(), None) is None:
        raise OptionError(f"--prompts: {name} holds no prompts: expected at least one row below the names")
    return some(name, Prompts(read))


def table(text: LazyText, name: str) -> Iterator[Any]:
    """Yield the names of a table's columns, then its rows as mappings; raise :class:`OptionError` for what is no CSV."""
    with text.characters(newline="") as file:
        # strict: an open quote would swallow the rest
        reader = csv.DictReader(file, delimiter="\t" if kind(name) == ".tsv" else ",", strict=True)
        try:
            yield [*(reader.fieldnames or ())]
            yield from reader
        except csv.Error as error:
            unclosed = "unexpected end" in str(error)
            where = (
                f"the row after line {reader.line_num}: a quote is not closed"
                if unclosed
                else f"line {reader.line_num}: {error}"
            )
            raise OptionError(f"--prompts: {name} is not CSV: {where}") from error


def from_cells(row: dict[str, str], place: str) -> Prompt:
    """Return the prompt of one row. Its other cells are parsed like option values."""
    if None in row:
        return Prompt("", f"{place}: expected a cell for each column, got more", place)
    entry = {key: cell(key, value) for key, value in row.items() if value}
    return from_entry(entry, place)


def cell(key: str, value: str) -> Any:
    """Return the value of a cell."""
    if key in JSON_TEXTS:
        found = parse_json(value)
        return value if found is None else found
    return value if key in KEYS or key == "input" else parse_value(value)
