"""Drafts from a target's own MTP layers.

One layer is fed as EAGLE's transformer is. Of several layers, layer j is fed the output of layer j - 1 at t and token t + 1 + j,
and drafts token j. The entries of its cache at a row's last j places then come from drafted tokens, and have to be written again
when the true ones are known: each round feeds all layers from a few tokens before the new ones on.

Tensor names carry their shape: B rows, W features, T pairs fed, K draft tokens, D hidden size, R all rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from specframe_std.trees.chains import GrowingChain

from specframe.contracts.drafts import Block, Budget, Draft
from specframe.contracts.round import Batch
from specframe.errors import CompositionError, ModelError
from specframe.model.cached import CachedModel
from specframe.model.run import Run
from specframe.row_map import RowMap
from specframe.value_checks import whole
from specframe_heads.checkpoint import Checkpoint
from specframe_heads.features import FeatureChunk, Waiting, at
from specframe_heads.formats.format import Format
from specframe_heads.head import MOST_WAITING, PairDrafter, model_of, open_ragged, pairs_of
from specframe_heads.mtp.mtp_formats import OWN
from specframe_heads.mtp.mtp_layers import MtpBackbone, MtpHead


class Mtp(PairDrafter):
    """The MTP layers in a target's own checkpoint, or in a file in the format of `speculators`, draft chains, or one of them trees.

    With more draft tokens than layers the last layer is fed its own output.

    Options:
        checkpoint: an alias, a directory or a hub id; by default the target's own checkpoint.
        shift: added to the number of the hidden state that the first layer is fed, at most 0.
        tree, branch, nodes, top: the shape of the draft, as for ``eagle``; several layers draft chains.
    """

    name = "mtp"
    head: MtpHead

    def __init__(
        self,
        checkpoint: str | None = None,
        shift: int = 0,
        tree: str = "chain",
        branch: str | int | None = None,
        nodes: int | None = None,
        top: int | None = None,
    ) -> None:
        self._own = checkpoint is None
        super().__init__(checkpoint or "", whole("shift", shift, -8, 0), tree, branch, nodes, top)

    def _opened(self, name: str) -> tuple[Checkpoint, Format]:
        return (Checkpoint(name, Path()), OWN) if self._own else super()._opened(name)

    def make(self, run: Run) -> None:
        """Find the target's checkpoint where it has the layers, and make them."""
        if self._own:
            where = model_of(run).name_or_path
            if not where:
                raise ModelError(
                    "drafter 'mtp' reads the target's own checkpoint: expected a target that was loaded from a directory or the "
                    "hub, or the option checkpoint, got a model made in memory"
                )
            self.checkpoint = Checkpoint.open(where, "target")
        super().make(run)

    @property
    def past(self) -> bool:
        """Whether the features of all tokens are needed: of several layers, the later ones are fed what those before them give."""
        return len(self.head.backbones) > 1

    def start(self, run: Run) -> None:
        """Open a cache for each layer."""
        super().start(run)
        if len(self.head.backbones) > 1 and not self.trees.chain:
            raise CompositionError(
                f"the target has {len(self.head.backbones)} MTP layers, one for each token of a chain: expected tree=chain"
            )
        self._caches = [self.cache, *(self._another(run, one) for one in self.head.backbones[1:])]
        self._tails = Tails(run.rows, len(self._caches) - 1)

    def _another(self, run: Run, backbone: MtpBackbone) -> CachedModel:
        return open_ragged(run, backbone, run.capacity + MOST_WAITING + self.beyond(), past=True)

    def beyond(self) -> int:
        """Return the slots per row needed beyond those of the target's rows."""
        return len(self.head.backbones) + super().beyond()

    def follow(self, batch: Batch) -> None:
        """Make the batch's sequences the rows of all caches."""
        for cache in self._caches:
            cache.follow(batch)
        self._tails.follow(batch)

    def read(self, piece: FeatureChunk) -> None:
        """Feed the pairs of a prompt, or of a prefill chunk, to every layer, in parts."""
        batch, width = piece.batch, piece.features_BTD.shape[1]
        views = [pairs_of(batch, 1 + depth) for depth in range(len(self._caches))]
        chunk = self.cache.tokens_at_once(views[0])
        for begin in range(0, width, chunk):
            states_BTD, start = piece.features_BTD[:, begin : begin + chunk], piece.start + begin
            # what later layers are fed goes beyond the row's end, so that its places are not those of the features that were fed
            counts = None if self.past else piece.real(begin, states_BTD.shape[1])
            for depth, cache in enumerate(self._caches):
                ids_BT = following(batch, batch.lengths_B + start, states_BTD.shape[1], depth)
                states_BTD = fed(cache, views[depth], ids_BT, start + 1 + depth, states_BTD, counts)
        self._tails.read(batch, piece.features_BTD)

    def draft(self, batch: Batch, waiting: Waiting, budget: Budget) -> Draft:
        """Return a chain of ``budget.depth`` tokens."""
        if len(self._caches) == 1:
            return super().draft(batch, waiting, budget)
        again, chain, on = self._tails.before(batch, waiting), GrowingChain(batch, budget), True
        states_BTD = again.features_BWD
        for depth, cache in enumerate(self._caches):
            ids_BT = following(batch, again.first_B, states_BTD.shape[1], depth, chain.tokens_BK)
            states_BTD = fed(cache, again.beginning(pairs_of(batch, 1 + depth)), ids_BT, 0, states_BTD)
            if on and depth < budget.depth:
                on = self.lengthen(batch, chain, self.head.logits(again.last(states_BTD)))
        state_B1D, layers = again.last(states_BTD), len(self._caches)
        view = pairs_of(batch, layers)
        for offset in range(layers, budget.depth if on else layers):
            state_B1D = fed(self._caches[-1], view, chain.tokens_BK[:, -1:], offset - 1, state_B1D)
            if not self.lengthen(batch, chain, self.head.logits(state_B1D)):
                break
        return chain.draft


