"""Shapes of draft trees that are fixed before a round (static trees), as rank tuples.

A node is named by a tuple of ranks, as in Medusa's ``medusa_choices`` (Cai et al. 2024): ``(0, 2)`` is the third of the children of
the first child of the row's last token. The children of a node are ranked in the order in which the drafter gives them: the most
likely first, or the one drawn first. Tensor names carry their shape: N nodes, L nodes of a level, P nodes of the level before that
have children, C children that are drawn for each of them.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from specframe.devices.kinds import constant, on_device
from specframe.errors import OptionError, literal
from specframe.value_checks import whole_within

Ranks = tuple[int, ...]

FIRST, DECAY = 0.65, 1.8
"""The chance that a child of rank r is the target's token is taken to be ``FIRST / (r + 1) ** DECAY``: about that of small draft
models and heads. Only the order of nodes by the product along their path is used, to choose which nodes a tree has."""

MOST_NODES = 1024
"""The largest tree: what its nodes see of each other is a square of this many rows and columns per row."""


@attrs.frozen
class Level:
    """The nodes of one depth, as positions: a drafter makes them from the level before."""

    first: int
    """Index of the level's first node in the tree; the others follow."""
    children: int
    """Children to draw for each node of the level before that has children, C: as many as the node with the most has."""
    parents: tuple[int, ...]
    """For each node, its parent's index among the nodes of the level before that have children, L."""
    ranks: tuple[int, ...]
    """For each node, its rank among its parent's children, L."""
    inner: tuple[int, ...]
    """The nodes of the level that have children, as indices within the level."""

    def __len__(self) -> int:
        return len(self.ranks)


def _in_order(given: Iterable[Iterable[int]]) -> tuple[Ranks, ...]:
    """Return nodes by their depth, and by their ranks within one depth, each once."""
    return tuple(sorted(set(map(tuple, given)), key=by_depth))


@attrs.frozen
class Shape:
    """A static tree. Nodes are in the order of their depth, and of their ranks within one depth.

    Raises:
        OptionError: a node's parent or elder sibling is missing, or there are no nodes or too many.
    """

    ranks: tuple[Ranks, ...] = attrs.field(converter=_in_order)

    def __attrs_post_init__(self) -> None:
        if not 1 <= len(self.ranks) <= MOST_NODES:
            raise OptionError(f"tree: expected from 1 to {MOST_NODES} nodes, got {len(self.ranks)}")
        known = {(), *self.ranks}
        for node in self.ranks:
            for needed in ([node[:-1]] if len(node) > 1 else []) + ([elder(node)] if node[-1] else []):
                if needed not in known:
                    raise OptionError(f"tree: expected node {list(needed)} beside {list(node)}, got a tree without it")

    @property
    def nodes(self) -> int:
        """The number of nodes, N."""
        return len(self.ranks)

    @property
    def depth(self) -> int:
        """The number of nodes of the longest path, K."""
        return len(self.ranks[-1])

    @property
    def chain(self) -> bool:
        """Whether no node has a sibling."""
        return self.nodes == self.depth

    @functools.cached_property
    def parents(self) -> tuple[int, ...]:
        """The index of each node's parent; -1: the row's last token."""
        place = {node: index for index, node in enumerate(self.ranks)}
        return tuple(place.get(node[:-1], -1) for node in self.ranks)

    @functools.cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels of the tree, from the children of the row's last token on."""
        made = list[Level]()
        before: list[Ranks] = [()]
        first = 0
        with_children = {node[:-1] for node in self.ranks}
        for _, group in itertools.groupby(self.ranks, key=len):
            nodes = list(group)
            places = {node: place for place, node in enumerate(before)}
            ranks = tuple(node[-1] for node in nodes)
            inner = tuple(place for place, node in enumerate(nodes) if node in with_children)
            made.append(Level(first, max(ranks) + 1, tuple(places[node[:-1]] for node in nodes), ranks, inner))
            before, first = [nodes[place] for place in inner], first + len(nodes)
        return tuple(made)

    def cut(self, depth: int, nodes: int | None = None) -> Shape:
        """Return the tree without what lies deeper than ``depth``, and with the likeliest ``nodes`` nodes of the rest."""
        return _cut(self, depth, self.nodes if nodes is None else nodes)

    @classmethod
    def line(cls, depth: int) -> Shape:
        """Return a chain."""
        return cls([(0,) * length for length in range(1, depth + 1)])

    @classmethod
    def branching(cls, children: Sequence[int]) -> Shape:
        """Return the tree in which every node of one depth has as many children: ``[3, 2]`` has 3 nodes and then 6."""
        made: list[Ranks] = []
        level: list[Ranks] = [()]
        for count in children:
            if len(made) + len(level) * count > MOST_NODES:
                raise OptionError(f"tree: expected at most {MOST_NODES} nodes, got more with {list(children)} children")
            level = [(*node, rank) for node in level for rank in range(count)]
            made += level
        return cls(made)

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def usual(depth: int, nodes: int) -> Shape:
        """Return the ``nodes`` likeliest nodes down to a depth, by :data:`FIRST` and :data:`DECAY`.

        The best node is taken off a heap, one after the other; its first child and its next sibling then join the heap.
        """
        chosen: list[Ranks] = []
        heap: list[tuple[float, Ranks]] = [(-promise((0,)), (0,))]
        while len(chosen) < nodes:
            _, node = heapq.heappop(heap)
            chosen.append(node)
            followers: list[Ranks] = [(*node[:-1], node[-1] + 1), *([(*node, 0)] if len(node) < depth else [])]
            for follower in followers:
                heapq.heappush(heap, (-promise(follower), follower))
        return Shape(chosen)

    @classmethod
    def read(cls, given: Any) -> Shape:
        """Return the tree that an option asks for.

        Args:
            given: children of the nodes of each depth, as in ``3/2/1``; the name of a JSON file with a list of rank lists (Medusa's
                ``medusa_choices``); or such a list.

        Raises:
            OptionError: it is none of these.
        """
        if isinstance(given, str) and given.endswith(".json"):
            given = _from_json(given)
        if isinstance(given, list | tuple):
            if not all(isinstance(node, list | tuple) and node and all(map(_rank, node)) for node in given):
                raise OptionError(f"tree: expected lists of ranks, as in [[0], [0, 0], [1]], got {literal(given)}")
            return cls(given)
        parts = str(given).split("/")
        if not all(part.strip().isdecimal() and 0 < int(part) <= MOST_NODES for part in parts):
            raise OptionError(
                f"branch: expected the children of the nodes of each depth, as in 3/2/1, got {literal(given)}"
            )
        return cls.branching([int(part) for part in parts])


