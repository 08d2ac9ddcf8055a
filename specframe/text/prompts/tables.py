"""Prompts from Parquet files and data sets, through the library ``datasets``."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from specframe import hub
from specframe.errors import OptionError, sentence
from specframe.text.prompts.entries import KEYS, from_entry
from specframe.text.prompts.lazy import Prompts, some
from specframe.text.prompts.prompt import Prompt

PREFIX = "hf:"
"""Prefix of a data set's name, which tells the name from a file's."""
COLON = re.compile(r":(?![^\[]*\])")
"""A colon outside of brackets: a split may be named with a range, as in ``train[:100]``."""
BUILDERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
"""Builders of ``load_dataset``, by the ending of a file name."""


def from_path(path: str, limit: int | None = None) -> Prompts:
    """Return the prompts of a Parquet file or of a data set's folder, the first ``limit``, without asking the hub."""
    if not os.path.exists(path):
        raise OptionError(f"--prompts: {path} cannot be read: No such file or directory")
    if os.path.isdir(path) and not is_saved_dataset(path):
        raise OptionError(
            f"--prompts: {path} is a folder: expected a file, a data set that save_to_disk wrote, or {PREFIX}{path} for a "
            "folder of files"
        )
    return prompts(path, path, None, None, limit)


def from_hub(given: str, limit: int | None = None) -> Prompts:
    """Return the prompts of ``hf:NAME[:SPLIT[:COLUMN]]``, the first ``limit``; NAME is a data set, or a folder or file on disk.

    Raises:
        OptionError: there is no such data set, split or column, or the library is not installed.
    """
    return prompts(given, *dataset_name(given), limit)


def dataset_name(given: str) -> tuple[str, str | None, str | None]:
    """Return the name, the split and the column of ``hf:NAME[:SPLIT[:COLUMN]]``; raise :class:`OptionError` for anything else."""
    name, split, column, *more = [*COLON.split(given.removeprefix(PREFIX)), "", ""]
    if not name or any(more):
        raise OptionError(f"--prompts: expected {PREFIX}NAME[:SPLIT[:COLUMN]], got {given!r}")
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


def load(shown: str, name: str, split: str | None, stream: bool = False) -> Any:
    """Return the rows of a file, of a folder written by ``save_to_disk``, or of the data set ``load_dataset`` finds.

    With ``stream`` no more of a data set is fetched than is read, but for a part of a split, as in ``train[:100]``.
    """
    if importlib.util.find_spec("datasets") is None:
        raise OptionError(
            f"--prompts: {shown} takes the package datasets, which is not installed: pip install 'specframe[data]'"
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
    with nullcontext() if path.exists() or within_reach(name) else offline():
        return datasets.load_dataset(name, split=split, streaming=stream and "[" not in (split or ""))


def within_reach(name: str) -> bool:
    """Return whether the hub answers in time, if only that it has no such data set: the library would try for half a minute."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    fault = hub.fault("dataset", name)
    return fault is None or isinstance(fault, HfHubHTTPError | HFValidationError)


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Have the library look into its cache alone."""
    import datasets

    before, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


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
            f"is named as in {PREFIX}{shown.removeprefix(PREFIX).split(':')[0]}:train:COLUMN"
        )
