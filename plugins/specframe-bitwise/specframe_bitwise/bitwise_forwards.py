"""What forwards do in another way for bitwise equality."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Placement
from specframe.model import current_numerics
from specframe_bitwise import order
from specframe_bitwise.own_states import OwnStates


class BitwiseForwards:
    """Has attention take keys in the order of their tokens, and states take in one token after the other."""

    def attending(self, placement: Placement) -> AbstractContextManager[None]:
        """Return the context of a forward whose slots are taken by the order of their tokens."""
        return order.ordered_attention(placement)

    def attending_rows(self, rows: slice, width: int) -> AbstractContextManager[None]:
        """Return the context in which the slots of some rows are taken so, and of the first ``width`` tokens of each."""
        return order.of_rows(rows, width)

    def fed_alone(self, model: PreTrainedModel) -> Callable[[torch.Tensor], AbstractContextManager[None]]:
        """Return what has each forward of a model outside of a run go on from the states before it."""
        return OwnStates(model).feeding


def active() -> AbstractContextManager[None]:
    """Have forwards inside the block take keys and states so."""
    return current_numerics.active(BitwiseForwards())
