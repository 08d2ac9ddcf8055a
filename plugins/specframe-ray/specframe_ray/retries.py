"""Rows that failed, taken out of the results: the next run decodes them again.

First their ids are taken out of the notes of what is done, then their rows out of the results. A run that ends in between leaves
rows that are not noted, and the next one finds them here by their errors.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from specframe_std.output_file import Output

from specframe_ray.rows import ID

PENDING = ".pending.parquet"
"""The end of a note's name while its rows are written. Their file, which begins with the rest of the name, may be cut off, and Ray
removes both."""


def forget_failures(output: Path, notes: Path) -> int:
    """Take the rows that have an error out of a folder of results, and return how many there were.

    Args:
        output: the folder.
        notes: the folder with the ids of the rows that are done, in Parquet files.
    """
    noted = sorted(notes.glob("*.parquet"))
    pending = tuple(path.name.removesuffix(PENDING) for path in noted if path.name.endswith(PENDING))
    whole = (path for path in results(output) if not (pending and path.name.startswith(pending)))
    failed = {path: ids for path in whole if (ids := failures(path))}
    every = {one for ids in failed.values() for one in ids}
    for path in noted if every else ():
        if not path.name.endswith(PENDING):
            keep_table(path, every)
    for path, ids in failed.items():
        keep = keep_table if path.suffix == ".parquet" else keep_lines
        keep(path, ids)
    return len(every)


def noted(notes: Path) -> int:
    """Return the number of rows whose ids are noted as done in a folder."""
    return sum(pq.read_metadata(path).num_rows for path in notes.glob("*.parquet") if not path.name.endswith(PENDING))


def results(output: Path) -> Iterator[Path]:
    """Yield the files of results in a folder."""
    for path in sorted(output.iterdir()):
        if path.suffix in (".parquet", ".json") and not path.name.startswith("_"):
            yield path


def failures(path: Path) -> set[str]:
    """Return the ids of the rows of a file that have an error."""
    if path.suffix == ".parquet":
        table = pq.read_table(path, columns=[ID, "error"])
        return set(table.filter(pc.is_valid(table["error"]))[ID].to_pylist())
    with path.open(encoding="utf-8") as file:
        return {row[ID] for row in map(json.loads, file) if row.get("error") is not None}


def keep_table(path: Path, without: Collection[str]) -> None:
    """Write a Parquet file without the rows of some ids, or remove it where there are no others."""
    table = pq.read_table(path)
    left = table.filter(pc.invert(pc.is_in(table[ID], pa.array([*without], table[ID].type))))
    if left.num_rows == table.num_rows:
        return
    if not left.num_rows:
        path.unlink()
        return
    sink = pa.BufferOutputStream()
    pq.write_table(left, sink)
    Output(str(path)).replace(sink.getvalue().to_pybytes())


def keep_lines(path: Path, without: Collection[str]) -> None:
    """Write a file of JSON lines without the rows of some ids, or remove it where there are no others."""
    with path.open(encoding="utf-8") as file:
        left = [line for line in file if json.loads(line)[ID] not in without]
    if left:
        Output(str(path)).replace("".join(left))
    else:
        path.unlink()
