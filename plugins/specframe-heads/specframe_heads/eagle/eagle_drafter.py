"""EAGLE-1, EAGLE-2 and EAGLE-3 (arXiv 2401.15077, 2406.16858, 2503.01840)."""

from __future__ import annotations

from specframe_heads.head import PairDrafter


class Eagle(PairDrafter):
    """A small transformer over the target's features drafts chains or trees: EAGLE-1, 2 and 3.

    EAGLE-2 is the head of EAGLE-1 with ``tree=dynamic``.

    Options:
        checkpoint: the head: an alias, a directory or a hub id, in the format of `speculators` or in the authors' layout.
        shift: added to the numbers of the hidden states that the head is fed, for finding out whether a file is read rightly.
        tree: "chain"; "static": a tree of a fixed shape; "dynamic": a tree whose shape follows the head's probabilities.
        branch: the static tree: the children of the nodes of each depth, as in 3/2/1, or a JSON file with a list of rank lists;
            without it the likeliest nodes are taken.
        nodes: nodes of the tree; 16, or those of branch.
        top: nodes that each level of a dynamic tree runs, and children of each; as many as its
            nodes have room for, up to 10.
    """

    name = "eagle"
    chains_offer = frozenset({"captured"})
