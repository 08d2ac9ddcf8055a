"""Files of prompts as blocks of rows, each with an id, its number and its columns.

The number of a row is its place among the rows of all files in the order of their names. Random numbers follow from it, as they
do from the number of a prompt in ``specframe run``.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from specframe.errors import OptionError, sentence
from specframe.files import decode_text

LINES = (".jsonl", ".ndjson", ".txt")
ID, NUMBER, ENTRY = "id", "_number", "_entry"
"""The columns that every row has: its id, its number, and its entry as JSON."""
RESULTS = ("text", "token_ids", "finish_reason", "error", "prompt_tokens", "metrics")
"""The columns of results; a column of the input that has the name of one is called ``input_NAME``."""


@attrs.frozen
class RowChunk:
    """Adjacent rows of one file."""

    path: str
    name: str
    """The file's name below the folder that was given."""
    start: int
    stop: int
    first: int
    """Number of the row ``start`` among those of all files."""
    offset: int = 0
    """Where in a file of lines the row ``start`` begins, in bytes."""


@attrs.frozen(eq=False)
class Input:
    """What there is to decode."""

    pieces: list[RowChunk]
    columns: pa.Schema
    """The columns of the input, under the names that they have in the output."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(piece.stop - piece.start for piece in self.pieces)


def found(path: str, size: int, name: str | None = None) -> Input:
    """Return the rows of a file, or of the files of a folder, in chunks of ``size`` rows.

    Args:
        path: the file or the folder.
        size: rows of a block.
        name: what ids call the file, or None if its own name.

    Raises:
        OptionError: there are no files of a known form, one cannot be read, there are no rows, or two rows have one id.
    """
    root, files = Path(path), files_of(path)
    pieces: list[RowChunk] = []
    kinds: dict[str, Any] = {}
    seen: set[str] = set()
    first = 0
    for file in files:
        called = name or (file.name if file == root else str(file.relative_to(root)))
        count = 0
        offsets = []
        for number, (offset, entry) in enumerate(readable(str(file), called)):
            count += 1
            if number % size == 0:
                offsets.append(offset)
            if (key := identity(entry, called, number)) in seen:
                raise OptionError(f"--prompts: {called} row {number}: expected an id of its own, got {key!r} again")
            seen.add(key)
            if file.suffix in LINES:
                widen(kinds, entry)
        if file.suffix not in LINES:
            kinds |= {column.name: column.type for column in table_of(str(file)).schema}
        pieces += [
            RowChunk(str(file.absolute()), called, at, min(at + size, count), first + at, offset)
            for at, offset in zip(range(0, count, size), offsets, strict=True)
        ]
        first += count
    if not first:
        raise OptionError(f"--prompts: {path} holds no prompts: expected at least one row")
    kinds.pop(ID, None)
    return Input(pieces, pa.schema([(kept(name), kind or pa.string()) for name, kind in kinds.items()]))


def files_of(path: str) -> list[Path]:
    """Return a file, the files of a folder, or those of a data set that ``save_to_disk`` wrote, by their names.

    Raises:
        OptionError: there are none of a known form, or a data set has several splits.
    """
    root = Path(path)
    if (root / "dataset_dict.json").exists():
        splits = ", ".join(sorted(one.parent.name for one in root.glob("*/state.json")))
        raise OptionError(f"--prompts: expected the folder of one split ({splits}), got {path!r} with all of them")
    if (root / "dataset_info.json").exists() and (root / "state.json").exists():
        files = sorted(root.glob("*.arrow"))
    elif root.is_dir():
        files = sorted(one for one in root.rglob("*") if one.suffix in (*LINES, ".parquet") and "/_" not in str(one))
    else:
        files = [root]
    if not files or not all(one.is_file() and one.suffix in (*LINES, ".parquet", ".arrow") for one in files):
        raise OptionError(
            f"--prompts: expected a file or a folder of {', '.join(LINES)} or .parquet, or a data set on disk, got {path!r}"
        )
    return files


def kept(name: str) -> str:
    """Return the name in the output of a column of the input."""
    return f"input_{name}" if name in RESULTS else name


def identity(entry: Any, file: str, number: int) -> str:
    """Return the id of a row: its own, or its file and its number there."""
    own = entry.get(ID) if isinstance(entry, dict) else None
    return f"{file}:{number}" if own is None else str(own)


def widen(kinds: dict[str, Any], entry: Any) -> None:
    """Note the columns of an entry, with a type that holds all values seen; others than plain ones are JSON."""
    for name, value in (entry if isinstance(entry, dict) else {"prompt": entry}).items():
        kind = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), type(None): None}.get(type(value), pa.string())
        before = kinds.setdefault(name, kind)
        if kind is None or before is None or kind == before:
            kinds[name] = before if kind is None else kind
        else:
            numbers = {before, kind} == {pa.int64(), pa.float64()}
            kinds[name] = pa.float64() if numbers else pa.string()


def readable(path: str, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file as :func:`entries` does; raise :class:`OptionError` if it cannot be read."""
    try:
        yield from entries(path)
    except UnicodeError as error:
        raise OptionError(f"--prompts: {name} is not text: {error}") from error
    except (OSError, pa.ArrowException) as error:
        raise OptionError(f"--prompts: {name} cannot be read: {sentence(error)}") from error


