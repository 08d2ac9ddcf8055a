"""Options of alignments with published flaws: "published" by default, or the name of a fix."""

from __future__ import annotations

from specframe.errors import OptionError


def choice(option: str, given: str, fix: str) -> bool:
    """Return whether the fix was asked for; raise :class:`OptionError` when the value is neither "published" nor it."""
    if given not in ("published", fix):
        raise OptionError(f"{option}: expected 'published' or {fix!r}, got {given!r}")
    return given == fix
