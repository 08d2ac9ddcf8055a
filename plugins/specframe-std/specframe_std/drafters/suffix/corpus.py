"""The suffixes of earlier responses, counted: a compressed tree, from which the oldest responses go first.

The tree has a node for every text of up to ``depth`` tokens that occurs, but those that are followed by one token only, whatever
follows: these lie inside of an edge. A suffix that has occurred once is a number, the place where its edge begins, and no node.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Union

from specframe_std.drafters.suffix.speculation import SLACK, Most, Reach, Speculation, single, tree

END = -1
"""Token after each response, which is no token id: no text runs over it."""


class Branch:
    """A node that occurs at least twice: the text of its edge, and what follows it."""

    __slots__ = ("children", "count", "length", "start", "top")

    def __init__(self, count: int, start: int, length: int) -> None:
        self.count, self.start, self.length = count, start, length
        self.children: dict[int, Child] = {}
        """By the first token of their edges, in the order in which they came."""
        self.top: int | None = None
        """The first token of the most frequent one, or None if it is to be found out."""


Child = Union["Branch", int]
"""A branch, or the place where the edge of the only occurrence begins."""
Point = tuple[Child, int, int]
"""A place in the tree: the edge's child, how many tokens of the edge precede it, and how many precede the edge."""


def rank(child: Child) -> tuple[int, int]:
    """Return what the most frequent child has the most of: of equal ones the latest, of those that occurred once the first."""
    return (1, -child) if isinstance(child, int) else (child.count, child.start)


def foremost(children: dict[int, Child]) -> int:
    """Return the token of the child with the greatest rank, without a call for each of the many that frequent tokens have."""
    found, count, start = None, 0, 0
    for token, child in children.items():
        if not isinstance(child, int) and (child.count > count or (child.count == count and child.start > start)):
            found, count, start = token, child.count, child.start
    return max(children, key=lambda token: rank(children[token])) if found is None else found


def worth(budgets: list[int], most: int, least: int) -> tuple[int, int]:
    """Return the first match length whose budget, of up to ``most`` tokens, is at least ``least``, and the one after the last."""
    found = [match for match, budget in enumerate(budgets) if min(budget, most) >= least]
    return (found[0], found[-1] + 1) if found else (1, 0)


def order(budgets: list[int], nodes: int, depth: int, first: int, last: int) -> list[tuple[int, int, list[int]]]:
    """Return budgets, the greatest first, and levels, each with the match lengths that have them, the longest first."""

    def asked(match: int) -> tuple[int, int]:
        return min(budgets[match], nodes), min(depth, len(budgets) - match)

    matches = sorted(range(first, last + 1), key=lambda match: (-asked(match)[0], -match))
    return [(*most, list(run)) for most, run in itertools.groupby(matches, key=asked)]


def better(score: float, match: int, beyond: float, best: Speculation | None) -> bool:
    """Return whether a score beats the best one so far, or is as good with a longer match."""
    return score > beyond or (best is not None and score == beyond and match > best.match)


class Places(dict[int, Point | None]):
    """The places of a context's last tokens by their number, each looked for once, or None if they do not occur."""

    __slots__ = ("context", "corpus")

    def __init__(self, corpus: Corpus, context: array[int]) -> None:
        self.corpus, self.context = corpus, context

    def __missing__(self, match: int) -> Point | None:
        point = self[match] = self.corpus.walk(self.context, match)
        return point

    def commoner(self, matches: list[int], count: int) -> list[int]:
        """Return those of some matches, the longest first, that occur more than ``count`` times.

        A shorter match occurs at least as often as a longer one.
        """

        def often(match: int) -> int:
            point = self[match]
            assert point is not None
            return self.corpus.count(point)

        if not matches or often(matches[-1]) == count:
            return []
        return matches[bisect.bisect_right(matches, count, key=often) :]


