"""The places where rows' last tokens occurred before.

Arrays end with their shape: R rows, S places of a row, C occurrences of all rows, M match lengths; X and B some of them.
"""

from __future__ import annotations

import functools

import attrs
import numpy as np

ONE_BY_ONE = 3
"""Tokens before the last that are compared one after the other: few occurrences match in more, and these are compared at once."""

ZERO = np.zeros(1, np.int64)


@attrs.frozen(eq=False, slots=False)
class Occurrences:
    """The places before rows' last tokens that have the same token, in the order of rows and places."""

    tokens_X: np.ndarray
    """The tokens of all rows, one row after the other."""
    rows_C: np.ndarray
    found_C: np.ndarray
    """The places among the tokens of all rows."""
    ends_R: np.ndarray
    """The place of each row's last token among them."""
    matches_C: np.ndarray
    """How many tokens up to the place are the same as those that the row ends with, at most a given number."""

    @functools.cached_property
    def follow_C(self) -> np.ndarray:
        """How many tokens of the row follow the place."""
        follow_C: np.ndarray = self.ends_R[self.rows_C] - self.found_C
        return follow_C

    @functools.cached_property
    def bounds_R(self) -> np.ndarray:
        """The first occurrence of each row, and of the row after the last, (R + 1,)."""
        return np.searchsorted(self.rows_C, np.arange(len(self.ends_R) + 1))

    def counts(self, lengths: int) -> np.ndarray:
        """Return how many places match in at least so many tokens, for match lengths from 0 to ``lengths`` - 1, (R, M)."""
        rows = len(self.ends_R)
        exact_RM = np.bincount(self.rows_C * lengths + self.matches_C, minlength=rows * lengths).reshape(rows, lengths)
        counts_RM: np.ndarray = exact_RM[:, ::-1].cumsum(1)[:, ::-1]
        return counts_RM


def run_starts(values_X: np.ndarray) -> np.ndarray:
    """Return the places where a value differs from the one before it, of the first value 0."""
    if not len(values_X):
        return np.zeros(0, np.int64)
    starts = np.flatnonzero(values_X[1:] != values_X[:-1])
    starts += 1
    return np.concatenate([ZERO, starts])


def occurrences(tokens_RS: np.ndarray, lengths_R: np.ndarray, most: int) -> Occurrences:
    """Return the places of each row's last token before its end, with match lengths up to ``most``."""
    tokens_RS = np.ascontiguousarray(tokens_RS[:, : int(lengths_R.max())])
    rows, width = tokens_RS.shape
    tokens_X, ends_R = tokens_RS.ravel(), np.arange(rows) * width + lengths_R - 1
    found_C = np.flatnonzero(tokens_RS == tokens_X[ends_R][:, None])
    rows_C = found_C // width
    earlier_C = found_C < ends_R[rows_C]
    found_C, rows_C = found_C[earlier_C], rows_C[earlier_C]
    places_C, ends_C, matches_C = found_C - rows_C * width, ends_R[rows_C], np.ones_like(found_C)
    left_X = np.arange(len(found_C))
    for back in range(1, min(ONE_BY_ONE, most - 1) + 1):
        left_X = left_X[places_C[left_X] >= back]
        left_X = left_X[tokens_X[found_C[left_X] - back] == tokens_X[ends_C[left_X] - back]]
        matches_C[left_X] = back + 1
    if len(left_X) and most > ONE_BY_ONE + 1:
        same_X = _same_before(tokens_X, found_C[left_X], ends_C[left_X], most - 1)
        matches_C[left_X] += np.minimum(same_X, places_C[left_X] - ONE_BY_ONE)
    return Occurrences(tokens_X, rows_C, found_C, ends_R, matches_C)


def _same_before(tokens_X: np.ndarray, one_X: np.ndarray, other_X: np.ndarray, most: int) -> np.ndarray:
    """Return how many tokens before two places are the same, from the one after :data:`ONE_BY_ONE` of them to ``most``.

    Tokens of one place lie side by side, so that they are copied at once. Those before all tokens are the same everywhere.
    """
    width = most - ONE_BY_ONE
    padded_Y = np.concatenate([np.zeros(most, np.int32), tokens_X], dtype=np.int32)  # half of the bytes to copy
    windows_XB = np.lib.stride_tricks.sliding_window_view(padded_Y, width)
    differ_XB = windows_XB[one_X] != windows_XB[other_X]
    nearest_X = differ_XB[:, ::-1].argmax(1)
    found_X = differ_XB[np.arange(len(one_X)), width - 1 - nearest_X]
    return np.where(found_X, nearest_X, width)
