"""Log lines of the libraries that load models and prompts."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

VARIABLES = {
    "transformers": "TRANSFORMERS_VERBOSITY",
    "datasets": "DATASETS_VERBOSITY",
    "huggingface_hub": "HF_HUB_VERBOSITY",
}
"""The environment variable with the level of each library's log. A library reads it when it is imported."""


@contextlib.contextmanager
def errors_only() -> Iterator[None]:
    """Have the libraries log errors alone, in this process and in those that it begins.

    What concerns a user, a warning or an error of specframe says. A value that the user has given a variable stays.
    """
    unset = {library: name for library, name in VARIABLES.items() if name not in os.environ}
    loggers = [logging.getLogger(library) for library in unset if library in sys.modules]
    levels = [logger.level for logger in loggers]
    os.environ.update(dict.fromkeys(unset.values(), "error"))
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name in unset.values():
            os.environ.pop(name, None)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
