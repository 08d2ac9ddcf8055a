"""The error of a run that breaks an invariant."""

from __future__ import annotations

from specframe.errors import SpecframeError


class InvariantError(SpecframeError):
    """A run broke an invariant.

    Args:
        invariant: "position", "slot", "mask", "cache", "bonus", "stop" or "row".
        round: number of the round, from 1.
        row: row of the batch.
        index: index of the row's prompt.
        detail: the expected and the actual state.
    """

    def __init__(self, invariant: str, round: int, row: int, index: int, detail: str) -> None:
        self.invariant, self.round, self.row, self.index = invariant, round, row, index
        super().__init__(f"round {round}, row {row} (prompt {index}): invariant {invariant!r} is broken: {detail}")
