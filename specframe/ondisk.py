"""What of a model is on disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

CONFIG, WEIGHTS = ("config.json",), ("*.safetensors", "*.bin")
VOCABULARIES = ("tokenizer.json", "tekken.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")


def on_disk(location: str) -> Path | None:
    """Return a directory, or the folder of the hub's cache that holds a model's config.json."""
    if os.path.isdir(location):
        return Path(location)
    with contextlib.suppress(HFValidationError):
        config = try_to_load_from_cache(location, CONFIG[0])
        return Path(config).parent if isinstance(config, str) else None
    return None


def holds(folder: Path | None, files: tuple[str, ...]) -> bool:
    """Return whether a folder has a file of any of these names or patterns."""
    there = folder is not None and os.path.isdir(folder)  # False for a name that cannot be, as one too long
    return there and any(path.is_file() for pattern in files for path in Path(folder or "").glob(pattern))


def state(location: str) -> str:
    """Return whether a model is "local" (a directory), "cached" (from the hub) or "not on disk"."""
    folder = on_disk(location)
    if not holds(folder, CONFIG) or not holds(folder, WEIGHTS):
        return "not on disk"
    return "local" if os.path.isdir(location) else "cached"
