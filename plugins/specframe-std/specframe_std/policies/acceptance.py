"""The probability that draft tokens stand: of each place over all rows, and of each row by itself.

Tensor names carry their shape: B rows, K places of a draft.
"""

from __future__ import annotations

import weakref

import attrs
import numpy as np

from specframe.contracts.reports import Progress
from specframe.contracts.round import Sequence

LONGEST = 64
"""The greatest maximum of a policy: what is noted for each place grows with it."""
RATE = 0.6
"""Probability that a draft token is accepted, given that those before it are, before anything is measured."""
BELIEF = 5
"""Draft tokens that have to reach a place before its own acceptance counts as much as that of all places together."""
WINDOW = 512
"""Rows after which what was seen of all rows counts half."""
ROW_WINDOW = 24
"""Rounds after which what was seen of one row counts half: a text goes from one passage to another."""
ROW_BELIEF = 6
"""Draft tokens of a row that have to be seen before it counts as much as all rows together, where rows differ."""
LEAST_SPREAD = 0.1
"""Rows whose accepted tokens vary little more than by chance are taken to be alike: this many times less is made of each."""
SUREST = 0.99
"""The highest probability of one token: no row is certain."""


@attrs.define(eq=False)
class Seen:
    """How many draft tokens of each place were reached, since all before them stood, and how many of those stood."""

    reached_K: np.ndarray
    accepted_K: np.ndarray

    @classmethod
    def nothing(cls, places: int) -> Seen:
        """Return the counts before anything is seen."""
        return cls(np.zeros(places), np.zeros(places))

    def fade(self, share: float) -> None:
        """Let what was seen count less."""
        self.reached_K *= share
        self.accepted_K *= share

    def add(self, accepted: int, tested: bool) -> None:
        """Take in a draft of which so many tokens stand, and whether the one after them was tested and does not."""
        self.reached_K[: accepted + tested] += 1
        self.accepted_K[:accepted] += 1


class Acceptance:
    """The probability of draft tokens to be accepted, and how near their ends rows are.

    Counts fade with the rounds seen, in rounds without a draft too: a row that drafts nothing comes to be taken for one like the
    others again. A place that few drafts reached is taken to be like all places together, a row of which little was seen to be
    like all rows.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._all = Seen.nothing(maximum)
        self._rows = weakref.WeakKeyDictionary[Sequence, Seen]()

    def add(self, report: Progress) -> None:
        """Take in the accepted tokens of a round. Where a row ended, what came after its end says nothing."""
        self._all.fade(0.5 ** (len(report.sequences) / WINDOW))
        for sequence, length, accepted, drafted in zip(
            report.sequences, report.lengths.tolist(), report.accepted.tolist(), report.drafted.tolist(), strict=True
        ):
            most = min(drafted, self._maximum)
            room = sequence.limit - length - 1
            stood = min(accepted, most)
            tested = not sequence.finished and accepted < min(most, room)
            self._all.add(stood, tested)
            if sequence.finished:
                self._rows.pop(sequence, None)
                continue
            row = self._rows.get(sequence)
            if row is None:
                row = self._rows[sequence] = Seen.nothing(self._maximum)
            row.fade(0.5 ** (1 / ROW_WINDOW))
            row.add(stood, tested)

    def rates(self, hope: float = 0.0) -> np.ndarray:
        """Return the probability of each place to stand in any row, given that those before it do, (K,).

        Args:
            hope: standard deviations by which each is taken to be higher than estimated.
        """
        reached_K, accepted_K = self._all.reached_K, self._all.accepted_K
        usual = (accepted_K.sum() + BELIEF * RATE) / (reached_K.sum() + BELIEF)
        rates_K = (accepted_K + BELIEF * usual) / (reached_K + BELIEF)
        return np.minimum(rates_K + hope * np.sqrt(rates_K * (1 - rates_K) / (reached_K + BELIEF)), 1.0)

    def rates_of(self, sequences: list[Sequence], hope: float = 0.0) -> np.ndarray:
        """Return the probability of each place of each row to stand, given that those before it do, (B, K).

        A row's is that of all rows, moved by how much better or worse its own drafts stood, and by what was seen of the place: the
        more, the more rows differ beyond chance (empirical Bayes: Efron and Morris 1973).
        """
        rates_K = np.minimum(self.rates(hope), SUREST)
        seen = [self._rows.get(sequence) for sequence in sequences]
        if not any(seen):
            return np.broadcast_to(rates_K, (len(seen), len(rates_K)))
        nothing_K = np.zeros(self._maximum)
        reached_BK = np.array([nothing_K if one is None else one.reached_K for one in seen])
        accepted_BK = np.array([nothing_K if one is None else one.accepted_K for one in seen])
        expected_BK = reached_BK * rates_K
        accepted_B, expected_B = accepted_BK.sum(1), expected_BK.sum(1)
        chance = float((expected_BK * (1 - rates_K)).sum())
        spread = float(((accepted_B - expected_B) ** 2).sum()) / max(chance, 1e-9) - 1
        belief = ROW_BELIEF / min(max(spread, LEAST_SPREAD), 1.0)
        usual = belief * rates_K.mean()
        own_B1 = ((accepted_B + usual) / (expected_B + usual))[:, None]
        like_BK = np.minimum(own_B1 * rates_K, SUREST)
        return (accepted_BK + 2 * belief * like_BK) / (reached_BK + 2 * belief)


def survival(rates_BK: np.ndarray, room_B: np.ndarray) -> np.ndarray:
    """Return the probability that a token and all before it stand, (B, K); 0 beyond what a row has room for.

    Args:
        rates_BK: of each token, given that those before it stand.
        room_B: tokens that each row can still gain by its draft.
    """
    stands_BK = rates_BK.cumprod(1)
    stands_BK[np.arange(rates_BK.shape[1]) >= room_B[:, None]] = 0
    return stands_BK
