"""Streamers of transformers. They get tokens after each round if tokens are drafted, else after each step."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteriaList
from transformers.generation.utils import GenerationMixin

from specframe.contracts.reports import RoundReport
from specframe.contracts.roles import Observer
from specframe.errors import OptionError
from specframe_std.drop_in.call import Call

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer

GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def streamer_of_generate() -> BaseStreamer | None:
    """Return the streamer given to the current call of ``generate``, or None.

    ``generate`` does not pass its streamer to a custom loop, so that a reader of the streamer would wait forever. The streamer is
    therefore looked up in the local variables of the current call of ``generate``.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not GENERATE:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("streamer")


def sink_of(given: BaseStreamer | list[BaseStreamer] | None, call: Call) -> Sink | None:
    """Return the sink of the streamers given to ``assisted`` or ``generate``, or None without streamers.

    Raises:
        OptionError: both got a streamer, or the number of streamers is not the number of rows.
    """
    outer = streamer_of_generate()
    if given is None:
        return None if outer is None else InSteps(outer, len(call), call.pad)
    if outer is not None:
        outer.end()
        raise OptionError("streamer: expected one in generate or in assisted, got both")
    streamers = given if isinstance(given, list) else [given]
    if len(streamers) != len(call):
        raise OptionError(f"streamer: expected one for each of {len(call)} rows, got {len(streamers)}")
    return PerRow(streamers, call.input_ids)


class Sink(Observer):
    """Passes tokens to streamers: as an observer if tokens are drafted, as a streamer if transformers decodes."""

    def round(self, report: RoundReport) -> None:
        """Pass on the tokens that each row gained."""
        for sequence, tokens in zip(report.sequences, report.tokens, strict=True):
            self.tell(sequence.request.index, tokens, sequence.finished)

    @abstractmethod
    def tell(self, row: int, tokens: Iterable[int], finished: bool) -> None:
        """Pass on a row's next tokens; ``finished``: the row ends with them."""

    @abstractmethod
    def put(self, tokens_B: torch.Tensor) -> None:
        """Pass on the next token of every row."""

    @abstractmethod
    def end(self) -> None:
        """End each streamer that has not ended yet."""

    def noting(self, criteria: StoppingCriteriaList) -> StoppingCriteriaList:
        """Return criteria that report to this object which rows have ended."""
        return criteria

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()


class InSteps(Sink):
    """Passes all rows' tokens to one streamer as ``generate`` does: step by step, with the pad id for ended rows."""

    def __init__(self, streamer: BaseStreamer, rows: int, pad: int) -> None:
        self._streamer, self._pad = streamer, pad
        self._told: list[list[int]] = [[] for _ in range(rows)]
        self._live, self._steps, self._open = set(range(rows)), 0, True

    def tell(self, row: int, tokens: Iterable[int], finished: bool) -> None:
        """Keep a row's tokens, and put each step for which all rows have a token."""
        self._told[row].extend(tokens)
        if finished:
            self._live.discard(row)
        shortest = min((len(self._told[row]) for row in self._live), default=max(map(len, self._told)))
        for step in range(self._steps, shortest):
            self._streamer.put(torch.tensor([ids[step] if step < len(ids) else self._pad for ids in self._told]))
        self._steps = max(self._steps, shortest)

    def put(self, tokens_B: torch.Tensor) -> None:
        """Put a step."""
        self._streamer.put(tokens_B)

    def end(self) -> None:
        """End the streamer."""
        if self._open:
            self._open = False
            self._streamer.end()


class PerRow(Sink):
    """Passes each row's prompt, tokens and end to the row's own streamer."""

    def __init__(self, streamers: list[BaseStreamer], input_ids: torch.Tensor) -> None:
        self._live = dict(enumerate(streamers))
        self._done_B = torch.zeros(len(streamers), dtype=torch.bool)
        for streamer, prompt in zip(streamers, input_ids.cpu(), strict=True):
            streamer.put(prompt[None])

    def tell(self, row: int, tokens: Iterable[int], finished: bool) -> None:
        """Put each of the row's tokens."""
        for token in tokens:
            self._live[row].put(torch.tensor([token]))
        if finished:
            self._live.pop(row).end()

    def put(self, tokens_B: torch.Tensor) -> None:
        """Put a token of each row that had not ended before it."""
        for row, (token, done) in enumerate(zip(tokens_B.tolist(), self._done_B.tolist(), strict=True)):
            if row in self._live:
                self.tell(row, [token], done)

    def end(self) -> None:
        """End the streamers of rows that have not ended."""
        while self._live:
            self._live.popitem()[1].end()

    def noting(self, criteria: StoppingCriteriaList) -> StoppingCriteriaList:
        """Return criteria that note which rows have ended."""
        return Noting(criteria, self._done_B)


class Noting(StoppingCriteriaList):
    """Criteria that note in ``done_B`` which rows have ended."""

    def __init__(self, criteria: StoppingCriteriaList, done_B: torch.Tensor) -> None:
        super().__init__(criteria)
        self._done_B = done_B

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> Any:
        """Return which rows have ended."""
        done_B = super().__call__(input_ids, scores, **options)
        self._done_B |= done_B.cpu()
        return done_B
