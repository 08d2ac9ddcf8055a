"""The versions of a machine, and how those of two differ. Nothing here imports torch: every machine is asked before it decodes."""

from __future__ import annotations

import importlib.metadata
import platform

from specframe.plugins.registry import registry


def versions() -> dict[str, str]:
    """Return the versions that results depend on: of Python, of libraries, and of the plugins that are loaded."""
    names = {"specframe", "specframe-ray", "torch", "transformers", *registry().distributions}
    known: dict[str, str] = {"python": platform.python_version()}
    for name in sorted(names):
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            known[name] = "not installed"
    return known


def difference(here: dict[str, str], there: dict[str, str]) -> tuple[str, str, str] | None:
    """Return the first name of which the versions of two machines differ, with both, or None if they are alike."""
    versions = ((name, *(one.get(name, "not loaded") for one in (here, there))) for name in sorted({*here, *there}))
    return next(((name, own, its) for name, own, its in versions if own != its), None)
