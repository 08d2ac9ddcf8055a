"""The places where rows' last tokens occurred before.

Arrays end with their shape: R rows, C occurrences of all rows, M match lengths; X and Y some occurrences.
"""

from __future__ import annotations

import functools

import attrs
import numpy as np

from specframe_std.drafters.suffix.array_layout import ArrayLayout

ONE_BY_ONE = 3
"""Tokens before the last that are compared one after the other: few occurrences match in more, and these are compared at once."""

FEW = 4
"""Places of a row, on average, that are compared at once: it takes as long to find out which of them need no comparison."""

ZERO = np.zeros(1, np.int64)


@attrs.frozen(eq=False, slots=False)
class Occurrences:
    """The places before rows' last tokens that have the same token, in the order of rows and places."""

    layout: ArrayLayout
    rows_C: np.ndarray
    found_C: np.ndarray
    """The places among the tokens of all rows."""
    matches_C: np.ndarray
    """How many tokens up to the place are the same as those that the row ends with, at most a given number."""

    @functools.cached_property
    def follow_C(self) -> np.ndarray:
        """How many tokens of the row follow the place."""
        follow_C: np.ndarray = self.layout.ends_R[self.rows_C] - self.found_C
        return follow_C

    @functools.cached_property
    def bounds_R(self) -> np.ndarray:
        """The first occurrence of each row, and of the row after the last, (R + 1,)."""
        return np.searchsorted(self.rows_C, np.arange(len(self.layout.ends_R) + 1))

    def counts(self, lengths: int) -> np.ndarray:
        """Return how many places match in at least each number of tokens from 0 to ``lengths`` - 1, (R, M)."""
        rows = len(self.layout.ends_R)
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
    layout = ArrayLayout.of(tokens_RS, lengths_R, most)
    tokens_X, ends_R = layout.tokens_X, layout.ends_R
    found_C = np.flatnonzero(layout.table_RS == tokens_X[ends_R][:, None])
    rows_C = found_C // layout.stride
    found_C += layout.first
    earlier_C = np.flatnonzero(found_C < ends_R[rows_C])
    found_C, rows_C = found_C[earlier_C], rows_C[earlier_C]
    left_X, found_X, rows_X, matches_C = np.arange(len(found_C)), found_C, rows_C, np.ones_like(found_C)
    for back in range(1, min(ONE_BY_ONE, most - 1) + 1):
        same_X = np.flatnonzero(tokens_X[found_X - back] == tokens_X[ends_R - back][rows_X])
        left_X, found_X, rows_X = left_X[same_X], found_X[same_X], rows_X[same_X]
        matches_C[left_X] = back + 1
    if len(left_X) and most > ONE_BY_ONE + 1:
        matches_C[left_X] = _matches(layout, found_X, rows_X, most)
    return Occurrences(layout, rows_C, found_C, matches_C)


def _matches(layout: ArrayLayout, found_X: np.ndarray, rows_X: np.ndarray, most: int) -> np.ndarray:
    """Return the match lengths of places that match in more than :data:`ONE_BY_ONE` tokens, up to ``most``.

    A row that says the same over and over has many such places, all of them whole periods before its end: one in between would
    come once more after the last one. They match back to where the first period begins, without a comparison: the token before
    it is another one than those before the later periods. Other places are compared, also those so near to the first period's
    beginning that their tokens lie before it.
    """
    ends_X = layout.ends_R[rows_X]
    if len(found_X) <= FEW * len(layout.ends_R):
        return layout.same_up_to(found_X, ends_X, most)
    matches_X = found_X - _first_periods(layout, found_X, rows_X)[rows_X] + 1
    other_Y = np.flatnonzero(matches_X <= ONE_BY_ONE)
    matches_X[other_Y] = layout.same_up_to(found_X[other_Y], ends_X[other_Y], most)
    return np.minimum(matches_X, most)


def _first_periods(layout: ArrayLayout, found_X: np.ndarray, rows_X: np.ndarray) -> np.ndarray:
    """Return the place where the first period begins of what each row says over and over; of other rows a place after its end.

    The period is the distance from the last place to the row's end. Rows are asked about whose last three places are so far from
    each other.
    """
    begins_R = layout.ends_R + 1
    lasts_Y = np.append(run_starts(rows_X)[1:], len(rows_X)) - 1
    lasts_Y = lasts_Y[lasts_Y >= 2]
    rows_Y, ends_Y = rows_X[lasts_Y], layout.ends_R[rows_X[lasts_Y]]
    periods_Y = ends_Y - found_X[lasts_Y]
    even_Y = rows_X[lasts_Y - 2] == rows_Y
    for back in (1, 2):
        even_Y &= found_X[lasts_Y] - found_X[lasts_Y - back] == back * periods_Y
    rows_Y, ends_Y, periods_Y = rows_Y[even_Y], ends_Y[even_Y], periods_Y[even_Y]
    begins_R[rows_Y] = ends_Y - periods_Y + 1 - layout.same_up_to(ends_Y - periods_Y, ends_Y, layout.longest)
    return begins_R
