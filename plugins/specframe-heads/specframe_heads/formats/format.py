"""A format of checkpoints: how it is recognised, and the hidden states of the target that its layer ids mean."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import attrs

from specframe_heads.checkpoint import Checkpoint


@attrs.frozen
class Format:
    """One format of published checkpoints.

    Layer ids mean different hidden states in different formats, and a wrong offset lowers acceptance without an error. The
    meaning is therefore a property of the format: id k is the hidden state k + ``offset`` in the numbering of transformers (0: the
    embedding; k: the output of layer k; the last: after the final norm).
    """

    name: str
    """As reports and errors call it: "speculators eagle3"."""
    drafter: str
    """The registered name of the drafter that runs it; its option ``checkpoint`` takes the checkpoint."""
    recognises: Callable[[Checkpoint], bool]
    """Whether a checkpoint is of this format, from its configuration and the names of its tensors; it does not import torch."""
    build: str
    """Where the function is that makes the head, "package.module:name". It is called with the checkpoint, the format and a
    :class:`specframe_heads.target.Target`, and returns what the drafter runs; it raises :class:`specframe.errors.ModelError` where
    the checkpoint does not fit the target."""
    ids: Callable[[Checkpoint, int], tuple[int, ...]]
    """(checkpoint, layers of the target) -> the layer ids as the file has them, or the format's defaults in the same numbering."""
    offset: int = 0

    def layers(self, checkpoint: Checkpoint, count: int, shift: int = 0) -> tuple[int, ...]:
        """Return the numbers of the hidden states that a head reads.

        Args:
            checkpoint: the head.
            count: the target's number of layers.
            shift: added to every number: the check of a checkpoint tries whether others are accepted more.
        """
        return tuple(one + self.offset + shift for one in self.ids(checkpoint, count))

    def made(self, checkpoint: Checkpoint, target: Any) -> Any:
        """Return the head of a checkpoint for a target."""
        module, _, name = self.build.partition(":")
        return getattr(importlib.import_module(module), name)(checkpoint, self, target)


def final(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the id of heads that read the state after the final norm only: EAGLE-1, Medusa, MTP."""
    return (count,)
