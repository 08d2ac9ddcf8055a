"""The numbers of a pool's blocks: which are free, how many rows have each, and which are kept by what they hold."""

from __future__ import annotations

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import torch


class BlockAllocator:
    """Blocks 1 to ``most``: block 0 is nobody's.

    A block without a user is free, or idle if it is kept by its content. Free blocks are given out first, the lowest number before
    others, then new ones, then those that have been idle for the longest.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self.most, self.made = most, 0
        self.free: set[int] = set()
        """Blocks that nobody has."""
        self._lowest: list[int] = []
        """A heap of the numbers in ``free``, and of some that are there no longer."""
        self._users: dict[int, int] = {}
        self._with_key: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Blocks that are kept and that nobody has, the one that is evicted next first."""

    @property
    def available(self) -> int:
        """How many blocks can be taken."""
        return self.most - len(self._users)

    @property
    def used(self) -> int:
        """How many blocks have a user."""
        return len(self._users)

    def users(self, block: int) -> int:
        """Return how many rows have a block."""
        return self._users.get(block, 0)

    def take(self) -> int:
        """Return a block for one row alone; what it held means nothing.

        Raises:
            torch.OutOfMemoryError: every block has a user.
        """
        if self.free:
            block = self._lowest_free()
            self.free.remove(block)
        elif self.made < self.most:
            self.made += 1
            block = self.made
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self.forget(block)
        else:
            raise torch.OutOfMemoryError(f"all {self.most} blocks of the KV backend are taken: out of memory")
        self._users[block] = 1
        return block

    def _lowest_free(self) -> int:
        while (block := heapq.heappop(self._lowest)) not in self.free:
            pass
        return block

    def trim(self) -> None:
        """Have no free blocks after the last one that is not free."""
        while self.made in self.free:
            self.free.remove(self.made)
            self.made -= 1

    def share(self, block: int) -> None:
        """Give a block to one row more."""
        self._idle.pop(block, None)
        self._users[block] = self.users(block) + 1

    def give_back(self, block: int) -> None:
        """Take a block from one row."""
        self._users[block] -= 1
        if self._users[block]:
            return
        del self._users[block]
        if block in self._key_of:
            self._idle[block] = None
        else:
            self.free.add(block)
            heapq.heappush(self._lowest, block)

    def keep(self, block: int, key: bytes) -> None:
        """Keep a block by its content, if no other block of this content is kept."""
        if key not in self._with_key:
            self._with_key[key], self._key_of[block] = block, key

    def forget(self, block: int) -> None:
        """Keep a block no longer by its content, which changes."""
        if (key := self._key_of.pop(block, None)) is not None:
            del self._with_key[key]

    def holding(self, keys: list[bytes]) -> list[int]:
        """Return the kept blocks of the first of these contents, up to one that no block holds."""
        found = []
        for key in keys:
            if (block := self._with_key.get(key)) is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: list[int]) -> int:
        """Return how many of these blocks nobody has."""
        return sum(block in self._idle for block in blocks)


def contents(ids: list[int], block: int, after: bytes = b"") -> Iterator[bytes]:
    """Return the key of each complete block of tokens: it identifies the block's tokens and all before them.

    Args:
        ids: the tokens, from the start of a block on.
        block: tokens of a block.
        after: the key of the block before, empty for a row's first tokens.
    """
    tokens = np.array(ids, dtype=np.int64)
    for first in range(0, len(ids) - block + 1, block):
        after = hashlib.blake2b(after + tokens[first : first + block].tobytes(), digest_size=16).digest()
        yield after
