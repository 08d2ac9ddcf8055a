"""Walks along the most frequent continuations of many texts at once.

Arrays end with their shape: T trials, each a match of a row; E occurrences of all trials; G trials that go on, L those that are
likely enough; K steps.
"""

from __future__ import annotations

import attrs
import numpy as np

from specframe_std.drafters.suffix.occurrences import Occurrences, run_sizes, run_starts
from specframe_std.drafters.suffix.speculation import Speculation


@attrs.frozen(eq=False)
class Trials:
    """The occurrences of texts that rows end with, one text after the other."""

    tokens_X: np.ndarray
    """The tokens of all rows."""
    trials_E: np.ndarray
    found_E: np.ndarray
    """The place of each occurrence among the tokens."""
    follow_E: np.ndarray
    """How many tokens of the row follow it."""
    counts_T: np.ndarray
    """How often each text occurs, at the row's end as well."""

    @classmethod
    def of(cls, all_C: Occurrences, rows_T: np.ndarray, matches_T: np.ndarray) -> Trials:
        """Return the occurrences of the last ``matches_T`` tokens of rows."""
        starts_T, sizes_T = all_C.bounds_R[rows_T], np.diff(all_C.bounds_R)[rows_T]
        trials_E = np.repeat(np.arange(len(rows_T)), sizes_T)
        which_E = np.arange(len(trials_E)) + (starts_T - sizes_T.cumsum() + sizes_T)[trials_E]
        long_E = all_C.matches_C[which_E] >= matches_T[trials_E]
        trials_E, which_E = trials_E[long_E], which_E[long_E]
        counts_T = np.bincount(trials_E, minlength=len(rows_T)) + 1
        return cls(all_C.tokens_X, trials_E, all_C.found_C[which_E], all_C.follow_C[which_E], counts_T)

    def windows(self, most: int) -> list[list[list[int]]]:
        """Return up to ``most`` tokens after each occurrence, for each trial."""
        found: list[list[list[int]]] = [[] for _ in self.counts_T]
        lengths_E = np.minimum(self.follow_E, most)
        for trial, place, length in zip(self.trials_E.tolist(), self.found_E.tolist(), lengths_E.tolist(), strict=True):
            found[trial].append(self.tokens_X[place + 1 : place + 1 + length].tolist())
        return found


def walk(trials: Trials, most_T: np.ndarray, least: float) -> list[Speculation]:
    """Return the chain of most frequent tokens after each text, up to ``most_T`` of them and none less likely than ``least``.

    Of equally frequent tokens the latest is taken, of those that occurred once the first.
    """
    whole_T, score_T, length_T = trials.counts_T.copy(), np.zeros(len(most_T), np.float32), np.zeros_like(most_T)
    chance_T, trials_E, found_E, follow_E = np.ones_like(score_T), trials.trials_E, trials.found_E, trials.follow_E
    steps = int(most_T.max(initial=0))
    tokens_TK, chances_TK = np.zeros((len(most_T), steps), np.int64), np.zeros((len(most_T), steps), np.float32)
    for step in range(steps):
        on_E = (follow_E > step) & (most_T[trials_E] > step)
        trials_E, found_E, follow_E = trials_E[on_E], found_E[on_E], follow_E[on_E]
        if not len(trials_E):
            break
        tokens_E = trials.tokens_X[found_E + (step + 1)]
        firsts_G = run_starts(trials_E)
        trials_G = trials_E[firsts_G]
        sizes_G = run_sizes(firsts_G, len(trials_E))
        best_G, count_G = favourites(tokens_E, firsts_G, sizes_G)
        part_G = count_G.astype(np.float32) / whole_T[trials_G].astype(np.float32)
        chance_G = np.where(count_G == whole_T[trials_G], chance_T[trials_G], chance_T[trials_G] * part_G)
        likely_G = chance_G >= np.float32(least)
        kept_E = np.repeat(likely_G, sizes_G) & (tokens_E == np.repeat(best_G, sizes_G))
        trials_E, found_E, follow_E = trials_E[kept_E], found_E[kept_E], follow_E[kept_E]
        trials_L, chance_L = trials_G[likely_G], chance_G[likely_G]
        tokens_TK[trials_L, step], chances_TK[trials_L, step] = best_G[likely_G], chance_L
        chance_T[trials_L], whole_T[trials_L], length_T[trials_L] = chance_L, count_G[likely_G], step + 1
        score_T[trials_L] += chance_L
    rows = zip(tokens_TK.tolist(), chances_TK.tolist(), score_T.tolist(), length_T.tolist(), strict=True)
    return [Speculation(ids[:n], [*range(-1, n - 1)], chances[:n], score) for ids, chances, score, n in rows]


def favourites(tokens_E: np.ndarray, firsts_G: np.ndarray, sizes_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the most frequent token of each group, and how often it occurs in it.

    Args:
        tokens_E: the tokens, group by group, those of a group in the order of their places.
        firsts_G: where each group begins.
        sizes_G: how many tokens it has.
    """
    best_G, count_G = np.minimum.reduceat(tokens_E, firsts_G), sizes_G.copy()
    mixed_G = np.flatnonzero(best_G != np.maximum.reduceat(tokens_E, firsts_G))
    if not len(mixed_G):
        return best_G, count_G
    groups_X = np.repeat(np.arange(len(mixed_G)), sizes_G[mixed_G])
    sizes = sizes_G[mixed_G]
    within_X = np.arange(len(groups_X)) + (firsts_G[mixed_G] - sizes.cumsum() + sizes)[groups_X]
    keys_X = groups_X * (int(tokens_E.max()) + 1) + tokens_E[within_X]
    order_X = keys_X.argsort(kind="stable")
    keys_X = keys_X[order_X]
    runs = run_starts(keys_X)
    counts, groups = run_sizes(runs, len(keys_X)), groups_X[order_X[runs]]
    ends = runs + counts - 1
    # of equal counts the latest, of single ones the first
    ranks = counts * 2 * len(keys_X) + np.where(counts > 1, order_X[ends], len(keys_X) - order_X[runs])
    heads = run_starts(groups)
    winners = np.flatnonzero(ranks == np.repeat(np.maximum.reduceat(ranks, heads), run_sizes(heads, len(groups))))
    best_G[mixed_G] = tokens_E[within_X[order_X[runs[winners]]]]
    count_G[mixed_G] = counts[winners]
    return best_G, count_G
