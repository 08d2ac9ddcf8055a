"""Names of devices. Whether there is such a device is asked later: that needs torch.

Other kinds than "cpu" and "cuda", of an accelerator or of a test kit, are found among the entry points of :data:`GROUP`.
"""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points

GROUP = "specframe.devices"
"""Entry points of further kinds: the name of the kind, and an object with the members of
:class:`specframe.devices.kinds.DeviceKind`."""

BUILT_IN = ("cpu", "cuda")
EXPECTED = "auto, cpu, cuda or cuda:N"


def is_name(name: str) -> bool:
    """Return whether a device may be called that: "cpu", "cuda", "cuda:1", or alike for a kind of an entry point."""
    kind, colon, index = name.partition(":")
    if colon and (kind == "cpu" or not re.fullmatch("[0-9]+", index)):
        return False
    return kind in BUILT_IN or entry_point(kind) is not None


def entry_point(kind: str) -> EntryPoint | None:
    """Return the entry point that describes a kind of devices."""
    return next(iter(entry_points(group=GROUP, name=kind)), None)
