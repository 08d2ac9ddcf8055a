"""What alignments with published flaws share: options that are "published" unless a fix is asked for."""

from __future__ import annotations


def choice(option: str, given: str, fix: str) -> bool:
    """Return whether the fix was asked for; raise :class:`ValueError` when the value is neither "published" nor it."""
    if given not in ("published", fix):
        raise ValueError(f"{option} must be 'published' or {fix!r}, got {given!r}")
    return given == fix
