"""The queue of requests that wait for a row: those to come, by their arrival, and those that have arrived, in their order."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from specframe.contracts.engine import Clock
from specframe.contracts.requests import Request

Key = tuple[int, int]
"""The key of a request: its index and its sample."""


class WaitingQueue:
    """Requests that wait for a row. Any of them is found and taken out by its key at once, however many there are.

    Args:
        requests: those there are from the beginning; those that arrive together keep their order.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self.arrived: OrderedDict[Key, Request] = OrderedDict()
        """Those that have arrived, the longest there first."""
        self.coming: dict[Key, Request] = {}
        """Those to come."""
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Request]] = []
        """Those to come, by their arrival. One that was taken out stays here until its turn has come."""
        for request in requests:
            self.add(request)

    def __len__(self) -> int:
        return len(self.arrived) + len(self.coming)

    def __contains__(self, key: Key) -> bool:
        return key in self.arrived or key in self.coming

    def __iter__(self) -> Iterator[Request]:
        yield from self.arrived.values()
        yield from self.coming.values()

    def add(self, request: Request) -> None:
        """Take a request, after those that arrive together with it."""
        self.coming[request.key] = request
        heapq.heappush(self._heap, (request.arrival, next(self._numbers), request))

    @property
    def first(self) -> Request:
        """The request that has arrived first of those that wait."""
        return next(iter(self.arrived.values()))

    def drop(self, key: Key) -> Request | None:
        """Take out the request of a key and return it, or None if there is none."""
        return self.arrived.pop(key, None) or self.coming.pop(key, None)

    def let_in(self, clock: Clock, idle: bool) -> None:
        """Let those arrive whose time has come; the next one at once where there is nothing else to do, ``idle``."""
        now = clock.now
        while (following := self._following) is not None:
            if following.arrival > now:
                if not idle:
                    return
                clock.jump(following.arrival)
                now = following.arrival
            idle = False
            heapq.heappop(self._heap)
            self.arrived[following.key] = self.coming.pop(following.key)

    @property
    def _following(self) -> Request | None:
        """The request that arrives next, or None if there is none to come."""
        while self._heap and self.coming.get(self._heap[0][2].key) is not self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None
