"""How many rows have to be free before new prompts are read."""

from __future__ import annotations

FADES = 1 / 16
"""Share of what was seen of rows that end which each round forgets: the last ten rounds or so show how fast they end now."""


class Refill:
    """Decides when free rows are worth a forward that reads new prompts.

    A forward for one prompt costs almost what one for several does, as far as it reads the model's weights; a row that stays
    empty costs its share of each round. Let *f* be the first cost, in rounds of a full batch of *B* rows, and let *r* rows end per
    round. To fill *n* rows at once costs *f*/*n* for each, and (*n* - 1)/(2*rB*) for the rounds in which they stay empty. The
    least sum has the first *n* with *n*(*n* + 1) >= 2*frB* (the economic lot size, Harris 1913). Where fewer rows end than
    before, rows are filled as soon as the rounds of those that stayed empty come to *f* full ones: waiting then costs no more
    than a forward.

    Args:
        cost: *f*, in rounds; with 0 rows are filled at once.
        batch_size: *B*.
    """

    def __init__(self, cost: float, batch_size: int) -> None:
        self._cost = cost * batch_size
        self._live, self._empty = 0, 0
        self._ended, self._rounds = 0.0, 0.0

    def look(self, live: int) -> None:
        """Note the rows that are live after a round."""
        ended = max(0, self._live - live)
        self._ended += ended - FADES * self._ended
        self._rounds += 1 - FADES * self._rounds
        self._live = live

    def due(self, free: int, waiting: int) -> bool:
        """Return whether ``free`` rows are filled now: as many as are worth it, or enough for all prompts that wait."""
        least = 2 * self._cost * self._ended / self._rounds if self._rounds else 0.0
        if free < waiting and free * (free + 1) < least and self._empty < self._cost:
            self._empty += free
            return False
        self._empty = 0
        return True

    def filled(self, live: int) -> None:
        """Note the rows that are live once prompts have been given some."""
        self._live = live
