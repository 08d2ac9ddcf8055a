"""A format of checkpoints: how it is recognised, and the hidden states of the target that its layer ids mean."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

import attrs

from specframe.errors import ModelError, literal
from specframe_heads.checkpoint import Checkpoint, nested
from specframe_heads.formats.keys import Keys
from specframe_heads.tensors import Tensors, UnreadTensors, Unused


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
    """Where the function is that makes the head, "package.module:name". It is called with the checkpoint, the format, a
    :class:`specframe_heads.target.Target` and the checkpoint's :class:`specframe_heads.tensors.Tensors`, and returns what the
    drafter runs; it raises :class:`specframe.errors.ModelError` where the checkpoint does not fit the target."""
    ids: Callable[[Checkpoint, int], tuple[int, ...]]
    """(checkpoint, layers of the target) -> the layer ids as the file has them, or the format's defaults in the same numbering."""
    offset: int = 0
    unused: Unused = ()
    """Tensors that heads of this format do not need, with the reasons."""
    keys: tuple[Keys, ...] = ()
    """The keys of the objects in a configuration."""

    def layers(self, checkpoint: Checkpoint, count: int, shift: int = 0) -> tuple[int, ...]:
        """Return the numbers of the hidden states that a head reads.

        Args:
            checkpoint: the head.
            count: the target's number of layers.
            shift: added to every number: the check of a checkpoint tries whether others are accepted more.
        """
        return tuple(one + self.offset + shift for one in self.ids(checkpoint, count))

    def made(self, checkpoint: Checkpoint, target: Any) -> Any:
        """Return the head of a checkpoint for a target.

        Raises:
            ModelError: it does not fit the target or its own configuration, or has a tensor that is not read.
        """
        return self.read(checkpoint, target)[0]

    def read(self, checkpoint: Checkpoint, target: Any) -> tuple[Any, Tensors]:
        """Return the head of a checkpoint as :meth:`made` does, and the tensors that it was made of."""
        from specframe.devices import kinds  # it imports torch

        for keys in self.keys:
            keys.check(checkpoint)
        tensors = Tensors(UnreadTensors(checkpoint, self.unused, hollow=not kinds.of(target.device).values))
        head = pkgutil.resolve_name(self.build)(checkpoint, self, target, tensors)
        tensors.ledger.require_all_read()
        return head, tensors


def final(checkpoint: Checkpoint, count: int) -> tuple[int, ...]:
    """Return the id of heads that read the state after the final norm only: EAGLE-1, Medusa, MTP."""
    return (count,)


def of_speculators(kind: str) -> Callable[[Checkpoint], bool]:
    """Return what recognises a kind of checkpoints of `speculators`."""
    return lambda checkpoint: checkpoint.config.get("speculators_model_type") == kind


def given_ids(checkpoint: Checkpoint, key: str, section: str = "") -> tuple[int, ...]:
    """Return the layer ids that a configuration, or an object in it, has under a key; empty where it has none.

    Raises:
        ModelError: they are no list of whole numbers.
    """
    given = (nested(checkpoint.config, section) if section else checkpoint.config).get(key)
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in given):
        raise ModelError(
            f"the config.json of {checkpoint}: expected a list of whole numbers for {section and section + '.'}{key}, "
            f"got {literal(given)}"
        )
    return tuple(given)
