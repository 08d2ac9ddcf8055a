"""Attention backends: how queries attend to what a KV store hands out.

Tensor names carry their shape: B rows, T queries per row, H heads, D size of a head.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import attrs
import torch

from specframe.contracts.cache import KVShape, KVView, Placement, Window


@attrs.frozen
class AttentionFacts:
    """What is known of a model's attention before it is used."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    """Query heads: the most that any layer has."""
    shapes: tuple[KVShape, ...]
    """The shapes of its layers' keys and values, each once."""
    windows: tuple[Window, ...]
    """The sliding windows and chunks of its layers, each once, or None for a layer without one."""
    asked: bool = True
    """Whether the user asked for the backend by name. If not, "auto" asks whether it is faster than mask tensors."""


class Attend(Protocol):
    """The attention of one forward, called layer by layer."""

    def attend(self, query: torch.Tensor, view: KVView, scaling: float | None, window: Window) -> torch.Tensor:
        """Return the values attended to, (B, T, H, D).

        Args:
            query: (B, H, T, D).
            view: the keys and values of the slots attended to, of G heads, G dividing H.
            scaling: of the scores, or None for 1 / sqrt(D).
            window: what a query sees of the tokens up to itself. It is a chunk only for backends that offer "chunk".
        """


class AttentionBackend(Protocol):
    """Decides how queries attend to what a KV store hands out.

    Offers the views it reads, "dense" and "paged"; "tree", "window" and "chunk" where its plans keep to these; "lengths" where it
    depends on ``Placement.used_B`` alone, and leaves other placements to mask tensors; "masks" where it leaves all; "compiled"
    where its plans call kernels of torch.compile.
    """

    needs: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    expects: str
    """The models and devices that it suits, as the error names them where it suits none."""

    @abstractmethod
    def suits(self, facts: AttentionFacts) -> bool:
        """Return whether it can attend for a model, which is then tried against mask tensors; where ``facts.asked`` is False,
        whether "auto" takes it."""

    @abstractmethod
    def plan(self, placement: Placement) -> Attend | None:
        """Return the attention of a forward over the slots of ``key_index_BS``, or None to use the core's mask tensors."""


Asked = AttentionBackend | tuple[AttentionBackend, ...]
"""The attention backend asked for, or those that "auto" chooses from. If none of them can be used, mask tensors are."""
