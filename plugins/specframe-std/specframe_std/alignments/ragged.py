"""Every row its own length; nothing is ever moved."""

from __future__ import annotations

from specframe.contracts.cache import KVStore
from specframe.contracts.drafts import Draft, Transfer
from specframe.contracts.round import Batch
from specframe.model.run import Run
from specframe_std.kv.ragged_layout import RaggedLayout


class Ragged:
    """A token's slot is its position; a rejected token is overwritten by the next round."""

    needs = frozenset({"scatter"})
    offers = frozenset({"lossless", "tree", "share", "uneven", "deferred"})
    scheduler = "continuous"
    kv = "slab"

    def start(self, run: Run) -> None:
        """Do nothing: a layout knows all it needs."""

    def layout(self, store: KVStore, rows: int, capacity: int) -> RaggedLayout:
        """Return the layout of one cache."""
        return RaggedLayout(store, rows, capacity)

    def commit(self, batch: Batch, draft: Draft, transfer: Transfer) -> Transfer:
        """Return the acceptance result as it is: what was rejected lies beyond a row's end, where no query looks."""
        return transfer
