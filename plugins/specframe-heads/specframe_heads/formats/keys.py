"""The keys of a configuration: which are read, which say nothing of what a head computes, and which are known for one value alone.

A key that changes what a head computes and is not read makes it draft worse, and raises no error. So keys of a value that is not
known here are refused, and keys that nobody knows are reported.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from specframe.errors import ModelError, SpecframeWarning, literal
from specframe_heads.checkpoint import Checkpoint, nested


@attrs.frozen
class Keys:
    """The keys of one object in a configuration."""

    section: str = ""
    """The key of the object; empty: the configuration itself."""
    read: frozenset[str] = frozenset()
    """Keys that are read, or that say nothing of what a head computes."""
    fixed: Mapping[str, tuple[Any, ...]] = attrs.field(factory=dict)
    """Keys that change what a head computes, with the values that are implemented. null is the same as a key that is left out."""
    family: str = ""
    """The family of models whose configurations have the other keys; empty: there are no others."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse values that are not implemented, and warn of keys that are not known.

        Raises:
            ModelError: a key has a value with which the head would compute something else.
        """
        for key, value in self._of(checkpoint).items():
            allowed = self.fixed.get(key)
            if allowed is not None and value is not None and value not in allowed:
                expected = " or ".join(literal(one) for one in allowed)
                raise ModelError(
                    f"the config.json of {checkpoint}: expected {expected} for {self._called(key)}, got {literal(value)}: "
                    "with that the head computes something that is not known here"
                )
        if unknown := sorted(self.unknown(checkpoint)):
            warnings.warn(
                f"the config.json of {checkpoint} has {', '.join(unknown)}, not known here: if that changes what the "
                "head computes, its drafts are worse than they could be",
                SpecframeWarning,
                stacklevel=2,
            )

    def unknown(self, checkpoint: Checkpoint) -> Iterator[str]:
        """Yield the keys that are not known here and have a value."""
        others = frozenset[str]()
        for key, value in self._of(checkpoint).items():
            if value is None or key in self.read or key in self.fixed:
                continue
            others = others or usual(self.family)
            if key not in others:
                yield self._called(key)

    def _of(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        return nested(checkpoint.config, self.section) if self.section else checkpoint.config

    def _called(self, key: str) -> str:
        return f"{self.section}.{key}" if self.section else key


def usual(family: str) -> frozenset[str]:
    """Return the keys of a family's configurations as transformers writes them."""
    if not family:
        return frozenset({""})
    from specframe_heads.backbone import FAMILIES  # imports transformers

    written = FAMILIES[family].config().to_dict()
    return frozenset(written) | {
        "torch_dtype",
        "rope_theta",
        "rope_scaling",
        "auto_map",
        "_name_or_path",
        "_attn_implementation",
    }