def entries(path: str, start: int = 0, offset: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file from a row on: where each begins, in bytes, and its entry. Blank lines are none.

    Args:
        path: the file.
        start: the first row, of a table.
        offset: where the first row begins, in a file of lines.

    Raises:
        UnicodeError: a file of lines is not UTF-8.
    """
    if Path(path).suffix in LINES:
        plain = path.endswith(".txt")
        with open(path, "rb") as file:
            file.seek(offset)
            for line in file:
                try:
                    text = decode_text(line)
                except ValueError as error:
                    raise UnicodeError(str(error)) from error
                if text.strip():
                    text = text.removesuffix("\n").removesuffix("\r")
                    yield offset, text if plain else parsed(text)
                offset += len(line)
    else:
        for batch in table_of(path).slice(start).to_batches(1000):
            yield from ((0, row) for row in batch.to_pylist())


def parsed(line: str) -> Any:
    """Return the value of a JSON line; a line that is none is an entry without a prompt, which fails alone."""
    try:
        return json.loads(line)
    except ValueError:
        return {"unreadable": line}


@functools.lru_cache(maxsize=2)
def table_of(path: str) -> pa.Table:
    """Return the rows of a Parquet or Arrow file."""
    if path.endswith(".parquet"):
        return pq.read_table(path)
    with pa.memory_map(path) as source:
        return pa.ipc.open_stream(source).read_all()


def block(piece: RowChunk, columns: pa.Schema) -> pa.Table:
    """Return a block as a table: the columns of the input, and those that every row has."""
    following = entries(piece.path, piece.start, piece.offset)
    held = [entry for _, entry in itertools.islice(following, piece.stop - piece.start)]
    rows = [entry if isinstance(entry, dict) else {"prompt": entry} for entry in held]
    made = {}
    for column in columns:
        name = column.name.removeprefix("input_") if column.name.removeprefix("input_") in RESULTS else column.name
        made[column.name] = pa.array([fitting(row.get(name), column.type) for row in rows], column.type)
    places = range(piece.start, piece.stop)
    made[ID] = pa.array([identity(entry, piece.name, place) for place, entry in zip(places, held, strict=True)])
    made[NUMBER] = pa.array([piece.first + place - piece.start for place in places], pa.int64())
    made[ENTRY] = pa.array([json.dumps(entry, default=str) for entry in held])
    return pa.table(made)


def fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value as its column holds it: JSON where that is text and the value is none."""
    if value is None or isinstance(value, str) or not pa.types.is_string(kind):
        return float(value) if isinstance(value, int) and pa.types.is_floating(kind) else value
    return json.dumps(value, default=str)
