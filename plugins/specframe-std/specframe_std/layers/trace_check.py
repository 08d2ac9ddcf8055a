"""The check of a forward as straight code before its use: whether it gives the logits that the model's modules give."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from specframe.contracts.cache import KVShape, KVView, Placement
from specframe.contracts.model import StraightForward
from specframe.errors import ModelError
from specframe.model.model_checks import Scratch, SelfTests, distance
from specframe.model.transformers_model import CallOptions


@torch.inference_mode()
def require_agreement(tests: SelfTests, traced: StraightForward, one_row: bool, one_token: bool) -> None:
    """Raise :class:`ModelError` if a forward as straight code gives other logits than the model's modules.

    Rows are fed that hold tokens already: a layer that attends by itself, or changes keys after they were written, shows there.

    Args:
        tests: of the model.
        traced: the forward.
        one_row, one_token: whether it is checked with one row, and with one token of each, or with several.
    """
    placement = cut(tests.uneven, 1 if one_row else None, 1 if one_token else None)
    shapes = tests.kv_shapes
    numbers = tests.attending or range(len(shapes))  # a part of a model has the shapes of the whole
    store = WrittenScratch(placement, dict(zip(numbers, shapes, strict=False)))
    expected, found = tests.fed(placement), tests.fed(placement, CallOptions(traced=traced), store=store)
    if not (off := distance(found, expected)) < tests.tolerance:
        raise ModelError(f"their logits are off by {off:.2g} standard deviations")


class WrittenScratch(Scratch):
    """Slots filled with noise, to which the code of a forward may write itself: a :class:`specframe.contracts.cache.DirectStore`.

    Args:
        placement: of what is fed.
        shapes: of the layers' keys and values, by the number that the model has for each.
    """

    def __init__(self, placement: Placement, shapes: Mapping[int, KVShape]) -> None:
        super().__init__(placement)
        self._shapes, self._memory = shapes, dict[int, tuple[torch.Tensor, torch.Tensor]]()

    def places(self) -> torch.Tensor:
        """Return the places of what is fed in the memory of a layer, (B, T)."""
        return self._slots_BT + self._rows_B1 * self._slots

    def memory(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the memory of a layer, which is empty."""
        shape, places = self._shapes[layer], len(self._slots_BT) * self._slots
        sizes = shape.key_size, shape.value_size
        keys, values = (
            torch.zeros(places, shape.heads, size, dtype=shape.dtype, device=self._slots_BT.device) for size in sizes
        )
        self._memory[layer] = keys, values
        return keys, values

    def view(self, layer: int) -> KVView:
        """Return what :meth:`write` does of the keys and values in the memory of a layer."""
        keys, values = (part[self.places()].transpose(1, 2) for part in self._memory[layer])
        return self.write(layer, keys, values)


def cut(placement: Placement, rows: int | None, width: int | None) -> Placement:
    """Return the last rows and tokens of a placement, or all of them for None."""
    own, last = slice(-(rows or len(placement.index_BT)), None), slice(-(width or placement.index_BT.shape[1]), None)
    positions_BT, slots_BT, index_BT = (
        one[own, last] for one in (placement.positions_BT, placement.slots_BT, placement.index_BT)
    )
    return Placement(positions_BT, slots_BT, index_BT, placement.key_index_BS, in_order=placement.in_order)
