"""The versions of specframe that a plugin was made for, as its distribution declares them."""

from __future__ import annotations

import importlib.metadata
import re

from packaging.requirements import Requirement

import specframe


def bounds() -> str:
    """Return the versions that a plugin made for this one works with: those of the same minor release, ``>=X.Y,<X.Z``."""
    major, minor = specframe.__version__.split(".")[:2]
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def unfit(distribution: importlib.metadata.Distribution) -> str | None:
    """Return why a distribution's plugins cannot be loaded: it was made for other versions of specframe, or None if they can.

    A distribution that depends on specframe without bounds, or not at all, says nothing of versions, and is loaded.
    """
    for text in distribution.requires or ():
        if re.match(r"specframe(?![\w.-])", text):
            wanted = Requirement(text).specifier
            if not wanted.contains(specframe.__version__, prereleases=True):
                name = distribution.metadata["Name"]
                return (
                    f"it was made for specframe {wanted}, and this is {specframe.__version__}: "
                    f"install a release of {name} for this version"
                )
    return None
