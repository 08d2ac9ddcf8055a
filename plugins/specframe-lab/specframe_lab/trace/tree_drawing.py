"""The trees of a round as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from specframe.contracts.drafts import Budget
from specframe.contracts.roles import Drafter
from specframe.plugins.recipe import own_budget
from specframe_lab.trace.frames import Lane, Node


def drawn(lane: Lane, text_of: Callable[[int], str]) -> list[str]:
    """Return a line for a row and one for each node of its tree: token, probability, slot, and what became of it."""
    if lane.score is None or not lane.score.tree:
        return []
    tree = lane.score.tree
    stood = sum(node.place is not None for node in tree)
    return [f"Prompt {lane.prompt}: {len(tree)} nodes, {stood} accepted", *_children(tree, -1, "", text_of)]


def _children(tree: list[Node], parent: int, indent: str, text_of: Callable[[int], str]) -> Iterator[str]:
    children = [number for number, node in enumerate(tree) if node.parent == parent]
    for number in children:
        last = number == children[-1]
        yield f"{indent}{'└─' if last else '├─'} {_described(tree[number], text_of)}"
        yield from _children(tree, number, indent + ("   " if last else "│  "), text_of)


def _described(node: Node, text_of: Callable[[int], str]) -> str:
    moved = "" if node.moved is None else f", moved to slot {node.moved}"
    stood = "" if node.place is None else ", accepted"
    return f"“{text_of(node.token)}” {100 * node.chance:.0f}%, slot {node.slot}{stood}{moved}"


def limits(drafter: Drafter, most: Budget) -> str:
    """Return the limits of a drafter's trees in words; "" where it drafts chains."""
    if "tree" not in drafter.offers:
        return ""
    own = own_budget(drafter, most.depth) or most
    nodes, depth = min(own.nodes, most.nodes), min(own.depth, most.depth)
    return f"at most {nodes} node{'s' * (nodes != 1)}, depth {depth}"


def by_branch(branches: Mapping[tuple[int, int], int]) -> str:
    """Return how many nodes were accepted by depth and rank, as a clause."""
    return "; ".join(
        f"depth {deep}: "
        + ", ".join(f"{count} of rank {rank + 1}" for (depth, rank), count in branches.items() if depth == deep)
        for deep in sorted({depth for depth, _ in branches})
    )
