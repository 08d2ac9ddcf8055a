"""The tokens of many rows in one array, so that stretches of all of them are compared at once.

Arrays end with their shape: R rows, S places of a row; Y some places, B tokens of a stretch.
"""

from __future__ import annotations

import attrs
import numpy as np

PAD = -1
"""The token around rows, which is no token id: what is the same before two places ends where one of their rows begins."""


@attrs.frozen(eq=False)
class ArrayLayout:
    """Rows one after the other, with room around each."""

    tokens_X: np.ndarray
    """The tokens, of 32 bits: half of the bytes to copy and compare."""
    ends_R: np.ndarray
    """The place of each row's last token among them."""
    first: int
    """The place where the part of the first row begins."""
    stride: int
    """The places of a row's part: its room, then as many as the longest row has."""
    room: int
    """How many tokens before and after each one can be read."""

    @classmethod
    def of(cls, tokens_RS: np.ndarray, lengths_R: np.ndarray, room: int) -> ArrayLayout:
        """Return the first ``lengths_R`` tokens of rows, at least one of each."""
        rows, width = len(lengths_R), int(lengths_R.max())
        stride, first = room + width, width  # before the first row as much as others find in the rows before
        tokens_X = np.full(first + rows * stride + room, PAD, np.int32)
        found = cls(tokens_X, np.arange(rows) * stride + (first + room - 1) + lengths_R, first, stride, room)
        found.table_RS[:, room:] = tokens_RS[:, :width]
        return found

    @property
    def table_RS(self) -> np.ndarray:
        """The part of each row."""
        return self.tokens_X[self.first : len(self.tokens_X) - self.room].reshape(-1, self.stride)

    @property
    def longest(self) -> int:
        """The number of tokens of the longest row."""
        return self.stride - self.room

    def stretches(self, starts_Y: np.ndarray, length: int) -> np.ndarray:
        """Return the ``length`` tokens from each of some places on, (Y, length)."""
        starts = len(self.tokens_X) - length + 1
        view = np.lib.stride_tricks.as_strided(
            self.tokens_X, (starts, length), self.tokens_X.strides * 2, writeable=False
        )
        stretches_YB: np.ndarray = view[starts_Y]
        return stretches_YB

    def same_up_to(self, one_Y: np.ndarray, other_Y: np.ndarray, most: int) -> np.ndarray:
        """Return how many tokens up to two places are the same, at most ``most``."""
        if not len(one_Y):
            return one_Y
        differ_YB = self.stretches(one_Y - most + 1, most) != self.stretches(other_Y - most + 1, most)
        nearest_Y = differ_YB[:, ::-1].argmax(1)
        return np.where(differ_YB[np.arange(len(one_Y)), most - 1 - nearest_Y], nearest_Y, most)
