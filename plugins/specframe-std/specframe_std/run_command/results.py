"""Results of a run: a record of each, and where records are kept."""

from __future__ import annotations

import json
from collections.abc import Set
from typing import TYPE_CHECKING, Any, Self

import attrs
import click

from specframe.text.prompts.prompt import Prompt

if TYPE_CHECKING:
    from specframe.contracts.requests import Result

Record = dict[str, Any]
Key = tuple[int, int]
"""The number of a prompt, and that of the sample of it."""


def record(result: Result, prompt: Prompt, samples: int = 1) -> Record:
    """Return the record of one result, whose prompt has ``samples`` samples; no entry depends on time."""
    metrics = attrs.asdict(result.metrics)
    metrics["acceptance_histogram"] = dict(sorted(result.metrics.acceptance_histogram.items()))
    metrics["mean_acceptance_length"] = result.metrics.mean_acceptance_length
    metrics["draft_acceptance_rate"] = result.metrics.draft_acceptance_rate
    kept = {
        "index": result.index,
        **prompt_id(prompt),
        "prompt": prompt.text,
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "metrics": metrics,
    }
    if prompt.turn > 1:
        kept["turn"] = prompt.turn
    if result.sample or samples > 1:
        kept["sample"] = result.sample
    if result.logprobs is not None:
        kept["logprobs"] = result.logprobs
    if result.top_logprobs is not None:
        kept["top_logprobs"] = result.top_logprobs
    error = prompt.fault or result.error
    return kept | {"error": error} if error else kept


def prompt_id(prompt: Prompt) -> Record:
    """Return the prompt's own ``id``, if its entry has one: a number or a text as it is, anything else as its text."""
    own = prompt.parameters.get("id")
    return {} if own is None else {"id": own if isinstance(own, str | int | float) else str(own)}


class Results:
    """Storage of results during decoding. This base class keeps nothing."""

    done: Set[Key] = frozenset()
    """Keys of the results that exist already. Failed prompts are not among them: they are decoded again."""

    def __enter__(self) -> Self:
        """Make sure that results can be kept."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the storage."""

    def begin(self, total: int) -> None:
        """Called before decoding starts, with the total number of results."""

    def write(self, kept: Record) -> None:
        """Keep one result."""

    def finish(self) -> None:
        """Called when all results are written."""

    def held(self) -> str:
        """Return the state of the storage as part of a sentence; "" if there is nothing to resume."""
        return ""


class ResultStream(Results):
    """One JSON line per finished sequence on standard output, in the format of a results file.

    Args:
        settings: the options that determine the output.
    """

    def __init__(self, settings: Record) -> None:
        self._settings = dict(sorted(settings.items()))

    def write(self, kept: Record) -> None:
        """Print one line."""
        click.echo(json.dumps(kept | {"settings": self._settings}))
