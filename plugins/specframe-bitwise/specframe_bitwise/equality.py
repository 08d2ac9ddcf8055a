"""Bitwise equality, as a run takes it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import PreTrainedModel

from specframe_bitwise import mode
from specframe_bitwise.bitwise_check import require_bitwise


class Bitwise:
    """Logits the same to the bit, whatever a token is computed with."""

    def require(self, model: PreTrainedModel, called: str) -> None:
        """Raise :class:`specframe.errors.ModelError` unless a model can be computed bitwise alike."""
        require_bitwise(model, called)

    def around(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the context in which everything is computed bitwise alike."""
        return mode.bitwise(device)

    def outside(self) -> AbstractContextManager[Any]:
        """Return the context in which everything is computed as it is, also inside :meth:`around`."""
        return mode.outside()
