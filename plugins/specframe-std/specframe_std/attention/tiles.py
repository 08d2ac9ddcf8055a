"""The blocks of decode attention, from shapes alone: a graph that is recorded with them serves rows of any length."""

from __future__ import annotations

import attrs

from specframe.model.attention.masks import power_of_two

PROGRAMS = 264
"""Programs up to which keys are split: two for each of an H100's 132 multiprocessors. Rows that make more keep them busy."""
MOST_PARTS = 64
"""Parts of a row's keys, at most: one program combines them, and holds the output of each."""
LEAST = 16
"""The shortest side of a matrix that the tensor cores multiply."""
MOST = 64
"""Queries of a tile and keys of a block, at most: what is added up for them fits into the registers. In float32, which no tensor
core multiplies exactly, the fewest do."""
BLOCK_BYTES = 32 * 1024
"""Keys and values of a block: with two blocks that are read while one is computed, two programs share a multiprocessor's 228 KB."""


@attrs.frozen
class Tiles:
    """How many programs attend, and the shapes of their blocks; sizes are powers of two."""

    tiles: int
    """Tiles of a row and key head's queries."""
    parts: int
    """Programs that share a tile's keys."""
    queries: int
    """Queries of a tile."""
    keys: int
    """Keys of a block."""
    key_size: int
    value_size: int
    """Sizes of heads, of which the last numbers may be none."""
    warps: int

    @classmethod
    def of(
        cls, rows: int, key_heads: int, queries: int, slots: int, key_size: int, value_size: int, itemsize: int
    ) -> Tiles:
        """Return the tiles of ``queries`` queries for each row and key head, over rows of ``slots`` slots."""
        key_size, value_size = (max(power_of_two(size), LEAST) for size in (key_size, value_size))
        most = MOST if itemsize < 4 else LEAST
        tall = min(max(power_of_two(queries), LEAST), most)
        tiles = -(-queries // tall)
        keys = min(max(below(BLOCK_BYTES // ((key_size + value_size) * itemsize)), LEAST), most)
        free, blocks = PROGRAMS // (rows * key_heads * tiles), -(-slots // keys)
        parts = below(max(min(free, blocks, MOST_PARTS), 1))
        warps = 4 if tall * value_size <= 8192 else 8  # 64 numbers of the output for each thread
        return cls(tiles, parts, tall, keys, key_size, value_size, warps)


def below(number: int) -> int:
    """Return the largest power of two that is not more, of 1 or more."""
    return 1 << (number.bit_length() - 1)
