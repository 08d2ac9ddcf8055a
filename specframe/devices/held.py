"""Settings of the process that hold while anyone is inside a block."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Held:
    """Settings of the process that hold while anyone is inside the block, in every thread.

    The first one in changes them, and the last one out puts back what was there before.

    Args:
        change: changes them, and returns the function that puts them back.
    """

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        self._change, self._turn, self._inside = change, threading.Lock(), 0

    def __enter__(self) -> None:
        with self._turn:
            if not self._inside:
                self._put_back = self._change()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._inside -= 1
            if not self._inside:
                self._put_back()
