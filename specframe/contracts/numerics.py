"""Numerics: the way in which everything of a run is computed, where it matters to the last bit.

Tensor names carry their shape: B rows, T tokens fed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from transformers import PreTrainedModel

from specframe.contracts.cache import Placement


class ForwardNumerics(Protocol):
    """What forwards ask of the numerics that are active around them."""

    def attending(self, placement: Placement) -> AbstractContextManager[None]:
        """Return the context of a forward whose tokens attend by a placement."""

    def attending_rows(self, rows: slice, width: int) -> AbstractContextManager[None]:
        """Return the context in which some rows of a forward attend by themselves, with the first ``width`` tokens of each."""

    def fed_alone(self, model: PreTrainedModel) -> Callable[[torch.Tensor], AbstractContextManager[None]]:
        """Return what makes the context of each forward of a twin that is fed outside of a run, with the model's own cache: of its
        tokens (B, T), which follow those of the forward before, without padding."""


class Numerics(Protocol):
    """Has everything computed in another way, such that logits are the same whatever a token is computed with."""

    def require(self, model: PreTrainedModel, called: str) -> None:
        """Raise :class:`specframe.errors.ModelError`, with the name it is called by, unless a model can be computed so."""

    def around(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the context in which everything is computed so: inside, its :class:`ForwardNumerics` are active
        (:func:`specframe.model.current_numerics.active`)."""

    def outside(self) -> AbstractContextManager[None]:
        """Return the context, inside of that of :meth:`around`, in which everything is computed as it is."""
