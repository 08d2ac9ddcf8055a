"""Display settings of a run."""

from __future__ import annotations

import attrs


@attrs.frozen
class DisplaySettings:
    """Display settings: which parts a run shows, and on which stream."""

    stream: bool = False
    """Show texts while they are generated."""
    quiet: bool = False
    """Show no progress and no figures."""
    verbose: bool = False
    """Show more of each completion, and the environment."""
    completions: bool = True
    """Show texts when they are complete."""
    err: bool = False
    """Show everything on standard error, since standard output is for JSON."""
