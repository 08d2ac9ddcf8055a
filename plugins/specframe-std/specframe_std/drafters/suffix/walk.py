"""Walks along the most frequent continuations of many texts at once.

Most texts have been followed by the same tokens each time. These are walked along in one go; the others, whose occurrences part,
one by one.

Arrays end with their shape: T tried matches of rows; E occurrences of all of them; K steps.
"""

from __future__ import annotations

import attrs
import numpy as np

from specframe_std.drafters.suffix.array_layout import ArrayLayout
from specframe_std.drafters.suffix.occurrences import Occurrences
from specframe_std.drafters.suffix.speculation import Speculation, single

FEW = 100
"""Occurrences that are followed one by one: so few take less time than all at once do."""


@attrs.frozen(eq=False)
class Trials:
    """The occurrences of texts that rows end with, one text after the other."""

    layout: ArrayLayout
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
        return cls(all_C.layout, trials_E, all_C.found_C[which_E], all_C.follow_C[which_E], counts_T)

    def windows(self, most_T: np.ndarray) -> list[list[list[int]]]:
        """Return up to ``most_T`` tokens after each occurrence that anything follows, for each tried match."""
        found: list[list[list[int]]] = [[] for _ in self.counts_T]
        lengths_E = np.minimum(self.follow_E, most_T[self.trials_E])
        tokens_EK = self.layout.stretches(self.found_E + 1, int(lengths_E.max(initial=0)))
        for trial, ids, size in zip(self.trials_E.tolist(), tokens_EK.tolist(), lengths_E.tolist(), strict=True):
            if size:
                found[trial].append(ids[:size])
        return found


def walk(trials: Trials, most_T: np.ndarray, least: float) -> list[Speculation]:
    """Return the chain of most frequent tokens after each text, up to ``most_T`` of them and none less likely than ``least``.

    Each text has occurred before its row's end.
    """
    least = single(least)
    if len(trials.found_E) > FEW and most_T.any():
        return _walk_many(trials, most_T, least)
    asked = zip(trials.windows(most_T), trials.counts_T.tolist(), strict=True)
    return [favourites(windows, whole, least) for windows, whole in asked]


def _walk_many(trials: Trials, most_T: np.ndarray, least: float) -> list[Speculation]:
    most = int(most_T.max())
    trials_E, ends_T = trials.trials_E, (trials.counts_T - 1).cumsum()
    firsts_T = np.append(0, ends_T[:-1])
    tokens_EK = trials.layout.stretches(trials.found_E + 1, most)
    tokens_TK = tokens_EK[firsts_T]  # the first occurrence has the most tokens after it
    there_E = np.minimum(trials.follow_E, most_T[trials_E])
    short_E = np.flatnonzero(there_E < most)
    differ_EK = tokens_EK != tokens_TK[trials_E]
    differ_EK[short_E] &= np.arange(most) < there_E[short_E, None]
    parted_T = np.zeros(len(most_T), bool)
    parted_T[trials_E[np.flatnonzero(differ_EK) // most]] = True

    ended_TK = np.bincount(trials_E[short_E] * most + there_E[short_E], minlength=len(most_T) * most)
    counts_TK = trials.counts_T[:, None] - 1 - ended_TK.reshape(-1, most).cumsum(1)
    alike_T = np.flatnonzero(~parted_T)
    alike = iter(together(tokens_TK[alike_T], counts_TK[alike_T], trials.counts_T[alike_T], least))
    found = []
    for first, end, parted in zip(firsts_T.tolist(), ends_T.tolist(), parted_T.tolist(), strict=True):
        if not parted:
            found.append(next(alike))
            continue
        sizes = there_E[first:end].tolist()
        windows = [ids[:size] for ids, size in zip(tokens_EK[first:end].tolist(), sizes, strict=True) if size]
        found.append(favourites(windows, end - first + 1, least))
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
    lengths_T = ((counts_TK > 0) & (chances_TK >= least)).sum(1)
    scores_TK = np.add.accumulate(chances_TK, axis=1)
    rows = zip(tokens_TK.tolist(), chances_TK.tolist(), scores_TK.tolist(), lengths_T.tolist(), strict=True)
    return [
        Speculation(ids[:n], [*range(-1, n - 1)], chances[:n], scores[n - 1] if n else 0.0)
        for ids, chances, scores, n in rows
    ]


def favourites(windows: list[list[int]], whole: int, least: float) -> Speculation:
    """Return the chain of most frequent tokens after a text.

    Of equally frequent tokens the latest is taken, of those that occurred once the first.

    Args:
        windows: what followed occurrences of the text, in the order of their places.
        whole: how often the text occurs. Nothing has followed the others of these.
        least: the probability below which a token is not taken.
    """
    found, chance, step = Speculation(), 1.0, 0
    while windows:
        counts, alike = dict[int, int](), windows.count(windows[0]) == len(windows)
        if alike:
            count = len(windows)
        else:
            for window in windows:
                counts[window[step]] = counts.get(window[step], 0) + 1
            count = max(counts.values())
        if count != whole:
            chance = single(chance * single(count / whole))
        if chance < least:
            break
        if alike or count == 1:  # nothing parts any more
            found.extend(windows[0][step:], chance)
            break
        best = next(window[step] for window in reversed(windows) if counts[window[step]] == count)
        found.add(best, step - 1, chance)
        step, whole = step + 1, count
        windows = [window for window in windows if window[step - 1] == best and len(window) > step]
    return found
