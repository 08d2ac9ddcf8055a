"""A model that attends to the first and the last tokens of each row alone, on a cache that holds them all.

StreamingLLM, Xiao et al. 2023 (arXiv 2309.17453). A target drafts so on its own cache in MagicDec, Chen et al. 2024
(arXiv 2408.11049).

Tensor names carry their shape: B rows, T tokens fed per row, S slots, N slots that are read.
"""

from __future__ import annotations

import attrs
import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Placement
from specframe.devices.kinds import numbers
from specframe_std.partial.part_runner import PartRunner


class WindowRunner(PartRunner):
    """Runs a model on few keys of its own cache: those of the first tokens of each row, and of the last ones.

    A token has the position that it has in its row, and what it sees has, too: a model that was trained on rows of its length sees
    known distances. (StreamingLLM counts positions inside the window, for rows that are longer than any that was trained on.) The
    store hands out the slots of the window alone, so its backend has to offer "gather".

    Args:
        whole: the model, a causal language model.
        role: "draft", for observers and errors.
        sink: first tokens that are seen.
        recent: last tokens that are seen, that of the query included.

    Raises:
        ModelError: the model cannot be fed.
    """

    def __init__(self, whole: PreTrainedModel, role: str, sink: int, recent: int) -> None:
        super().__init__(whole, whole, role)
        self._sink, self._recent = sink, recent

    def narrowed(self, placement: Placement, slots: int | None) -> tuple[Placement, Placement]:
        """Return the placement with the slots of the window, for the store, and that of a rectangle of these slots alone."""
        extent = placement.key_index_BS.shape[1]
        if not extent and slots is not None:  # recorded for rows of any length, that lie in order
            extent = slots
        if extent <= self._sink + self._recent:
            return placement, placement
        return narrow(placement, self._sink, self._recent)


def narrow(placement: Placement, sink: int, recent: int) -> tuple[Placement, Placement]:
    """Return a placement with the slots to read, and the placement of the same tokens in a rectangle of these slots.

    The rule of the second hides what the rule of the first does, and all tokens of a row but the first ``sink``, the ``recent`` up
    to the first token fed, and those fed after it. Layers with windows or chunks of their own see what lies in both.

    Args:
        placement: the tokens in the cache. Its rows have one token of each order below those that are fed.
        sink, recent: tokens seen; the placement has more slots than both together.
    """
    rows, width = placement.slots_BT.shape
    device, index_BT = placement.index_BT.device, placement.index_BT
    first_B1 = index_BT.where(index_BT >= 0, index_BT.amax(1, keepdim=True)).amin(1, keepdim=True)
    last_BN = first_B1 - recent + numbers(1, recent, device)
    index_BN = torch.cat([numbers(0, sink, device).expand(rows, -1), last_BN.where(last_BN >= sink, -1)], dim=1)
    index_BN = index_BN.where(index_BN < first_B1, -1)
    slots_BN = index_BN.clamp(min=0)
    if not placement.in_order:
        key_index_BS = placement.key_index_BS
        by_index_BS = key_index_BS.where(key_index_BS >= 0, key_index_BS.shape[1]).argsort(dim=1)
        slots_BN = by_index_BS.expand(rows, -1).gather(1, slots_BN)
    own_BT = placement.slots_BT.where(index_BT >= 0, 0)  # padding's slot may hold what another row has left
    before = sink + recent - 1
    short = attrs.evolve(
        placement,
        slots_BT=numbers(before, before + width, device, rows),
        key_index_BS=torch.cat([index_BN, index_BT], dim=1),
        in_order=False,
        written=None,
    )
    return attrs.evolve(placement, attended_BS=torch.cat([slots_BN, own_BT], dim=1)), short
