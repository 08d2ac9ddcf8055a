"""Libraries' progress bars of loading and downloading models."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

VARIABLE = "HF_HUB_DISABLE_PROGRESS_BARS"
"""The environment variable by which the libraries are told. They read it when they are imported."""


@contextlib.contextmanager
def only_in_terminals() -> Iterator[None]:
    """Keep the bars out of a standard error that is no terminal, of this process and of those that it begins.

    A value that the user has given the variable stays.
    """
    if VARIABLE in os.environ or sys.stderr.isatty():
        yield
        return
    imported: Any = sys.modules.get("transformers.utils.logging")
    shown = imported is not None and imported.is_progress_bar_enabled()
    os.environ[VARIABLE] = "1"
    try:
        if shown:
            imported.disable_progress_bar()
        yield
    finally:
        del os.environ[VARIABLE]
        if shown:
            imported.enable_progress_bar()
