"""The figures of one run, and the results of its sequences."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import torch

from specframe.contracts.engine import Engine
from specframe.contracts.requests import Request, Result, SequenceMetrics
from specframe.contracts.roles import Observer
from specframe.contracts.round import Sequence
from specframe.errors import PromptError, SpecframeWarning
from specframe.observe.counts import Counts, RunReport, run_report
from specframe.observe.logprobs import Logprobs
from specframe.observe.stopwatch import Stopwatch
from specframe.text.stopping import stop_strings, text_before

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_SCORES = "processors: expected scores of which one is the highest, got nan, or minus infinity for every token, from a processor"
"""The error of a sequence with processors of the user's own after whose last token none can be chosen."""
NO_LOGITS = (
    "the target's logits are no distribution: expected a highest one, got nan or infinity (weights with nan, or a precision that "
    "does not hold their products)"
)
"""The error of any other sequence after whose last token none can be chosen."""


class ResultFactory:
    """Watches one run on the target's device, and makes results of the sequences that have finished, with texts if the target has a
    tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, device: torch.device) -> None:
        self.tokenizer, self.clock, self.errors = tokenizer, Stopwatch(device), 0
        self._counts, self._logprobs = Counts(device), Logprobs()
        self._first: Result | None = None
        """The first result that is an error."""

    @property
    def observers(self) -> list[Observer]:
        """The objects that receive every round."""
        return [self._counts, self.clock, self._logprobs]

    def report(self, peak_kv_bytes: int, state_bytes: int) -> RunReport:
        """Return the figures so far."""
        return run_report(self._counts, self.clock, self.errors, peak_kv_bytes, state_bytes)

    def of(self, sequence: Sequence) -> Result:
        """Return the result of a sequence that has finished."""
        request = sequence.request
        assert sequence.finish_reason is not None
        undecided = NO_SCORES if request.plan.own else NO_LOGITS
        error = (sequence.error or undecided) if sequence.finish_reason == "error" else None
        logprobs, top_logprobs = self._logprobs.take(sequence)
        result = Result(
            request.index,
            text_before(self.tokenizer, sequence.token_ids, stop_strings(request.stop_checks)),
            sequence.token_ids,
            sequence.finish_reason,
            sequence.metrics,
            error,
            prompt_tokens=len(request.prompt_ids),
            latency=self.clock.now - request.arrival,
            sample=request.sample,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
        )
        if error is not None:
            self._count([result])
        return result

    def failed(self, request: Request, error: Exception) -> Result:
        """Return the result of a request that cannot be decoded."""
        count, metrics = len(request.prompt_ids), SequenceMetrics()
        return Result(request.index, "", [], "error", metrics, str(error), prompt_tokens=count, sample=request.sample)

    def taken(self, engine: Engine, requests: Rows[Request], failed: Rows[Result]) -> list[Result]:
        """Hand requests to an engine and return the results of all that cannot be decoded, those known before first."""
        refused = []
        for request in requests:
            try:
                engine.add(request)
            except PromptError as error:
                refused.append(self.failed(request, error))
        self._count([*failed, *refused])
        return [*failed, *refused]

    def _count(self, failed: Rows[Result]) -> None:
        self.errors += len(failed)
        self._first = self._first or next(iter(failed), None)

    def warn_of_errors(self, stacklevel: int) -> None:
        """Warn of the results that are errors; ``stacklevel``: as that of ``warnings.warn``, from the caller on."""
        if self._first is not None:
            told = f"results with an error: {self.errors}; the first is that of prompt {self._first.index}: {self._first.error}"
            warnings.warn(told, SpecframeWarning, stacklevel=stacklevel + 1)


def in_order(completed: Iterator[Result], keys: Iterable[tuple[int, int]]) -> Iterator[Result]:
    """Yield results in the order of ``keys`` (index, sample), each as soon as all before it have been.

    An error comes after all results that are complete, also of those that wait for one which will not come.
    """
    waiting: dict[tuple[int, int], Result] = {}
    following = iter(keys)
    wanted = next(following, None)
    try:
        for result in completed:
            waiting[result.index, result.sample] = result
            while wanted in waiting:
                yield waiting.pop(wanted)
                wanted = next(following, None)
    except Exception:
        yield from (waiting[key] for key in sorted(waiting))
        raise
