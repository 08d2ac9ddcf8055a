"""The tensors of a checkpoint on their way into a head: each is read, is known to be unused for a reason, or is refused.

A tensor that nobody reads changes what a head drafts and raises no error, since the output is the target's own all the same.
Nothing here imports torch before tensors are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from specframe.errors import ModelError
from specframe_heads.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

Unused = tuple[tuple[str, str], ...]
"""Pairs of a regular expression, which fits the whole name of a tensor, and the reason why no head needs such a tensor."""

NEVER_USED: Unused = (
    (r"t2d", "d2t says the same the other way round"),
    (r"verifier_.*", "a copy of the target's"),
    (r"(.*\.)?rotary_emb\.(original_)?(inv_freq|cos_cached|sin_cached)", "made from the configuration"),
)
"""The tensors that no format's head needs."""

LEAST_BYTES = 2
"""Bytes of a number in the smallest type of weights. Integers and 8-bit floats are quantised: they mean nothing without scales."""


class UnreadTensors:
    """The tensors of one checkpoint's files: which were read, and which are left for a reason.

    Args:
        checkpoint: the checkpoint.
        unused: the tensors that the format's heads do not need, in addition to :data:`NEVER_USED`. They are not loaded.
        hollow: whether the target is on the meta device, so that weights need no numbers.
    """

    def __init__(self, checkpoint: Checkpoint, unused: Unused, hollow: bool = False) -> None:
        self._checkpoint, self._read, self._hollow = checkpoint, set[str](), hollow
        self._rules: list[tuple[Callable[[str], object], str]] = [
            (re.compile(pattern).fullmatch, why) for pattern, why in (*NEVER_USED, *unused)
        ]
        self._tensors: dict[str, torch.Tensor] | None = None
        self.left: dict[str, str] = {}
        """The reason why each tensor is left that is not needed, by its name in the file."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors but those that are not needed, by their names in the file. They are loaded when they are first asked for."""
        if self._tensors is None:
            self._tensors = self._checkpoint.load(self._wanted, self._hollow)
        return self._tensors

    def leave(self, unneeded: Callable[[str], object], why: str) -> None:
        """Leave the tensors with such names, before any is loaded."""
        self._rules.append((unneeded, why))

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor, and note that it was read."""
        self._read.add(name)
        return self.tensors[name]

    def require_all_read(self) -> None:
        """Raise :class:`ModelError` where a tensor was neither read nor left for a reason."""
        if rest := sorted(self.tensors.keys() - self._read):
            more = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
            raise ModelError(
                f"{self._checkpoint} has the tensor {rest[0]!r}{more}, which its configuration has no place for: expected only "
                "tensors that the head computes with, since one that is left out changes its drafts without an error"
            )

    def _wanted(self, name: str) -> bool:
        why = next((why for fits, why in self._rules if fits(name)), None)
        if why is not None:
            self.left[name] = why
        return why is None


class Tensors(Mapping[str, "torch.Tensor"]):
    """The tensors of a checkpoint under the names of this package. Looking one up counts as reading it.

    Args:
        ledger: the tensors of the files.
        places: for each name here its name in the file, or a tensor of the target's. Without it the names are those of the file.
    """

    def __init__(self, ledger: UnreadTensors, places: Mapping[str, str | torch.Tensor] | None = None) -> None:
        self.ledger, self._given = ledger, places

    @property
    def _places(self) -> Mapping[str, str | torch.Tensor]:
        return {name: name for name in self.ledger.tensors} if self._given is None else self._given

    def __getitem__(self, name: str) -> torch.Tensor:
        place = self._places[name]
        return self.ledger.read(place) if isinstance(place, str) else place

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor without reading it, or None if there is no such tensor."""
        place = self._places.get(name)
        tensor = self.ledger.tensors[place] if isinstance(place, str) else place
        return None if tensor is None else tuple(tensor.shape)

    def renamed(self, name_of: Callable[[str], str | None]) -> Tensors:
        """Return the tensors under other names, without those that have none."""
        named = ((name_of(name), place) for name, place in self._places.items())
        return Tensors(self.ledger, {name: place for name, place in named if name is not None})

    def under(self, prefix: str) -> Tensors:
        """Return the tensors of one module, by their names within it."""
        return self.renamed(lambda name: name.removeprefix(prefix) if name.startswith(prefix) else None)

    def borrowing(self, name: str, tensor: torch.Tensor) -> Tensors:
        """Return these tensors and one of the target's."""
        return Tensors(self.ledger, {**self._places, name: tensor})


def require_weights(whose: str, name: str, tensor: torch.Tensor) -> None:
    """Raise :class:`ModelError` unless a tensor holds floating point numbers of 16 bits or more."""
    if not tensor.is_floating_point() or tensor.element_size() < LEAST_BYTES:
        raise ModelError(
            f"the tensor {name!r} of {whose} is quantised: expected floating point numbers of 16 or 32 bits, as bfloat16 has, got "
            f"{str(tensor.dtype).removeprefix('torch.')}; dequantise the head first"
        )