class Tails:
    """The features before those that wait, as many per row as layers have to be fed again.

    Samples that start from one prompt need those of the prompt, whatever their parent has decoded since.

    Args:
        rows: R.
        count: features per row, C.
    """

    def __init__(self, rows: int, count: int) -> None:
        self._rows, self._count, self._row_map = rows, count, RowMap(rows)
        self._last_RCD: torch.Tensor | None = None
        self._prompt_RCD: torch.Tensor | None = None

    def follow(self, batch: Batch) -> None:
        """Make the batch's sequences the first rows."""
        moves = self._row_map.arrange(batch.sequences)
        if self._last_RCD is None or self._prompt_RCD is None:
            return
        moves.apply(self._last_RCD, self._prompt_RCD)
        if batch.starts:
            self._last_RCD[: len(batch)] = self._prompt_RCD[: len(batch)]

    def read(self, batch: Batch, features_BTD: torch.Tensor) -> None:
        """Take the last features of a prompt, or of a prefill chunk; a row of fewer tokens has others before its own."""
        last_RCD, prompt_RCD = self._kept(features_BTD)
        self.follow(batch)
        both_BTD = torch.cat([last_RCD[: len(batch)], features_BTD], dim=1)
        last_RCD[: len(batch)] = prompt_RCD[: len(batch)] = both_BTD[:, both_BTD.shape[1] - self._count :]

    def before(self, batch: Batch, waiting: Waiting) -> Waiting:
        """Return the features that wait with those before them, and keep the last of them."""
        last_RCD, _ = self._kept(waiting.features_BWD)
        self.follow(batch)
        both_BTD = torch.cat([last_RCD[: len(batch)], waiting.features_BWD], dim=1)
        first, more_B = np.maximum(waiting.first - self._count, 0), waiting.first_B.clamp(max=self._count)
        skipped_BT = self._count - more_B[:, None] + torch.arange(both_BTD.shape[1], device=more_B.device)
        last_RCD[: len(batch)] = at(
            both_BTD, waiting.counts_B[:, None] + torch.arange(self._count, device=more_B.device)
        )
        counts = waiting.counts + waiting.first - first
        features_BTD = at(both_BTD, skipped_BT.clamp(max=both_BTD.shape[1] - 1))
        first_B, counts_B = waiting.first_B - more_B, waiting.counts_B + more_B
        return Waiting(features_BTD, first, first_B, counts, counts_B, waiting.known)

    def _kept(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._last_RCD is None or self._prompt_RCD is None:
            self._last_RCD, self._prompt_RCD = like.new_zeros(2, self._rows, self._count, like.shape[-1])
        return self._last_RCD, self._prompt_RCD


def fed(
    cache: CachedModel,
    view: Batch,
    ids_BT: torch.Tensor,
    start: int,
    features_BTD: torch.Tensor,
    counts: np.ndarray | None = None,
) -> torch.Tensor:
    """Feed pairs to a layer, ``counts`` real ones of each row; return its output states, (B, T, D)."""
    block = Block(ids_BT, start, extra={"features": features_BTD}, counts=counts)
    return cache.feed(view, block, keep=ids_BT.shape[1]).logits_BTV


def following(
    batch: Batch, first_B: torch.Tensor, width: int, depth: int, drafted_BK: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the token ``depth + 1`` places after each of ``width`` places from ``first_B`` on, (B, T).

    It is a row's own, or a drafted one. A place before a row's first token, or after the last drafted one, has any token.
    """
    places_BT = first_B[:, None] + torch.arange(1 + depth, 1 + depth + width, device=first_B.device)
    ids_BT = batch.tokens_BS.gather(1, places_BT.clamp(0, batch.tokens_BS.shape[1] - 1)).clamp_(min=0)
    if drafted_BK is None or not drafted_BK.shape[1]:
        return ids_BT
    beyond_BT = places_BT - batch.lengths_B[:, None]
    drafted_BT = drafted_BK.gather(1, beyond_BT.clamp(0, drafted_BK.shape[1] - 1))
    return drafted_BT.where(beyond_BT >= 0, ids_BT)
