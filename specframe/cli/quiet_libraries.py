"""What the libraries that load models and prompts print by themselves: log lines and progress bars."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

LEVELS = {
    "transformers": "TRANSFORMERS_VERBOSITY",
    "datasets": "DATASETS_VERBOSITY",
    "huggingface_hub": "HF_HUB_VERBOSITY",
}
"""The environment variable with the level of each library's log. A library reads its variables when it is imported."""
NO_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"
"""The environment variable that turns bars of loading and downloading off."""


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Have the libraries log errors alone, and draw bars on terminals alone, in this process and in those that it begins.

    What concerns a user, a warning or an error of specframe says. A value that the user has given a variable stays.
    """
    names = {library: name for library, name in LEVELS.items() if name not in os.environ}
    told = dict.fromkeys(names.values(), "error")
    before = {
        logger: logger.level for library in names if library in sys.modules if (logger := logging.getLogger(library))
    }
    imported: Any = None
    if NO_BARS not in os.environ and not sys.stderr.isatty():
        told[NO_BARS] = "1"
        imported = sys.modules.get("transformers.utils.logging")
    shown = imported is not None and imported.is_progress_bar_enabled()
    os.environ.update(told)
    for logger in before:
        logger.setLevel(logging.ERROR)
    try:
        if shown:
            imported.disable_progress_bar()
        yield
    finally:
        for name in told:
            os.environ.pop(name, None)
        for logger, level in before.items():
            logger.setLevel(level)
        if shown:
            imported.enable_progress_bar()
