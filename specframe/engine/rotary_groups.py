"""The groups of requests that cannot be decoded together, as their prompts take other rotary factors: they take turns.

See :meth:`specframe.contracts.model.Model.group`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from specframe.contracts.requests import Request
from specframe.engine.pool import Pool
from specframe.engine.waiting_queue import Key

TURN = 128
"""Rounds of one group, while requests of the other wait, after which it schedules no more: about those of a sequence of 400 tokens.
What it has scheduled it decodes to the end. A change opens the caches anew, which should be rare."""


class Groups:
    """The pool of each group, and the group that is decoded.

    Args:
        pool: makes a pool.
    """

    def __init__(self, pool: Callable[[], Pool]) -> None:
        self._pools: dict[bool, Pool] = defaultdict(pool)
        self._waited = 0
        self.current = False
        """The group that is decoded."""

    def __iter__(self) -> Iterator[Pool]:
        yield from self._pools.values()

    @property
    def pool(self) -> Pool:
        """The pool of the group that is decoded."""
        return self._pools[self.current]

    @property
    def idle(self) -> bool:
        """Whether every request has finished."""
        return all(not pool.unfinished for pool in self._pools.values())

    def of(self, group: bool) -> Pool:
        """Return the pool of a group."""
        return self._pools[group]

    def add(self, group: bool, request: Request) -> None:
        """Take a request of a group."""
        self._pools[group].add(request)

    def holds(self, key: Key) -> bool:
        """Return whether there is an unfinished request of this key."""
        return any(pool.holds(key) for pool in self)

    def turn(self) -> bool:
        """Decide which group is decoded next, before a round; return whether that is another one than before.

        It is the other one where this one has nothing to do, or has drained after its turn.
        """
        pool, other = self.pool, self._pools.get(not self.current)
        self._waited = self._waited + 1 if other is not None and other.due else 0
        pool.draining = self._waited > TURN
        if other is None or pool.live or (pool.due and not pool.draining) or (pool.unfinished and not other.due):
            return False
        pool.draining, self._waited = False, 0
        self.current = not self.current
        return True

    def clear(self) -> None:
        """Forget all requests."""
        self._pools.clear()