class Corpus:
    """Up to ``most`` responses and their suffixes.

    A response costs a walk from the root for each of its tokens. A look-up costs what the match and the draft are long, however
    much the corpus holds. Edges name the latest response that has them, so that none names one that has gone.
    """

    def __init__(self, reach: Reach, most: int) -> None:
        self._reach, self._most = reach, most
        self._budgets: list[int] = reach.table().tolist()
        self._worth = functools.cache(functools.partial(worth, self._budgets))
        self._order = functools.cache(functools.partial(order, self._budgets))
        self._tokens = array("q")
        """Of all responses, with :data:`END` after each: stretches of arrays are compared as a whole, without objects."""
        self._base = 0
        """The place of the first of these tokens: places are counted over all responses that there ever were."""
        self._spans: collections.deque[tuple[int, int]] = collections.deque()
        self._root = Branch(0, 0, 0)

    def __len__(self) -> int:
        return len(self._spans)

    def responses(self) -> Iterator[list[int]]:
        """Return the responses, the oldest first."""
        for start, end in self._spans:
            yield self._tokens[start - self._base : end - self._base].tolist()

    def add(self, response: Sequence[int]) -> None:
        """Take a response; the oldest goes where there are too many."""
        if not response or not self._most:
            return
        start = self._base + len(self._tokens)
        self._tokens.extend([*response, END])
        end = start + len(response)
        self._spans.append((start, end))
        for place in range(start, end):
            self._insert(place, min(place + self._reach.depth, end))
        if len(self._spans) > self._most:
            self._forget(*self._spans.popleft())

    def places(self, context: array[int]) -> Places:
        """Return the places of a text, from its last tokens, up to ``depth``, of 64 bits; they hold until a response is taken."""
        return Places(self, context)

    def whole(self, places: Places, most: Most) -> Speculation | None:
        """Return as many tokens as a row may have, if all are certain: nothing is likelier, wherever it is found."""
        return self.find(places, most, math.nextafter(most.nodes, 0))

    def find(self, places: Places, most: Most, beyond: float) -> Speculation | None:
        """Return the best speculation after a text, of those whose score is above ``beyond``.

        Args:
            places: those of the text.
            most: what the row may have.
            beyond: the score of what was found elsewhere.
        """
        best = None
        first, end = self._worth(most.nodes, int(beyond) + 1)
        end = min(end, len(places.context), self._reach.depth)
        if first >= end or places[first] is None:
            return None
        last = self._longest(places, first, end)
        for budget, levels, matches in self._order(most.nodes, most.depth, first, last):
            while matches and better(budget, matches[0], beyond, best):
                match = matches[0]
                point = places[match]
                assert point is not None
                if better(budget * self._first(point), match, beyond, best):
                    found = self._found(point, budget, levels)
                    if better(found.score, match, beyond, best):
                        best, beyond, found.match = found, found.score, match
                        if beyond == budget:  # others give less, or as much with a shorter match
                            return best
                matches = places.commoner(matches[1:], self.count(point))
        return best

    def _found(self, point: Point, budget: int, levels: int) -> Speculation:
        """Return up to ``budget`` tokens after a point, none deeper than ``levels``."""
        if self._reach.tree:
            return tree(self.count, self.children, point, budget, levels, self._reach.least)
        return self._chain(point, min(budget, levels))

    def _first(self, point: Point) -> float:
        """Return how likely something follows at all: no token is likelier, and of one level all together are not."""
        child, inside, _ = point
        if isinstance(child, int) or inside < child.length:
            return 1.0
        if self._reach.tree:
            return 1.0
        return self.count((self._top(child), 0, 0)) / child.count * SLACK if child.children else 0.0

    def _chain(self, point: Point, most: int) -> Speculation:
        """Return the chain of most frequent tokens after a point, edge by edge."""
        (child, inside, above), found, chance, base = point, Speculation(), 1.0, self._base
        while len(found.tokens) < most:
            start = (child if isinstance(child, int) else child.start) + inside - base
            left = min(most - len(found.tokens), self._reach.depth - above - inside)
            if not isinstance(child, int):
                left = min(left, child.length - inside)
            follow = self._tokens[start : start + left].tolist()
            if END in follow:
                found.extend(follow[: follow.index(END)], chance)
                break
            found.extend(follow, chance)
            if isinstance(child, int) or not child.children:
                break
            below, above = self._top(child), above + child.length
            count = 1 if isinstance(below, int) else below.count
            if count != child.count:
                chance = single(chance * single(count / child.count))
            if chance < self._reach.least:
                break
            child, inside = below, 0
        return found

    def _top(self, branch: Branch) -> Child:
        """Return the child that occurs most often."""
        if branch.top is None:
            branch.top = foremost(branch.children)
        return branch.children[branch.top]

    def _longest(self, places: Places, low: int, end: int) -> int:
        """Return the longest match before ``end``, from that of ``low`` tokens on, which occurs.

        Longer ones occur where shorter ones do: what precedes a place that was found matches as far as it is the context's, and
        only a text that occurs at other places may match further.
        """
        point = places[low]
        while point is not None:
            low += self._before(places.context, low, end - 1 - low, point)
            if low == end - 1 or self.count(point) == 1:
                return low
            low, point = low + 1, places[low + 1]
        return low - 1

    def _before(self, context: array[int], match: int, most: int, point: Point) -> int:
        """Return how many tokens before the latest place of a match are the context's as well, up to ``most``."""
        child, _, above = point
        at, start = len(context) - match, (child if isinstance(child, int) else child.start) - above - self._base
        most = min(most, start)
        if self._tokens[start - most : start] == context[at - most : at]:  # a row that copies: no need to count
            return most
        for back in range(1, most + 1):
            if self._tokens[start - back] != context[at - back]:
                return back - 1
        return most

    def walk(self, context: array[int], match: int) -> Point | None:
        """Return the place of the last ``match`` tokens, or None if they do not occur.

        Edges are distinguished by their first tokens alone. All tokens are compared at the end, with those of one occurrence
        (PATRICIA, Morrison 1968).
        """
        node, ends = self._root, len(context)
        first = at = ends - match
        while True:
            child = node.children.get(context[at])
            if child is None:
                return None
            if isinstance(child, int):
                length, start = ends - at, child
                break
            if child.length >= ends - at:
                length, start = ends - at, child.start
                break
            at, node = at + child.length, child
        start -= self._base + at - first
        if self._tokens[start : start + match] != context[first:]:
            return None
        return child, length, at - first

    # a point is a node of the tree as it would be without compression

    def count(self, point: Point) -> int:
        """Return how often the point's text occurs."""
        child = point[0]
        return 1 if isinstance(child, int) else child.count

    def children(self, point: Point) -> Iterator[tuple[int, int, Point]]:
        """Return the count, the token and the point of each child, the most frequent first."""
        child, inside, above = point
        if isinstance(child, int) or inside < child.length:
            if (only := self._along(point)) is not None:
                yield only
            return
        for token in sorted(child.children, key=lambda token: rank(child.children[token]), reverse=True):
            below = child.children[token]
            yield self.count((below, 0, 0)), token, (below, 1, above + inside)

    def _along(self, point: Point) -> tuple[int, int, Point] | None:
        """Return the only child of a point inside of an edge, or None for the response, or the tree, ends there."""
        child, inside, above = point
        start = child if isinstance(child, int) else child.start
        token = self._tokens[start + inside - self._base]
        if token == END or above + inside >= self._reach.depth:
            return None
        return self.count(point), token, (child, inside + 1, above)

    def _insert(self, place: int, end: int) -> None:
        """Count the suffix that begins at a place, as far as ``end``."""
        node, at = self._root, place
        while at < end:
            token = self._tokens[at - self._base]
            child = node.children.get(token)
            if child is None:
                node.children[token] = at
                if len(node.children) == 1:
                    node.top = token
                return
            whole = self._edge(child, at - place)
            shared = self._shared(child if isinstance(child, int) else child.start, at, min(whole, end - at))
            child = self._pass(node, token, child, at, shared, whole)
            if node.top is not None and node.top != token and rank(child) > rank(node.children[node.top]):
                node.top = token
            node, at = child, at + shared

    def _pass(self, node: Branch, token: int, child: Child, at: int, shared: int, whole: int) -> Branch:
        """Count an occurrence of the first ``shared`` tokens of an edge, and return the branch where they end."""
        if isinstance(child, Branch) and shared == whole:
            child.count, child.start = child.count + 1, at
            return child
        count, start = (1, child) if isinstance(child, int) else (child.count, child.start)
        parted = Branch(count + 1, at, shared)
        node.children[token] = parted
        if shared < whole:
            parted.top = self._tokens[start + shared - self._base]
            if isinstance(child, int):
                parted.children[parted.top] = child + shared
            else:
                child.start, child.length = start + shared, whole - shared
                parted.children[parted.top] = child
        return parted

    def _edge(self, child: Child, above: int) -> int:
        """Return the tokens of an edge with ``above`` tokens above it."""
        if isinstance(child, Branch):
            return child.length
        most, first = self._reach.depth - above, child - self._base
        try:
            return self._tokens.index(END, first, first + most) - first
        except ValueError:
            return most

    def _shared(self, one: int, other: int, most: int) -> int:
        """Return how many tokens from two places on are the same, up to ``most``; the first ones are."""
        if most == 1:
            return 1
        tokens, one, other = self._tokens, one - self._base, other - self._base
        if tokens[one : one + most] == tokens[other : other + most]:
            return most
        return next(place for place in range(1, most) if tokens[one + place] != tokens[other + place])

    def _forget(self, start: int, end: int) -> None:
        """Take the suffixes of the oldest response out of the tree."""
        for place in range(start, end):
            self._remove(place, min(place + self._reach.depth, end))
        gone = end + 1 - self._base
        if gone > len(self._tokens) // 2:  # so that a token is moved once, on average
            del self._tokens[:gone]
            self._base += gone

    def _remove(self, place: int, end: int) -> None:
        above, node, at = None, self._root, place
        while at < end:
            token = self._tokens[at - self._base]
            child = node.children[token]
            if node.top == token:  # another one may be more frequent now
                node.top = None
            if isinstance(child, int):
                del node.children[token]
                break
            child.count -= 1
            if child.count == 1:  # what is left is one occurrence, the latest
                node.children[token] = child.start
                return
            above, node, at = node, child, at + child.length
        self._join(above, node)

    def _join(self, above: Branch | None, node: Branch) -> None:
        """Make one edge of a branch and its only child where nothing else follows the branch."""
        if above is None or len(node.children) != 1:
            return
        (child,) = node.children.values()
        if isinstance(child, int) or child.count != node.count:
            return
        above.children[self._tokens[node.start - self._base]] = child
        child.start, child.length = child.start - node.length, child.length + node.length
