"""What suffix decoding finds, and how far it looks (Oliaro et al. 2024, arXiv 2411.04975).

Probabilities and scores are rounded to 32 bits after every step, as the published implementation computes them: a tie there is a
tie here.
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs
import numpy as np

SINGLE = struct.Struct("f")
"""A number of 32 bits: written and read in a third of the time that one of numpy's takes."""

SLACK = 1 + 1e-5
"""Factor of what a score may be at most: scores are sums in 32 bits."""


@attrs.frozen
class Reach:
    """How much is speculated after a match, and what is worth it.

    After a match of m tokens at most ``factor * m + offset`` tokens are speculated, none deeper in the tree of suffixes than
    ``depth``, and none whose probability is below ``least``.
    """

    factor: float = 1.0
    offset: float = 0.0
    least: float = 0.1
    depth: int = 64
    tree: bool = False
    """Whether several continuations are speculated."""

    def table(self) -> np.ndarray:
        """Return the most tokens after each match length from 0 to ``depth`` - 1, (depth,), 0 after a match of 0."""
        lengths = np.arange(self.depth)
        # the sum in 64 bits of a product in 32 bits, and a millionth so that 0.1 * 30 is 3
        scaled = lengths.astype(np.float32) * np.float32(self.factor) + np.float32(self.offset)
        most = np.maximum((scaled.astype(np.float64) + 1e-6).astype(np.int64), 0)
        if not self.tree:
            most = np.minimum(most, self.depth - lengths)
        most[0] = 0
        return most


@attrs.frozen
class Most:
    """The most that may be speculated for a row, whatever the match."""

    nodes: int
    depth: int


@attrs.define
class Speculation:
    """Tokens that may follow a row, the likeliest first, each after its parent."""

    tokens: list[int] = attrs.Factory(list)
    parents: list[int] = attrs.Factory(list)
    """The place of each one's parent among them; -1: the row's last token."""
    probabilities: list[float] = attrs.Factory(list)
    score: float = 0.0
    """The sum of the probabilities: how many tokens are expected to be accepted."""
    match: int = 0
    """Number of the row's last tokens that were found before, or 0 if nothing was found."""

    def add(self, token: int, parent: int, probability: float) -> int:
        """Take a token and return its place."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.probabilities.append(probability)
        self.score = single(self.score + probability)
        return len(self.tokens) - 1

    def extend(self, tokens: list[int], probability: float) -> None:
        """Take tokens each of which follows the one before, the first the latest that there is."""
        latest = len(self.tokens) - 1
        self.tokens += tokens
        self.parents += range(latest, latest + len(tokens))
        self.probabilities += [probability] * len(tokens)
        if probability == 1.0 and self.score.is_integer():  # exact without rounding
            self.score += len(tokens)
            return
        for _ in tokens:
            self.score = single(self.score + probability)

    def within(self, depth: int) -> Speculation:
        """Return the tokens that lie no deeper than this."""
        found, places, levels = Speculation(match=self.match), dict[int, int](), {-1: 0}
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            levels[node] = levels[parent] + 1
            if levels[node] <= depth:
                places[node] = found.add(token, places.get(parent, -1), self.probabilities[node])
        return found


def single(value: float) -> float:
    """Return a number rounded to 32 bits."""
    rounded: float = SINGLE.unpack(SINGLE.pack(value))[0]
    return rounded


Node = TypeVar("Node")


def tree(
    count: Callable[[Node], int],
    children: Callable[[Node], Iterator[tuple[int, int, Node]]],
    node: Node,
    most: int,
    depth: int,
    least: float,
) -> Speculation:
    """Return the ``most`` likeliest continuations of a text, none longer than ``depth``; among equals the one found first.

    Args:
        count: returns how often the text of a node of a tree of suffixes occurs.
        children: returns the count, the token and the node of each of its children.
        node: of the text.
        most: continuations.
        depth: tokens of one of them.
        least: the probability below which a token is not taken.
    """
    found, arrivals = Speculation(), itertools.count()
    heap = list[tuple[float, int, int, int, int, Node]]()

    def expand(parent: int, level: int, probability: float, node: Node) -> None:
        if level == depth:
            return
        whole = count(node)
        for times, token, child in children(node):
            own = probability if times == whole else single(single(probability * times) / single(whole))
            if own >= least:
                heapq.heappush(heap, (-own, next(arrivals), level + 1, parent, token, child))

    expand(-1, 0, 1.0, node)
    while heap and len(found.tokens) < most:
        negative, _, level, parent, token, child = heapq.heappop(heap)
        expand(found.add(token, parent, -negative), level, -negative, child)
    return found
