"""Stopping criteria of a call of ``generate``, called once per step with all rows, as ``generate`` calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from specframe.contracts.reports import RoundReport
from specframe.contracts.requests import Result
from specframe.contracts.roles import Observer
from specframe_std.drop_in.call import Call
from specframe_std.drop_in.outputs import StepOutputs

if TYPE_CHECKING:
    from specframe_std.drop_in.streams import Sink


class StepCriteria(Observer):
    """Observer that calls a call's criteria step by step, and passes each step on to the streamers.

    With drafts, some rows gain tokens faster than others. A step is complete when each row that has not ended has a token for it.
    The criteria are then called with the ids of all rows, so a criterion may count its calls, compare rows, or keep a state for
    each row. A row may have gained tokens beyond the step at which it ends; they are cut.

    Args:
        call: the call.
        kept: the scores of each step, if ``generate`` was asked for them. It observes each round before this object.
        sink: the call's streamers, or None.
    """

    def __init__(self, call: Call, kept: StepOutputs, sink: Sink | None) -> None:
        self._kept, self._sink, self._pad, self._rows_end = kept, sink, call.pad, call.ends_rows
        self._criteria: Any = sink.noting(call.criteria) if sink and self._rows_end else call.criteria
        self._ids_BS = call.input_ids
        self._scores: tuple[Any, ...] | None = () if kept.keeps("scores") else None
        self._tokens: list[list[int]] = [[] for _ in range(len(call))]
        self._done_B = torch.zeros(len(call), dtype=torch.bool)
        self._steps = 0
        self._ends: dict[int, int] = {}
        """Number of tokens of each row that has ended."""

    def round(self, report: RoundReport) -> None:
        """Take the tokens that rows gained, and make the steps that are complete with them."""
        for sequence, tokens in zip(report.sequences, report.tokens, strict=True):
            self._tokens[sequence.request.index].extend(tokens)
        self._advance()

    def cut(self, results: list[Result]) -> list[Result]:
        """Make the steps that are left, and return the results without the tokens beyond each row's end."""
        self._tokens = [result.token_ids for result in results]  # an observer without memory misses rounds
        self._advance()
        return [attrs.evolve(one, token_ids=one.token_ids[: self._ends.get(row)]) for row, one in enumerate(results)]

    def check(self, row: int) -> RowsEnded:
        """Return the stop check of a row."""
        return RowsEnded(self._ends, row)

    def _advance(self) -> None:
        """Make each step for which all rows that have not ended have a token."""
        rows = range(len(self._tokens))
        while live := [row for row in rows if row not in self._ends]:
            if min(len(self._tokens[row]) for row in live) <= self._steps:
                return
            self._step([self._pad if row in self._ends else self._tokens[row][self._steps] for row in rows])
            if self._rows_end:
                live = [row for row in live if self._done_B[row]]
            elif not self._done_B.all():  # ``generate`` goes on with all rows until all are done
                live = []
            self._ends |= dict.fromkeys(live, self._steps)

    def _step(self, tokens: list[int]) -> None:
        """Call the criteria after one token more of each row."""
        tokens_B = self._ids_BS.new_tensor(tokens)
        self._ids_BS = torch.cat([self._ids_BS, tokens_B[:, None]], dim=1)
        if self._scores is not None:
            self._scores = (*self._scores, self._kept.at("scores", self._steps, self._ends))
        self._steps += 1
        self._done_B |= self._criteria(self._ids_BS, self._scores).cpu()
        if self._sink:
            self._sink.put(tokens_B)


@attrs.frozen
class RowsEnded:
    """Stop check of a row that the criteria have ended. It ends the row at its next token, which is cut."""

    ends: dict[int, int]
    row: int

    def first(self, ids: np.ndarray, prompt_length: int, fresh: int) -> int | None:
        """Return 0 if the row has ended, else None."""
        return 0 if self.row in self.ends else None