@attrs.frozen(eq=False)
class Tables:
    """The indices of a static tree on a device, made once per shape and device."""

    parents_1N: torch.Tensor
    promise_1N: torch.Tensor
    """The chance that each node is accepted, by its ranks."""
    fed_1N: torch.Tensor
    """Each node's place among the nodes that have children; for another, 0."""
    fed_parents_1M: torch.Tensor
    """For the M nodes that have children, their parents' places among them; -1: the row's last token."""
    parents: tuple[torch.Tensor, ...]
    """Per level, :attr:`Level.parents`, (L,)."""
    drawn: tuple[torch.Tensor, ...]
    """Per level, each node's index among the P times C children that are drawn, (L,)."""
    inner: tuple[torch.Tensor, ...]
    """Per level, :attr:`Level.inner`."""
    above: tuple[torch.Tensor, ...]
    """Per level, :attr:`Level.parents` of the inner nodes alone, (1, ...)."""


@functools.lru_cache(maxsize=256)
def tables(shape: Shape, device: torch.device) -> Tables:
    """Return the indices of a static tree on a device."""

    def put(values: Iterable[int]) -> torch.Tensor:
        return on_device(list(values), device)

    inner = [level.first + place for level in shape.levels for place in level.inner]
    fed = {node: place for place, node in enumerate(inner)} | {-1: -1}
    return Tables(
        put(shape.parents)[None],
        constant(tuple(promise(node) for node in shape.ranks), device, torch.double)[None],
        put(max(0, fed.get(node, 0)) for node in range(shape.nodes))[None],
        put(fed[shape.parents[node]] for node in inner)[None],
        tuple(put(level.parents) for level in shape.levels),
        tuple(
            put(parent * level.children + rank for parent, rank in zip(level.parents, level.ranks, strict=True))
            for level in shape.levels
        ),
        tuple(put(level.inner) for level in shape.levels),
        tuple(put(level.parents[place] for place in level.inner)[None] for level in shape.levels),
    )


def by_depth(node: Ranks) -> tuple[int, Ranks]:
    """Return the key by which the nodes of a tree are sorted."""
    return len(node), node


def elder(node: Ranks) -> Ranks:
    """Return the sibling that is drawn just before a node."""
    return (*node[:-1], node[-1] - 1)


def promise(node: Ranks) -> float:
    """Return the chance that a node is accepted, by its ranks."""
    chance = 1.0
    for rank in node:
        chance *= FIRST / (rank + 1) ** DECAY
    return chance


@functools.lru_cache(maxsize=256)
def _cut(shape: Shape, depth: int, nodes: int) -> Shape:
    if depth >= shape.depth and nodes >= shape.nodes:
        return shape
    left = [node for node in shape.ranks if len(node) <= depth]
    return Shape(sorted(left, key=lambda node: (-promise(node), by_depth(node)))[:nodes])


def _rank(value: Any) -> bool:
    return whole_within(value, 0, MOST_NODES)


def _from_json(name: str) -> Any:
    try:
        return json.loads(Path(name).read_bytes())
    except OSError as error:
        raise OptionError(f"branch: {name} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"branch: expected a JSON list of rank lists in {name}, got {error}") from None
