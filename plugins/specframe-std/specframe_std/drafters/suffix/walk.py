"""Walks along the most frequent continuations of many texts at once.

Most texts have been followed by the same tokens each time. These are walked along in one go; the few others, whose occurrences
part, one by one.

Arrays end with their shape: T trials, each a match of a row; E occurrences of all trials; K steps.
"""

from __future__ import annotations

import collections

import attrs
import numpy as np

from specframe_std.drafters.suffix.occurrences import Occurrences
from specframe_std.drafters.suffix.speculation import Speculation, single


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

    Each text has occurred before its row's end.
    """
    steps_K = np.arange(most_T.max(initial=0))
    if not len(steps_K):
        return [Speculation() for _ in most_T]
    ends_T = (trials.counts_T - 1).cumsum()
    firsts_T = np.append(0, ends_T[:-1])
    there_EK = steps_K < np.minimum(trials.follow_E, most_T[trials.trials_E])[:, None]
    places_EK = np.minimum(trials.found_E[:, None] + (steps_K + 1), len(trials.tokens_X) - 1)
    tokens_EK = trials.tokens_X[places_EK]
    tokens_TK = tokens_EK[firsts_T]  # the first occurrence has the most tokens after it
    parted_E = ((tokens_EK != tokens_TK[trials.trials_E]) & there_EK).any(1)
    parted_T = np.logical_or.reduceat(parted_E, firsts_T)

    found = together(tokens_TK, np.add.reduceat(there_EK, firsts_T, dtype=np.int64), trials.counts_T, least)
    for trial in np.flatnonzero(parted_T).tolist():
        first, end = firsts_T[trial], ends_T[trial]
        sizes = there_EK[first:end].sum(1).tolist()
        windows = [ids[:size] for ids, size in zip(tokens_EK[first:end].tolist(), sizes, strict=True)]
        found[trial] = favourites(windows, single(least))
    return found


def together(tokens_TK: np.ndarray, counts_TK: np.ndarray, counts_T: np.ndarray, least: float) -> list[Speculation]:
    """Return the chain after each text whose occurrences are all followed by the same tokens.

    Args:
        tokens_TK: these tokens.
        counts_TK: how many occurrences each of them follows.
        counts_T: how often each text occurs.
        least: the probability below which a token is not taken.
    """
    wholes_TK = np.maximum(np.concatenate([counts_T[:, None], counts_TK[:, :-1]], axis=1), 1)
    chances_TK = np.multiply.accumulate(counts_TK.astype(np.float32) / wholes_TK.astype(np.float32), axis=1)
    lengths_T = ((counts_TK > 0) & (chances_TK >= np.float32(least))).sum(1)
    scores_TK = np.add.accumulate(chances_TK, axis=1)
    rows = zip(tokens_TK.tolist(), chances_TK.tolist(), scores_TK.tolist(), lengths_T.tolist(), strict=True)
    return [
        Speculation(ids[:n], [*range(-1, n - 1)], chances[:n], scores[n - 1] if n else 0.0)
        for ids, chances, scores, n in rows
    ]


def favourites(windows: list[list[int]], least: float) -> Speculation:
    """Return the chain of most frequent tokens after a text.

    Of equally frequent tokens the latest is taken, of those that occurred once the first.

    Args:
        windows: what followed each of its occurrences, in the order of their places; nothing has followed one more, the row's end.
        least: the probability below which a token is not taken.
    """
    found, chance, whole = Speculation(), 1.0, len(windows) + 1
    while windows := [window for window in windows if len(window) > len(found.tokens)]:
        step = len(found.tokens)
        tokens = [window[step] for window in windows]
        best = tokens[0]
        count = tokens.count(best)
        if count < len(tokens):
            counts = collections.Counter(tokens)
            count = max(counts.values())
            best = tokens[0] if count == 1 else next(token for token in reversed(tokens) if counts[token] == count)
        if count != whole:
            chance = single(chance * single(count / whole))
        if chance < least:
            break
        found.add(best, step - 1, chance)
        windows, whole = [window for window in windows if window[step] == best], count
    return found
