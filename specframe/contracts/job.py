"""Jobs: files of prompts that an executor decodes as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen
class Job:
    """What a run asks for: files in, a folder of files out."""

    prompts: str
    output: str
    resume: bool
    options: dict[str, Any]
    """The arguments of :class:`specframe.Pipeline`."""
    sampling: dict[str, Any]
    """Those that are given of the parameters of :class:`specframe.Sampling`."""
    settings: dict[str, Any]
    """Everything that results depend on."""
    max_new_tokens: int
    chat: bool
    progress: Callable[[int, int], None] = lambda done, total: None
    """Shows how many rows are done, of how many; called first before any is decoded, from any thread."""
