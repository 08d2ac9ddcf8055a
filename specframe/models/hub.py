"""The question whether the hub offers a model, with a time limit."""

from __future__ import annotations

import threading

SECONDS = 10
"""Seconds to wait for the hub's answer: enough for a slow network, and a user without one soon reads an error."""


def fault(repository: str) -> Exception | None:
    """Return why the hub does not offer a model, or None if it does; waits at most :data:`SECONDS`."""
    from huggingface_hub import HfApi  # an HTTP library, too slow for a command's --help

    faults: list[Exception] = [TimeoutError(f"no answer in {SECONDS} s")]

    def ask() -> None:
        try:
            HfApi().model_info(repository, timeout=SECONDS)
            faults.clear()
        except Exception as error:  # the client's error types differ between its releases
            faults[:] = [error]

    thread = threading.Thread(target=ask, daemon=True)  # the client's time limit does not cover the address look-up
    thread.start()
    thread.join(SECONDS)
    return faults[0] if faults else None
