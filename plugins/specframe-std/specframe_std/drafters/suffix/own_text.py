"""The suffixes of rows' own texts, without a tree: the places where a row's last tokens occurred before, of all rows at once.

A node of the tree of suffixes is the set of its occurrences. All that is asked about are texts that a row ends with. Their
occurrences are the places whose token is the row's last, each with the number of tokens that match up to it. So nothing is kept
from round to round: rows may change places, and sequences may come and go.

Arrays end with their shape: R rows, S places of a row, C occurrences of all rows, M match lengths, T tried matches.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from specframe_std.drafters.suffix.occurrences import Occurrences, occurrences, run_starts
from specframe_std.drafters.suffix.speculation import SLACK, Most, Reach, Speculation, tree
from specframe_std.drafters.suffix.walk import Trials, walk


class OwnText:
    """Looks rows up in their own texts."""

    def __init__(self, reach: Reach) -> None:
        self._reach, self._table_M = reach, reach.table()
        lengths_M = np.arange(reach.depth)
        self._deep_M = np.where(lengths_M > 0, reach.depth - lengths_M, 0)
        """The levels of the tree of suffixes below each match."""

    def find(self, tokens_RS: np.ndarray, lengths_R: np.ndarray, most: list[Most]) -> list[Speculation]:
        """Return the best speculation of each row, an empty one where the last token did not occur before.

        Args:
            tokens_RS: the tokens of rows, on the host.
            lengths_R: how many of them are real, at least 1.
            most: what each row may have.
        """
        all_C = occurrences(tokens_RS, lengths_R, self._reach.depth - 1)
        nodes_R1, depths_R1 = np.array([(one.nodes, one.depth) for one in most]).T[..., None]
        budgets_RM = np.minimum(self._table_M, nodes_R1)
        levels_RM = np.minimum(np.minimum(self._deep_M, depths_R1), budgets_RM)
        if not self._reach.tree:
            budgets_RM = levels_RM
        counts_RM = all_C.counts(self._reach.depth)
        hopes_RM = self._hopes(all_C, counts_RM, levels_RM)
        # a longer match of as many occurrences has the same ones: it gives as much where its budget is no smaller
        poorer_RM = (counts_RM[:, :-1] == counts_RM[:, 1:]) & (budgets_RM[:, :-1] <= budgets_RM[:, 1:])
        hopes_RM[:, :-1][poorer_RM & (levels_RM[:, :-1] <= levels_RM[:, 1:])] = 0
        hopes_RM[hopes_RM < self._reach.least] = 0

        best = [Speculation() for _ in most]
        matches_R = hopes_RM.argmax(1)
        rows_T = np.flatnonzero(hopes_RM[np.arange(len(most)), matches_R])
        matches_T = matches_R[rows_T]
        for _ in range(2):  # the match with the best estimate, then all whose estimate is more than it gave
            if not len(rows_T):
                break
            for row, found in zip(
                rows_T.tolist(), self._tried(all_C, rows_T, matches_T, budgets_RM, levels_RM), strict=True
            ):
                if found.tokens and (found.score, found.match) > (best[row].score, best[row].match):
                    best[row] = found
            hopes_RM[rows_T, matches_T] = 0
            scores_R1 = np.array([[one.score] for one in best])
            rows_T, matches_T = np.nonzero((hopes_RM > 0) & (hopes_RM >= scores_R1))
        return best

    def _hopes(self, all_C: Occurrences, counts_RM: np.ndarray, levels_RM: np.ndarray) -> np.ndarray:
        """Return the greatest score that each match length can have, (R, M).

        The nodes of a level have no more occurrences than go on so far before the row's end.
        """
        sums_RM = counts_RM * levels_RM
        near_X = np.flatnonzero(all_C.follow_C < levels_RM.max(initial=0))
        if len(near_X):
            rows_X, follow_X1, matches_X1 = (
                all_C.rows_C[near_X],
                all_C.follow_C[near_X, None],
                all_C.matches_C[near_X, None],
            )
            short_XM = np.maximum(levels_RM[rows_X] - follow_X1, 0)
            short_XM[np.arange(levels_RM.shape[1]) > matches_X1] = 0
            firsts = run_starts(rows_X)
            sums_RM[rows_X[firsts]] -= np.add.reduceat(short_XM, firsts)
        hopes_RM: np.ndarray = sums_RM / (counts_RM + 1) * SLACK
        return hopes_RM

    def _tried(
        self,
        all_C: Occurrences,
        rows_T: np.ndarray,
        matches_T: np.ndarray,
        budgets_RM: np.ndarray,
        levels_RM: np.ndarray,
    ) -> list[Speculation]:
        """Return what is speculated after match lengths of rows, one for each tried match."""
        budgets_T, levels_T = budgets_RM[rows_T, matches_T], levels_RM[rows_T, matches_T]
        trials = Trials.of(all_C, rows_T, matches_T)
        if not self._reach.tree:
            found = walk(trials, budgets_T, self._reach.least)
        else:
            asked = zip(trials.windows(levels_T), budgets_T.tolist(), levels_T.tolist(), strict=True)
            least = self._reach.least
            found = [
                tree(Point.count, Point.children, Point(windows), budget, level, least)
                for windows, budget, level in asked
            ]
        for one, match in zip(found, matches_T.tolist(), strict=True):
            one.match = match
        return found


@attrs.frozen(eq=False)
class Point:
    """A node of the tree below a text that the row ends with: what followed each occurrence of it, in the order of their places."""

    windows: list[list[int]]
    deep: int = 0
    """How many tokens of each window belong to the text."""
    ends: int = 1
    """1 where the row ends with the text, which is an occurrence that nothing follows."""

    def count(self) -> int:
        """Return how often the text occurs."""
        return len(self.windows) + self.ends

    def children(self) -> Iterator[tuple[int, int, Point]]:
        """Return the children, those that occurred first first."""
        deep, groups = self.deep, dict[int, list[list[int]]]()
        for window in self.windows:
            if len(window) > deep:
                groups.setdefault(window[deep], []).append(window)
        for token, windows in groups.items():
            yield len(windows), token, Point(windows, deep + 1, 0)
