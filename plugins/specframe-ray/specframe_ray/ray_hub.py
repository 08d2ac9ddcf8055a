"""The rows that are asked for: those of files, or of a data set of the hub, which becomes a file that all machines read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from specframe_std.output_file import Output
from specframe_std.prompts.entries import KEYS
from specframe_std.prompts.tables import HUB, dataset_name, faults, load, one_split, require_column

from specframe.errors import OptionError
from specframe_ray.rows import Input, found

KEPT = "_prompts.parquet"
"""The file, inside of the output, with the rows of the data set."""
TOGETHER = 1000
"""Rows that are copied together."""


def rows_of(prompts: str, folder: Path, size: int) -> Input:
    """Return the rows of files or of a data set of the hub in chunks.

    Args:
        prompts: a file or a folder, see :func:`specframe_ray.rows.found`, or ``hf:NAME[:SPLIT[:COLUMN]]``.
        folder: the folder of results.
        size: rows of a block.

    Raises:
        OptionError: they cannot be read.
    """
    if prompts.startswith(HUB):
        return found(kept_rows(prompts, folder), size, prompts)
    return found(prompts, size)


def kept_rows(given: str, folder: Path) -> str:
    """Write the rows of ``hf:NAME[:SPLIT[:COLUMN]]`` to the folder of results, and return the file.

    Raises:
        OptionError: there is no such data set, split or column, or the library is not installed.
    """
    name, split, column = dataset_name(given)
    path = folder / KEPT
    part = folder / f"{KEPT}.part"
    writer = None
    try:
        with faults(given):
            held = one_split(given, load(given, name, split), split)
            for rows in held.with_format("arrow").iter(TOGETHER):  # type: ignore[attr-defined]
                table = chosen(given, rows, column)
                writer = writer or pq.ParquetWriter(part, table.schema)
                writer.write_table(table.cast(writer.schema))
        if writer is None:
            raise OptionError(f"--prompts: {given} holds no prompts: expected at least one row")
        writer.close()
        with Output(str(path)).faults():
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return str(path)


def chosen(given: str, rows: pa.Table, column: str | None) -> pa.Table:
    """Return rows with the chosen column as their prompt, as ``specframe run`` takes them without Ray."""
    require_column(given, rows.column_names, column)
    if column is None:
        return rows
    others = [name for name in rows.column_names if name not in KEYS]
    return rows.select(others).append_column("prompt", rows[column])
