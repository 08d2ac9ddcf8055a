"""EXSPEC's scheduler: group rows of equal length from a window of live sequences."""

from __future__ import annotations

from collections import defaultdict

from specframe.contracts.round import Batch, Sequence
from specframe.engine.pool import Pool
from specframe.value_checks import whole


class SameLength:
    """Groups sequences of equal length from a window, so that nothing has to be realigned.

    In order: a full group, the longest-waiting first; the largest group of at least half the batch and two rows; else the
    sequences that waited longest, whatever their lengths. Sequences that have waited ``patience`` rounds go before all
    of that and before new prompts, the longest-waiting first, together with those of its length, so none waits more
    than ``patience`` + window / batch size rounds (rounded up).

    Options:
        window: live sequences to choose from, W; 48 as published, never less than the batch size.
        patience: rounds a sequence may be passed over before it goes first.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()

    def __init__(self, window: int = 48, patience: int = 16) -> None:
        self._window, self._patience = whole("window", window, 1), whole("patience", patience, 1)

    def rows(self, batch_size: int) -> int:
        """One row per sequence of the window."""
        self._batch_size = batch_size
        return max(self._window, batch_size)

    def next_batch(self, pool: Pool) -> Batch | None:
        """Return new prompts while the window has room for them, or else the best group."""
        overdue = any(sequence.waited >= self._patience for sequence in pool.live)
        sequences = ([] if overdue else pool.admit(self._batch_size)) or self._group(pool)
        return pool.batch(sequences) if sequences else None

    def _group(self, pool: Pool) -> list[Sequence]:
        by_wait = sorted(pool.live, key=lambda sequence: -sequence.waited)
        groups: dict[int, list[Sequence]] = defaultdict(list)
        for sequence in by_wait:
            groups[pool.length(sequence)].append(sequence)
        if by_wait and by_wait[0].waited >= self._patience:
            overdue = [sequence for sequence in by_wait if sequence.waited >= self._patience]
            alike = groups[pool.length(by_wait[0])]
            return list(dict.fromkeys([*overdue, *alike, *by_wait]))[: self._batch_size]
        best = max(groups.values(), key=lambda group: (min(len(group), self._batch_size), group[0].waited), default=[])
        full = min(self._batch_size, len(by_wait))
        enough = min(full, max(2, -(-full // 2)))
        return (best if len(best) >= enough else by_wait)[: self._batch_size]
