"""Data of a trace: the target's cache at successive moments."""

from __future__ import annotations

import attrs

from specframe_lab.trace.slot_book import Cell

KEPT, INPUT, ACCEPTED, REJECTED, CUT, STALE, PADDING, EMPTY = "kiarcspe"
"""Content of a slot: a token cached before; a token fed as input; a draft token that was committed; one that was rejected; one that
was not rejected and yet not committed; one forgotten before and still there; nothing, with more tokens of the row after it;
nothing, past the row's last token."""


@attrs.frozen
class Node:
    """One node of a draft that is a tree."""

    token: int
    parent: int
    """The node that it follows; -1: the row's last token."""
    chance: float
    """The target's probability of the token after the node's path."""
    slot: int
    """Its slot during the pass."""
    place: int | None
    """Place on the accepted path, from 0, or None if the node was not committed."""
    moved: int | None
    """Slot that it was moved to, or None if it stayed, or was not committed."""


@attrs.frozen
class Score:
    """Result of one pass of the target for one row."""

    length: int
    """Number of the row's tokens before the pass."""
    drafted: int
    by_rule: int
    """Draft tokens that the acceptance rule accepted."""
    committed: int
    """Those of them that the alignment committed."""
    accepted: int
    """Committed draft tokens, up to the row's stop or limit."""
    tokens: list[int]
    """Gained tokens: the accepted tokens, and the bonus token unless the row ended before it."""
    altered: bool
    """Whether the alignment replaced tokens of the rule's result."""
    finish: str | None
    queries: list[int]
    """Order of each fed token, as the mask has it."""
    keys: list[int]
    """Token index of each slot attended to, as the mask has it; a query sees the indices 0 up to its own."""
    leaks: int
    """Slots that some query sees and that do not hold a token of its row up to itself."""
    blind: int
    """Slots with a token that some query of the same row should see and does not."""
    tree: list[Node] = attrs.Factory(list)
    """The nodes of a draft that is a tree, or nothing for a chain."""
    path: list[int] = attrs.Factory(list)
    """The nodes of the path that the acceptance rule accepted."""
    sees: list[list[int]] | None = None
    """The slots that each fed token sees, where a tree was fed."""


@attrs.frozen
class Lane:
    """One sequence's part of the cache in one frame."""

    prompt: int
    row: int | None
    """The sequence's row in the batch, or None while the sequence is not in the batch."""
    slots: list[int]
    """The number of the cell in each slot."""
    marks: str
    """One letter per slot; the letters are :data:`KEPT` and the constants after it."""
    drift: int
    """Position id of the last token minus the number of tokens before it: 0 if the position is right."""
    shift: int = 0
    """Slots by which the sequence was shifted to the right since the previous frame."""
    came_from: int | None = None
    """The sequence's previous row, if it changed since the previous frame."""
    score: Score | None = None


@attrs.frozen
class Frame:
    """The target's cache at one moment: after a pass of the target, or committed, right before the next."""

    round: int
    phase: str
    """"read" (the prompts), "score" (a draft) or "commit"."""
    draft_length: int
    lanes: list[Lane]
    shifted: int = 0
    """Cached tokens whose slot changed since the frame before."""
    carried: int = 0
    """Cached tokens whose row changed since the frame before."""
    draft_moved: int = 0
    """Tokens of the draft model's cache whose slot or row changed since the frame before."""


@attrs.define
class SchemeTrace:
    """One scheme's run over the prompts."""

    name: str
    about: str
    lossless: bool
    slot_bytes: int
    """Bytes of one token's keys and values in the target's cache, over all layers."""
    draft_slot_bytes: int
    cells: list[Cell]
    frames: list[Frame]
    prompts: list[list[int]]
    outputs: list[list[int]]
    finish: list[str]
    reference: list[list[int]] | None
    """The target's own greedy continuation of each prompt, or None if tokens are drawn at random."""
    windows: list[int]
    """Sliding windows of the target's layers that have a window. The masks shown are those of layers without a window."""
    tree: str = ""
    """Limits of its trees in words: nodes and depth; "" where drafts are chains."""
    branches: dict[tuple[int, int], int] = attrs.Factory(dict)
    """Accepted nodes of trees by depth, from 1, and rank among siblings, from 0."""
