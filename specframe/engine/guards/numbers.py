"""The numbers of drafts and acceptance results: what a contract asks of them, and which of them break it.

Each function returns None where all is well, or the expectation and the wrong value in words. Arrays are on the host. Names carry
their shape: B rows, N nodes of a draft, K nodes of its longest path.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from specframe.contracts.drafts import Draft

Fault = tuple[str, Any]
"""An expectation in words, and the value that there is."""


def beyond(numbers: np.ndarray, most: int) -> bool:
    """Return whether any of these whole numbers of 64 bits is negative or above ``most``.

    The highest one shows both: bits of a negative number, read without its sign, make one above all others. Its place is found in
    half the time that the number itself takes, and this is asked four times a round.
    """
    unsigned = numbers.view(np.uint64)
    return numbers.size > 0 and unsigned.item(unsigned.argmax()) > most


def first_beyond(numbers: np.ndarray, most: int) -> int:
    """Return the first of the numbers that are negative or above ``most``."""
    return int(numbers[(numbers < 0) | (numbers > most)][0])


def draft_fault(
    draft: Draft, tokens: np.ndarray, parents: np.ndarray | None, counts: np.ndarray | None, vocabulary: int
) -> Fault | None:
    """Return the fault of a draft: of its tokens (B, N), parents (B, N) or (1, N), and counts (B,)."""
    if beyond(tokens, vocabulary - 1):
        return f"token ids from 0 to {vocabulary - 1} in tokens_BN", first_beyond(tokens, vocabulary - 1)
    if counts is not None and beyond(counts, tokens.shape[1]):
        return f"counts_B from 0 to N = {tokens.shape[1]}", first_beyond(counts, tokens.shape[1])
    if counts is not None and draft.counts is not None and (more := counts > draft.counts).any():
        return f"counts_B up to counts, {draft.counts[more][0]} in row {more.argmax()}", int(counts[more][0])
    return None if parents is None else tree_fault(draft.depth, parents, counts)


def tree_fault(depth: int, parents: np.ndarray, counts: np.ndarray | None) -> Fault | None:
    """Return the fault of a tree: a parent that is no earlier node, or a path that is longer than ``depth``."""
    places_N = row_of_numbers(parents.shape[1])
    if ((parents >= places_N) | (parents < -1)).any():
        wrong = parents[((parents >= places_N) | (parents < -1)).any(1)][0]
        return "parents_BN that are -1 or an earlier node", wrong.tolist()
    depths_BN = depths(parents)
    if counts is not None:
        depths_BN = np.where(places_N < counts[:, None], depths_BN, 0)
    longest = int(depths_BN.max(initial=0))
    asked = f"a depth of at least {longest}, the nodes of the longest path in parents_BN"
    return (asked, depth) if longest > depth else None


def depths(parents_BN: np.ndarray) -> np.ndarray:
    """Return the number of nodes on the path to each node, itself included, (B, N), in as many steps as the depth has bits."""
    rows, nodes = parents_BN.shape
    above_BN = np.zeros((rows, nodes + 1), dtype=np.int64)  # place 0 is the row's last token, and its own parent
    above_BN[:, 1:] = parents_BN + 1
    above = (above_BN + np.arange(rows)[:, None] * (nodes + 1)).ravel()
    depth = (above_BN != np.arange(nodes + 1)).astype(np.int64).ravel()
    while (more := depth[above]).any():
        depth, above = depth + more, above[above]
    return depth.reshape(rows, nodes + 1)[:, 1:]


def acceptance_fault(
    draft: Draft,
    accepted: np.ndarray,
    tokens: np.ndarray,
    path: np.ndarray | None,
    parents: np.ndarray | None,
    vocabulary: int,
) -> Fault | None:
    """Return the fault of an acceptance result: of accepted (B,), tokens (B, K + 1) and path (B, K), by the draft's parents."""
    depth = draft.depth
    if beyond(accepted, depth):
        return f"accepted_B from 0 to K = {depth}", first_beyond(accepted, depth)
    if beyond(tokens, vocabulary - 1):  # not those that mean nothing
        standing = tokens[np.arange(depth + 1) <= accepted[:, None]]
        if beyond(standing, vocabulary - 1):
            return f"token ids from 0 to {vocabulary - 1} in tokens_BT", first_beyond(standing, vocabulary - 1)
    return None if path is None else path_fault(draft.nodes, accepted, path, parents)


def path_fault(nodes: int, accepted: np.ndarray, path: np.ndarray, parents: np.ndarray | None) -> Fault | None:
    """Return the fault of the accepted part of paths: a node that there is not, or that does not follow the node before it."""
    means_BK = row_of_numbers(path.shape[1]) < accepted[:, None]
    if beyond(path[means_BK], nodes - 1):
        return f"nodes from 0 to {nodes - 1} in path_BT", first_beyond(path[means_BK], nodes - 1)
    nodes_BK = np.where(means_BK, path, 0)
    before_BK = nodes_BK - 1 if parents is None else parents[np.arange(len(parents))[:, None], nodes_BK]
    wrong_BK = means_BK & (before_BK != np.pad(nodes_BK[:, :-1], ((0, 0), (1, 0)), constant_values=-1))
    if not wrong_BK.any():
        return None
    row = int(wrong_BK.any(1).argmax())
    return "a path_BT in which each node is a child of the node before it", path[row, : accepted[row]].tolist()


def unlike_draft(
    accepted: np.ndarray, tokens: np.ndarray, path: np.ndarray | None, drafted: np.ndarray
) -> Fault | None:
    """Return the fault of accepted tokens that are not the drafted ones (B, N), whose keys and values the cache holds.

    The path is a sound one.
    """
    taken = tokens[:, :-1]
    if path is not None:
        drafted = np.take_along_axis(drafted, path.clip(0, drafted.shape[1] - 1), 1)
    other_BK = (taken != drafted) & (row_of_numbers(taken.shape[1]) < accepted[:, None])
    if not np.count_nonzero(other_BK):
        return None
    row = int(other_BK.any(1).argmax())
    place = int(other_BK[row].argmax())
    return f"the draft's token {drafted[row, place]} at an accepted place in tokens_BT", int(taken[row, place])


@functools.lru_cache(maxsize=256)
def row_of_numbers(count: int) -> np.ndarray:
    """Return the numbers from 0 to ``count`` - 1; nobody writes to the array."""
    numbers = np.arange(count)
    numbers.flags.writeable = False
    return numbers
