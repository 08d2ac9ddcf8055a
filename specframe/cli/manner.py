"""How a run shows what it does."""

from __future__ import annotations

import attrs


@attrs.frozen
class Manner:
    """What a run shows, and where."""

    stream: bool = False
    """Texts are shown as they come."""
    quiet: bool = False
    """No progress, no figures."""
    verbose: bool = False
    """More of each completion, and what the run was made with."""
    completions: bool = True
    """Texts are shown when they are complete."""
    err: bool = False
    """All of it goes to standard error: standard output is for JSON."""
