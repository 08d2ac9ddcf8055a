"""Suffix decoding by counting occurrences in the texts themselves, and texts to count in."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator

import attrs
from specframe_std.drafters.suffix.speculation import Most, Reach, Speculation, single, tree


@attrs.define
class Counting:
    """The tree of suffixes of texts, by looking through them each time. A node is a text."""

    texts: list[list[int]]
    depth: int
    tied: bool = False
    """Whether a choice among equally frequent children was made."""

    def places(self, node: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return where a text ends."""
        size = len(node)
        return [
            (number, place + size)
            for number, text in enumerate(self.texts)
            for place in range(len(text) - size + 1)
            if tuple(text[place : place + size]) == node
        ]

    def count(self, node: tuple[int, ...]) -> int:
        """Return how often a text occurs."""
        return len(self.places(node))

    def children(self, node: tuple[int, ...]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Return the count, the token and the text of each child."""
        if len(node) < self.depth:
            places = self.places(node)
            counts = collections.Counter(self.texts[i][at] for i, at in places if at < len(self.texts[i]))
            for token, count in counts.items():
                yield count, token, (*node, token)

    def favourite(self, node: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the most frequent token and its count: of equal ones the latest, of single ones the first."""
        counts = {token: count for count, token, _ in self.children(node)}
        if not counts:
            return None
        most = max(counts.values())
        self.tied = self.tied or list(counts.values()).count(most) > 1
        last = {self.texts[i][at]: n for n, (i, at) in enumerate(self.places(node)) if at < len(self.texts[i])}
        best = [token for token in counts if counts[token] == most]
        return (best[0] if most == 1 else max(best, key=last.__getitem__)), most

    def chain(self, node: tuple[int, ...], most: int, least: float) -> Speculation:
        """Return the chain of most frequent tokens."""
        found, chance = Speculation(), 1.0
        while len(found.tokens) < most and (best := self.favourite(node)) is not None:
            chance = single(chance * single(best[1] / self.count(node))) if best[1] != self.count(node) else chance
            if chance < least:
                break
            found.add(best[0], len(found.tokens) - 1, chance)
            node = (*node, best[0])
        return found


def counted(texts: list[list[int]], context: list[int], most: Most, reach: Reach) -> tuple[Speculation, bool]:
    """Return the best speculation over all match lengths, and whether some choice was among equals."""
    counting, best = Counting(texts, reach.depth), Speculation()
    for match in range(1, min(len(context), reach.depth)):
        node = tuple(context[-match:])
        if not counting.count(node):
            break
        budget = max(0, int(match * reach.factor + reach.offset + 1e-6))
        nodes = min(budget, most.nodes)
        if reach.tree:
            found = tree(
                counting.count, counting.children, node, nodes, min(most.depth, reach.depth - match), reach.least
            )
        else:
            found = counting.chain(node, min(nodes, most.depth), reach.least)
        if found.tokens and found.score >= best.score:
            best, best.match = found, match
    return best, counting.tied


def text(draw: random.Random, size: int, tokens: int) -> list[int]:
    """Return a text that repeats parts of itself."""
    made = draw.choices(range(tokens), k=3)
    while len(made) < size:
        start = draw.randrange(len(made))
        made += draw.choice([draw.choices(range(tokens), k=4), made[start : start + draw.randrange(1, 12)]])
    return made[:size]


def reach_of(draw: random.Random, trees: bool) -> Reach:
    """Return options at random."""
    return Reach(
        draw.choice([0.5, 1, 2, 4]),
        draw.choice([-1, 0, 1, 3.25]),
        draw.choice([0.0, 0.1, 0.3, 0.6]),
        draw.choice([2, 4, 8, 64]),
        trees,
    )


def same(one: Speculation, other: Speculation, trees: bool) -> bool:
    """Return whether two speculations are equal; of equally likely nodes of trees either may have been left out."""
    if not one.tokens and not other.tokens:
        return True
    if (one.probabilities, one.score, one.match) != (other.probabilities, other.score, other.match):
        return False
    return paths(one) == paths(other) if trees else (one.tokens, one.parents) == (other.tokens, other.parents)


def paths(found: Speculation) -> set[tuple[tuple[int, ...], float]]:
    """Return the paths of the nodes that are likelier than the least likely ones."""
    whole = list[tuple[int, ...]]()
    for token, parent in zip(found.tokens, found.parents, strict=True):
        whole.append((*(whole[parent] if parent >= 0 else ()), token))
    chances = found.probabilities
    return {(path, chance) for path, chance in zip(whole, chances, strict=True) if chance > chances[-1]}
