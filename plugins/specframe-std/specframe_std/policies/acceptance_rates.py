"""The probability that draft tokens are accepted: of each place over all rows, and of each row by itself.

A place of a tree is a level: one of its nodes is accepted there, or none is.

Tensor names carry their shape: B rows, K places of a draft.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np

from specframe.contracts.reports import Progress
from specframe.contracts.round import Batch, Sequence
from specframe_std.policies.levels import Levels

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
FADES_31 = np.array([[0.5 ** (1 / ROW_WINDOW)]] * 2 + [[0.5 ** (2 / ROW_WINDOW)]])
"""Factors of a row's three counts in each round."""
ROW_BELIEF = 6.0, 30.0, 60.0
"""Draft tokens of a row that have to be seen before they count as much as all rows together: at least, before anything is known of
how much rows differ, and at most. Of prompts of one kind it is 23 to 37 (library source, SpecBench), of files that are copied
together with other ones 12."""
EXCESS = 0.25
"""How much rows are assumed to differ beyond chance before any are seen: as much as one row with 40 draft tokens shows."""
ENDED_WINDOW = 64
"""Rows that have ended after which their evidence of how much rows differ counts half."""
SUREST = 0.99
"""The highest probability of one token: no row is certain."""


class RowCounts:
    """Three counts of each sequence, by places of its drafts: reached, accepted, and reached by the squares of their weights.

    A place is reached where all before it were accepted. The third is for chance: a weighted sum varies by the squares of the
    weights. Sequences that have ended are forgotten, those that nobody holds any more, too.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._row_of = weakref.WeakKeyDictionary[Sequence, int]()
        self.counts_R3K = np.zeros((0, 3, places))

    def rows(self, sequences: list[Sequence]) -> np.ndarray:
        """Return the row of each sequence; one that is new has seen nothing."""
        row_of = self._row_of
        try:
            return np.array([row_of[sequence] for sequence in sequences])
        except KeyError:
            self._make_room(sequences)
            return self.rows(sequences)

    def _make_room(self, sequences: list[Sequence]) -> None:
        """Give all of them a row, and drop the rows of sequences that are gone."""
        wanted = {id(sequence) for sequence in sequences}
        known = [(one, row) for one, row in self._row_of.items() if not one.finished or id(one) in wanted]
        kept_R3K = self.counts_R3K[[row for _, row in known]]
        new = [sequence for sequence in sequences if sequence not in self._row_of]
        self.counts_R3K = np.concatenate([kept_R3K, np.zeros((len(new), 3, self._places))])
        self._row_of = weakref.WeakKeyDictionary()
        for row, sequence in enumerate([*(one for one, _ in known), *new]):
            self._row_of[sequence] = row


class Noted(NamedTuple):
    """A round whose accepted tokens are yet to be counted."""

    sequences: list[Sequence]
    lengths: np.ndarray
    depth: int
    drafted: np.ndarray
    accepted: np.ndarray
    ended: list[bool]
    """Which rows have ended with it."""


class AcceptanceRates:
    """The probability of draft tokens to be accepted, and how near their ends rows are.

    Counts fade with the rounds seen, in rounds without a draft too: a row that drafts nothing comes to be taken for one like the
    others again. A place that few drafts reached is taken to be like all places together, a row of which little was seen to be
    like all rows.

    Args:
        levels: of the drafts.
    """

    def __init__(self, levels: Levels) -> None:
        self._levels, self._maximum = levels, levels.most.depth
        self._all_2K = np.zeros((2, self._maximum))
        self._rows = RowCounts(self._maximum)
        self._differ_2 = np.zeros(2)
        """How much the rows that have ended differ, by :func:`differences`."""
        self._noted: list[list[Noted]] = []
        """Rounds in a row of the same sequences, of which none has ended before the last of them."""
        self._rates_K: np.ndarray | None = None
        """The rates of what is counted, or None if something was counted since."""

    def add(self, report: Progress) -> None:
        """Note the accepted tokens of a round, which are counted when rates are asked for, or all rows have ended.

        A round in a row of many finds the processor's caches full of the models: counting takes a quarter of the time for several
        rounds at once.
        """
        sequences, last = report.sequences, self._noted[-1][-1] if self._noted else None
        ended = [sequence.finished for sequence in sequences]
        noted = Noted(sequences, report.lengths, report.depth, report.drafted, report.accepted, ended)
        if last is not None and last.sequences is sequences and not any(last.ended):
            self._noted[-1].append(noted)
        else:
            self._noted.append([noted])
        if all(ended):
            self._count()  # nothing is held on to after the last round of a run

    def _count(self) -> None:
        """Count the accepted tokens of the rounds noted, those of the same rows at once."""
        for rounds in self._noted:
            rows, before_N = self._rows.rows(rounds[0].sequences), np.arange(len(rounds))[::-1]
            fade = 0.5 ** (len(rows) / WINDOW)
            self._all_2K *= fade ** len(rounds)
            own_B3K = self._rows.counts_R3K[rows] * FADES_31 ** len(rounds)
            if any(one.depth for one in rounds):
                seen_NB3K = self._seen(rounds)
                self._all_2K += ((fade**before_N)[:, None, None] * seen_NB3K[:, :, :2].sum(1)).sum(0)
                own_B3K += (FADES_31 ** before_N[:, None, None, None] * seen_NB3K).sum(0)
            self._rows.counts_R3K[rows], self._rates_K = own_B3K, None
            if any(rounds[-1].ended):
                ended_B3K = own_B3K[rounds[-1].ended]
                self._differ_2 *= 0.5 ** (len(ended_B3K) / ENDED_WINDOW)
                self._differ_2 += differences(ended_B3K, self._rates()).sum(1)
        self._noted.clear()

    def _seen(self, rounds: list[Noted]) -> np.ndarray:
        """Return for each row the reached places, the accepted ones, and the reached ones again, in N rounds of the same rows.

        Where a row ended, the tokens after its end say nothing.

        Returns:
            (N, B, 3, K).
        """
        parts = np.array([(one.drafted, one.accepted, one.lengths) for one in rounds])
        drafted_NB, accepted_NB, lengths_NB = parts.swapaxes(0, 1)
        limit_B = np.array([sequence.limit for sequence in rounds[0].sequences])
        most_NB = np.minimum(self._levels.of(drafted_NB), np.array([[one.depth] for one in rounds]))
        stood_NB = np.minimum(accepted_NB, most_NB)
        reached_NB = stood_NB + (accepted_NB < np.minimum(most_NB, limit_B - 1 - lengths_NB))
        if any(ended_B := rounds[-1].ended):
            reached_NB[-1, ended_B] = stood_NB[-1, ended_B]
        return np.arange(self._maximum) < np.stack([reached_NB, stood_NB, reached_NB], axis=-1)[..., None]

    def rates(self, hope: float = 0.0) -> np.ndarray:
        """Return the probability of each place to be accepted in any row, given that those before it are, (K,).

        Args:
            hope: standard deviations by which each estimate is raised.
        """
        self._count()
        rates_K = self._rates()
        if not hope:
            return rates_K
        return np.minimum(rates_K + hope * np.sqrt(rates_K * (1 - rates_K) / (self._all_2K[0] + BELIEF)), 1.0)

    def _rates(self) -> np.ndarray:
        """Return the same of what is counted, as estimated."""
        if self._rates_K is None:
            reached_K, accepted_K = self._all_2K
            usual = (accepted_K.sum() + BELIEF * RATE) / (reached_K.sum() + BELIEF)
            self._rates_K = (accepted_K + BELIEF * usual) / (reached_K + BELIEF)
        return self._rates_K

    def rates_of(self, sequences: list[Sequence]) -> np.ndarray:
        """Return the probability of each place of each row to be accepted, given that those before it are, (B, K).

        A row's is that of all rows, moved by how much more or less its own drafts were accepted, and by what was seen of the place:
        the more, the more rows differ beyond chance (empirical Bayes: Efron and Morris 1973).
        """
        rates_K = np.minimum(self.rates(), SUREST)
        rows = self._rows.rows(sequences)  # first: it may make room
        counts_B3K = self._rows.counts_R3K[rows]
        reached_BK, accepted_BK = counts_B3K[:, 0], counts_B3K[:, 1]
        accepted_B, expected_B = accepted_BK.sum(1), (reached_BK * rates_K).sum(1)
        belief = self._belief(counts_B3K, rates_K)
        usual = belief * rates_K.mean()
        own_B1 = ((accepted_B + usual) / (expected_B + usual))[:, None]
        like_BK = np.minimum(own_B1 * rates_K, SUREST)
        return (accepted_BK + 2 * belief * like_BK) / (reached_BK + 2 * belief)

    def survival(self, batch: Batch) -> np.ndarray:
        """Return the probability that each token and all before it are accepted, (B, K), 0 beyond what a row has room for."""
        stands_BK, room_B = self.rates_of(batch.sequences).cumprod(1), batch.limits - batch.lengths - 1
        stands_BK[np.arange(self._maximum) >= room_B[:, None]] = 0
        return stands_BK

    def _belief(self, counts_B3K: np.ndarray, rates_K: np.ndarray) -> float:
        """Return the draft tokens of a row that count as much as all rows together, by how much rows differ.

        Rows that have ended count as well as those of the batch: else a few tokens of one row would decide.
        """
        least, assumed, most = ROW_BELIEF
        chance, excess = (self._differ_2 + differences(counts_B3K, rates_K).sum(1)).tolist()
        return float(min(max((chance + assumed * EXCESS) / (max(excess, 0.0) + EXCESS), least), most))


def differences(counts_R3K: np.ndarray, rates_K: np.ndarray) -> np.ndarray:
    """Return two numbers of each row that measure how much rows differ, (2, R).

    The first over the second, each summed over rows, is the number of tokens that count as much as all rows together. The first is
    the variance by chance of the accepted tokens, *np*(1 - *p*) where each of *n* is accepted with the probability *p*. The second
    is the square of the accepted tokens beyond those expected, less that variance, for each token (moments of the beta-binomial
    distribution: Kleinman 1973).

    Args:
        counts_R3K: of each row, as :class:`RowCounts` has them.
        rates_K: the acceptance probability of each place.
    """
    reached_RK, accepted_RK, squares_RK = counts_R3K.swapaxes(0, 1)
    reached_R, varies_K = reached_RK.sum(1), rates_K * (1 - rates_K)
    more_R = accepted_RK.sum(1) - (reached_RK * rates_K).sum(1)
    beyond_R = more_R**2 - (squares_RK * varies_K).sum(1)
    return np.array([(reached_RK * varies_K).sum(1), beyond_R / np.maximum(reached_R, 1)])
