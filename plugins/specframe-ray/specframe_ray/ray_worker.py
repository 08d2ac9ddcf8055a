"""The actor that decodes: a pipeline, called with tables of rows."""

from __future__ import annotations

import json
import zlib
from typing import Any

import attrs
import pyarrow as pa
from specframe_std.prompts.entries import from_entry

from specframe.contracts.requests import Request, Result, SequenceMetrics
from specframe.errors import sentence
from specframe.text.chat import as_chat
from specframe.text.sampling import Sampling
from specframe_ray.rows import ENTRY, NUMBER, kept

METRICS = [field.name for field in attrs.fields(SequenceMetrics) if field.name != "acceptance_histogram"]
SCHEMA = {
    "text": pa.string(),
    "token_ids": pa.list_(pa.int64()),
    "finish_reason": pa.string(),
    "error": pa.string(),
    "prompt_tokens": pa.int64(),
    "metrics": pa.struct([(name, pa.int64()) for name in METRICS]),
}
"""The columns of results."""


@attrs.frozen
class WorkerOptions:
    """What an actor decodes with: plain values, which go to any machine."""

    options: dict[str, Any]
    """The arguments of :class:`specframe.Pipeline`."""
    sampling: Sampling
    """The parameters of all rows; those of a row's entry win."""
    max_new_tokens: int
    chat: bool


class Decode:
    """Decodes tables of rows, and keeps their columns.

    Args:
        asked: what to decode with.
        tally: an actor that receives the figures of every table.
    """

    def __init__(self, asked: WorkerOptions, tally: Any) -> None:
        from specframe.pipeline import Pipeline

        self._asked, self._tally = asked, tally
        self._pipe = Pipeline(**asked.options)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the table with the columns of results."""
        results = self._results(numbered(table))
        if failed := sum(result.finish_reason == "error" for result in results):
            self._tally.fail.remote(failed)
        self._tally.decoded.remote(len(results))
        rows = [column_values(result) for result in results]
        table = table.drop_columns([name for name in (NUMBER, ENTRY) if name in table.column_names])
        for name, kind in SCHEMA.items():
            if name in table.column_names:
                table = table.rename_columns([kept(one) if one == name else one for one in table.column_names])
            table = table.append_column(name, pa.array([row[name] for row in rows], kind))
        return table

    def _results(self, rows: list[tuple[int, Any]]) -> list[Result]:
        """Return the result of every row; where a run fails, each row is decoded by itself."""
        made = [self._request(place, *row) for place, row in enumerate(rows)]
        requests = [one for one in made if isinstance(one, Request)]
        results = {one.index: one for one in made if isinstance(one, Result)}
        try:
            results |= self._decoded(requests)
        except Exception:  # a row's parameters may lead to any error
            for request in requests:
                try:
                    results |= self._decoded([request])
                except Exception as error:
                    results[request.index] = failure(request.index, sentence(error))
        return [results[place] for place in range(len(rows))]

    def _decoded(self, requests: list[Request]) -> dict[int, Result]:
        if not requests:
            return {}
        found = {result.index: result for result in self._pipe.decode(requests)}
        self._tally.add.remote(attrs.asdict(self._pipe.report, recurse=False))
        return found

    def _request(self, place: int, number: int, entry: Any) -> Request | Result:
        """Return the request of the row at a place of the table, or its result if it cannot be decoded."""
        try:
            prompt = from_entry(entry, "the row")
            if prompt.fault:
                return failure(place, prompt.fault)
            own = {
                name: one
                for name, one in prompt.parameters.items()
                if name in Sampling.parameters() and one is not None
            }
            how = self._asked.sampling.with_parameters({**own, "samples": 1})
            given = as_chat(prompt.given) if self._asked.chat else prompt.given
            made, wrong = self._pipe.requests.make([given], self._asked.max_new_tokens, sampling=how)
        except Exception as error:  # a row's own parameters may be anything
            return failure(place, sentence(error))
        return attrs.evolve(made[0], index=place, stream=number) if made else failure(place, str(wrong[0].error))


def numbered(table: pa.Table) -> list[tuple[int, Any]]:
    """Return the number and the entry of every row; a row without a number has one that follows from its text."""
    if ENTRY in table.column_names:
        return [*zip(table[NUMBER].to_pylist(), map(json.loads, table[ENTRY].to_pylist()), strict=True)]
    rows = table.to_pylist()
    return [(zlib.crc32(json.dumps(row, default=str, sort_keys=True).encode()), row) for row in rows]


def failure(number: int, error: str) -> Result:
    """Return the result of a row that cannot be decoded."""
    return Result(number, "", [], "error", SequenceMetrics(), error)


def column_values(result: Result) -> dict[str, Any]:
    """Return the columns of a result."""
    metrics = {name: getattr(result.metrics, name) for name in METRICS}
    return {**{name: getattr(result, name) for name in SCHEMA if name != "metrics"}, "metrics": metrics}
