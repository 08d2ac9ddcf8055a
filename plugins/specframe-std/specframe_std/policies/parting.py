"""The loss of rows that draft and so end apart: more forwards for prompts, empty rows until then, last rounds with few rows.

No round's time shows this loss. Plain decoding keeps rows together that end together. A single row has none.
"""

from __future__ import annotations

import math
import statistics

FILLS = 5
"""Forwards that read the prompts of as many rows as a batch has, where these end at different times: 5 to 8 for 8 to 32 rows with
``wait=0.25`` of ``continuous``. Rows that end together take one. In simulated queues 4 to 6 are alike. If 8 are counted,
batches of 8 rows draft too seldom."""
EMPTY = 0.25
"""Share of rows that are empty before prompts are read for them: that ``wait``. One row alone is filled at once."""
UNLIKE, CHANCE = 0.05, 0.13
"""How far apart rows that draft come to end, in rounds of plain decoding: the standard deviation by the acceptance of each row's
drafts, as a share of its tokens, and the variance by chance, for each of its tokens. Draft tokens of library source are accepted
with a probability of 0.74, which varies from row to row as if 28 tokens had been seen of each: drafts of one token give 0.034 and
0.06. Rows that end apart also begin apart, so that the deviations are taken to be half as large again."""
DRAFTED = 0.7
"""Seconds in which rows that draft gain a token without the time that each row takes, as a share of those of plain decoding: of
drafts of one token that are as above, with a step that takes a quarter of a plain round."""
TEXT = 256
"""Tokens after which a text is assumed to go on with a probability of 0.37: answers of chat models have some hundreds."""


def passes_lost(left: list[int], waiting: int, new: float) -> float:
    """Return the passes over the target's weights that drafts cost by the ends of rows, for each token to come.

    A row that may gain many more tokens ends its text before, at a time of its own whether it drafts or not.

    Args:
        left: tokens that each row may still gain.
        waiting: number of sequences that wait.
        new: tokens that each of them is to have.
    """
    rows, room = len(left), max(1, sum(left))
    if rows == 1:
        return 0.0
    lost = refills(left, waiting) / room + later_end(left, waiting, new) / (room + waiting * new)
    return lost * math.exp(-room / rows / TEXT)


def refills(left: list[int], waiting: int) -> float:
    """Return the passes that rows cost which end one after the other, while sequences wait.

    They are the forwards that read the next prompts, and the rounds that are more since some rows are empty until then. Rows that
    end apart whether they draft or not lose nothing.
    """
    times = max(0, min(FILLS, len(left), max(left), waiting) - len(set(left)))
    empty = max(0.0, EMPTY - 1 / len(left)) / 2
    rounds = DRAFTED * sum(left) / len(left) * empty / (1 - empty)
    return times * (1 + rounds / (FILLS - 1))


def later_end(left: list[int], waiting: int, new: float) -> float:
    """Return the passes of a run's last rounds, which have ever fewer rows.

    The last row ends later than the mean row, by as many standard deviations as the greatest of as many normal numbers is expected
    to be (Blom 1958).
    """
    rows, mean = len(left), sum(left) / len(left)
    anyway = sum((one - mean) ** 2 for one in left) / rows
    drafted = (UNLIKE * mean) ** 2 + CHANCE * mean + waiting / rows * ((UNLIKE * new) ** 2 + CHANCE * new)
    greatest = statistics.NormalDist().inv_cdf((rows - 0.375) / (rows + 0.25))
    return (math.sqrt(anyway + drafted) - math.sqrt(anyway)) * greatest
